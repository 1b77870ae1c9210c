"""The `nanobatch` program: its commands, and how errors leave it.

Knows flags and exit codes, nothing of how a job runs. No torch is imported here or by anything
imported here, so that `--help` answers at once.
"""

import os
import signal
import sys
import traceback
from collections.abc import Sequence

import typer

from nanobatch import __version__
from nanobatch.cli.run_command import run
from nanobatch.cli.validate_command import validate
from nanobatch.errors import NanobatchError

app = typer.Typer(
    name="nanobatch",
    help="Generate text with a language model for every row of a file, losing none.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(run)
app.command()(validate)

# Typer raises its own copy of click's exceptions in some versions and click's in others; both
# are the base of its public BadParameter.
_ClickException: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nanobatch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Generate text with a language model for every row of a file, losing none."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with the code of contract.md, promise 19."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(args=arguments, prog_name="nanobatch", standalone_mode=False)
    except NanobatchError as error:
        _report(error.message, error.hint, debug="--debug" in arguments)
        code = error.exit_code
    except _ClickException as error:
        code = _report_usage(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        _report("interrupted", "run the same line again to continue", debug=False)
        _die_of(signal.SIGINT)
    except BrokenPipeError:
        # The reader of our standard output went away; nothing of ours can be printed any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if isinstance(code, int) and code < 0:
        _die_of(-code)
    sys.exit(code or 0)


def _report(message: str, hint: str | None, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"error: {message}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")
    sys.stderr.flush()


def _report_usage(error: Exception, arguments: Sequence[str]) -> int:
    """Print what typer found wrong with the command line as one line and a hint."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    if not message:  # no command at all: typer has printed the help
        return 2
    message, _, suggestion = message.replace("\n", " ").partition(" (Possible options: ")
    message, _, closest = message.partition(" Did you mean")
    command = next((word for word in arguments if not word.startswith("-")), None)
    hint = f"see `nanobatch {command} --help`" if command in _commands() else None
    if suggestion:
        hint = f"did you mean {suggestion.rstrip(')')}?"
    elif closest:
        hint = f"did you mean{closest}".replace("?", "") + "?"
    message = message.strip().rstrip(".")
    _report(message[:1].lower() + message[1:], hint or "see `nanobatch --help`", debug=False)
    return 2


def _commands() -> set[str]:
    return {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback is not None
    }


def _die_of(signal_number: int) -> None:
    """End as the signal's default action would, so that callers see what happened."""
    sys.stderr.flush()
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)
