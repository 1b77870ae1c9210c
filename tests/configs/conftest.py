"""Fixtures of the command line's tests, for those of its configurations."""

from tests.cli.conftest import checkpoint, configured, program

__all__ = ["checkpoint", "configured", "program"]
