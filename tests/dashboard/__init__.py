"""Tests of what a person sees of a run."""
