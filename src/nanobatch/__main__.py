"""The program, as `nanobatch` and as `python -m nanobatch`.

Makes signals and standard streams safe, then loads the command line. Only what that needs is
imported at module level: the rest takes a good part of a second, in which a batch system may
already send its SIGTERM.
"""

from nanobatch.cli.early_signals import handle_early_signals
from nanobatch.cli.standard_streams import replace_missing_streams


def main() -> None:
    """Run the program with the arguments of this process and exit."""
    handle_early_signals()
    replace_missing_streams()
    from nanobatch.cli.exit_guard import ExitGuard

    guard = ExitGuard()
    from nanobatch.cli.app import main as run_program

    try:
        run_program()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            guard.leave(ended.code)
        raise


if __name__ == "__main__":
    main()
