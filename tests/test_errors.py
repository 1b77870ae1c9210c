"""The tree of errors: what each carries, and the exit code that the command line gives it."""

import inspect

import pytest

from nanobatch import errors
from nanobatch.errors import NanobatchError

EXIT_CODES = {
    "NanobatchError": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "InputError": 2,
    "OutputError": 2,
    "ModelError": 2,
    "ResumeMismatchError": 2,
    "InputReadError": 1,
    "JournalError": 1,
    "StorageError": 1,
    "LockLostError": 1,
    "TooManyErrorsError": 1,
    "CoverageError": 1,
    "EngineError": 1,
    "Stopped": 75,
}
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, NanobatchError)
}


def test_every_error_has_its_exit_code() -> None:
    assert {name: cls.exit_code for name, cls in CLASSES.items()} == EXIT_CODES


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_stands_in_the_drawn_tree_under_its_base(name: str) -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if f" {name} " in f"{line} "]
    assert len(lines) == 1
    indent = lines[0].index(name)
    depth = len(CLASSES[name].__mro__) - len(NanobatchError.__mro__)
    assert indent == 4 + 4 * depth
    code = EXIT_CODES[name]
    assert f" {code}" in lines[0].partition(name)[2]


@pytest.mark.parametrize("cls", CLASSES.values())
def test_every_error_carries_a_message_and_perhaps_a_hint(cls: type[NanobatchError]) -> None:
    plain, hinted = cls("disk is full"), cls("disk is full", hint="free space")
    assert (plain.message, plain.hint, str(plain)) == ("disk is full", None, "disk is full")
    assert (hinted.message, hinted.hint) == ("disk is full", "free space")
