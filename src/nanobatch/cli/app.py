"""The `nanobatch` program: its commands, and how errors leave it.

Knows flags and exit codes, nothing of how a job runs. No torch is imported here or by anything
imported here, so that `--help` answers at once.
"""

import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

import typer

from nanobatch import __version__
from nanobatch.cli.bench_command import bench
from nanobatch.cli.export_command import export
from nanobatch.cli.merge_command import merge
from nanobatch.cli.run_command import run
from nanobatch.cli.status_command import status
from nanobatch.cli.validate_command import validate
from nanobatch.errors import NanobatchError, UsageError

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
app.command()(merge)
app.command()(status)
app.command()(export)
app.command()(bench)

# Typer raises its own copy of click's exceptions in some versions and click's in others; both
# are the base of its public BadParameter.
_ClickException: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"
)

_INTERRUPTED = 128 + signal.SIGINT


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
    code = _exit_code(arguments)
    try:
        sys.stdout.flush()
    except OSError:
        # The reader of our standard output went away. What is still buffered must not be tried
        # again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    if code < 0:
        _die_of(-code)
    sys.exit(code)


def _exit_code(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code, negative for a signal to die of."""
    try:
        code = app(args=arguments, prog_name="nanobatch", standalone_mode=False)
    except NanobatchError as error:
        usage = _help_hint(arguments) if isinstance(error, UsageError) else None
        _report(error.message, error.hint or usage, debug=_is_debugging(arguments))
        return error.exit_code
    except _ClickException as error:
        return _report_usage(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except BrokenPipeError:
        return 1
    except Exception as error:
        # Not ours to foresee, but still one line: a traceback is for those who ask for it.
        _report(f"{type(error).__name__}: {error}", None, debug=_is_debugging(arguments))
        return 1
    if code == _INTERRUPTED:  # some versions of typer return it for a KeyboardInterrupt
        _report("interrupted", "run the same line again to continue", debug=False)
        return -signal.SIGINT
    return code or 0


def _is_debugging(arguments: Sequence[str]) -> bool:
    """Whether tracebacks are wanted: by the flag, or by what made the command log so much."""
    return "--debug" in arguments or logging.getLogger().isEnabledFor(logging.DEBUG)


def _report(message: str, hint: str | None, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"error: {_one_line(message)}\n")
    sys.stderr.write(f"hint: {_one_line(hint or 'add --debug to see where it comes from')}\n")
    sys.stderr.flush()


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _report_usage(error: Exception, arguments: Sequence[str]) -> int:
    """Print what typer found wrong with the command line as one line and a hint."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    if not message:  # no command at all: typer has printed the help
        return 2
    message, _, options = _one_line(message).partition(" (Possible options: ")
    message, _, closest = message.partition(" Did you mean")
    suggested = re.findall(r"--[\w-]+", options or closest)
    if len(suggested) > 1:  # in alphabetical order
        wrong = message.rpartition(" ")[2]
        closest = f" {get_close_matches(wrong, suggested, n=1, cutoff=0.0)[0]}?"
    elif suggested:
        closest = f" {suggested[0]}?"
    hint = f"did you mean{closest}" if closest else _help_hint(arguments)
    message = message.strip().rstrip(".")
    _report(message[:1].lower() + message[1:], hint, debug=False)
    return 2


def _help_hint(arguments: Sequence[str]) -> str:
    command = next((word for word in arguments if not word.startswith("-")), None)
    return f"see `nanobatch {command} --help`" if command in _commands() else "see `nanobatch -h`"


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
