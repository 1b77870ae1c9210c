"""The command line: flags to frozen configuration, errors to one line and an exit code."""
