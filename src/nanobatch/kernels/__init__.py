"""Attention over paged keys and values, and where those live. Knows no model, layer or engine."""
