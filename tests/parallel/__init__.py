"""Tests of the model side: parallel."""
