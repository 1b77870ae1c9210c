"""Runs the command line as `python -m nanobatch`. Knows nothing else."""

from nanobatch.cli.app import main

if __name__ == "__main__":
    main()
