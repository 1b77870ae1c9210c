"""Tests of the model side: models."""
