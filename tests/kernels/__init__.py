"""Tests of the model side: kernels."""
