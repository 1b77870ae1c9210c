"""Tests of the model side: layers."""
