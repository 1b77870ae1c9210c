"""Tests of the shipped configurations and of the scripts for Slurm and cron."""
