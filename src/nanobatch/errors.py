"""The errors nanobatch raises, as one tree.

A fault of one *row* is data (`nanobatch.request.RowError`), never an exception. What stops a
*run* is an exception from this tree; each carries a one-line message (what was wrong, the
value, the bound), an optional hint (what to do), and the exit code of contract.md, promise 19.

    NanobatchError                       1
    ├── UsageError                       2  refused before anything was loaded
    │   ├── ConfigError                  2  an option or combination of options
    │   ├── InputError                   2  an input cannot be opened or recognised
    │   ├── OutputError                  2  an output is refused (exists, equals an input, …)
    │   ├── ModelError                   2  a model is not found, not supported or damaged
    │   └── ResumeMismatchError          2  the journal or output belongs to another job
    ├── InputReadError                   1  an input failed in mid-run; finished rows are kept
    ├── JournalError                     1  the journal is damaged in its middle
    ├── StorageError                     1  a write failed (disk full, quota, short write)
    ├── LockLostError                    1  another run took the output over
    ├── TooManyErrorsError               1  so many rows are errors that going on is pointless
    ├── CoverageError                    1  shards do not make up a whole job
    ├── EngineError                      1  the engine failed; finished rows are kept
    └── Stopped                         75  a signal or limit ended the run; resumable
"""

from typing import ClassVar


class NanobatchError(Exception):
    """Base of every error that nanobatch raises on purpose.

    Attributes:
        message: One line that says what was wrong, the value and the bound.
        hint: One line that says what to do, or None.
        exit_code: The process exit code that the command line gives this error.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NanobatchError):
    """What was asked for is refused before any work starts."""

    exit_code = 2


class ConfigError(UsageError):
    """An option, or a combination of options, is not valid."""


class InputError(UsageError):
    """An input cannot be opened, or is not in a format that nanobatch reads."""


class OutputError(UsageError):
    """An output path is refused."""


class ModelError(UsageError):
    """A model cannot be found, is of an unsupported kind, or its files are damaged."""


class ResumeMismatchError(UsageError):
    """A journal or a finished output belongs to a different job than the one asked for."""


class InputReadError(NanobatchError):
    """An input failed in the middle of a run."""


class JournalError(NanobatchError):
    """A journal is damaged somewhere before its end."""


class StorageError(NanobatchError):
    """Writing to disk failed."""


class LockLostError(NanobatchError):
    """Another run took the output over while this one seemed dead."""


class TooManyErrorsError(NanobatchError):
    """So many rows are errors that the run stopped; finished rows are kept."""


class CoverageError(NanobatchError):
    """Shards do not make up a whole job: a row is missing, doubled or foreign."""


class EngineError(NanobatchError):
    """The engine failed as a whole; rows that finished before are on disk."""


class Stopped(NanobatchError):  # noqa: N818  (a stop is not an error in its name)
    """A signal or a limit ended the run early; the same command continues it."""

    exit_code = 75
