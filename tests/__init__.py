"""Tests, in folders that mirror src/nanobatch; tests/project holds the whole to its word."""
