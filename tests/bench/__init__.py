"""Tests of nanobatch bench."""
