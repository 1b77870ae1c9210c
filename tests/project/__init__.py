"""Tests of the project as a whole: layout, packaging, documentation, sample files."""
