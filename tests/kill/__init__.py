"""Processes that are killed, everywhere."""
