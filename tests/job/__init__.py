"""Tests of whole runs."""
