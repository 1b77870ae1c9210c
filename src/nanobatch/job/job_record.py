"""A job's configuration as JSON, kept in its manifest for those who come later.

`nanobatch export` makes the job again from it, on any node that sees the files and without the
command line that began it. Knows the fields of frozen dataclasses, not what they mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nanobatch.errors import JournalError
from nanobatch.io.input_source import STDIN
from nanobatch.job_config import JobConfig


def to_json(config: JobConfig, *, inputs: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a job's configuration as JSON values.

    Args:
        config: The job.
        inputs: The files that its inputs stood for when it began, because a glob or a folder may
            stand for more of them later; None takes the inputs as they were given.

    Returns:
        Every field by its name. Local inputs are absolute paths, remote ones and `-` as given.
    """
    paths = config.inputs if inputs is None else inputs
    recorded: dict[str, Any] = _to_json(replace(config, inputs=tuple(map(_absolute, paths))))
    return recorded


def from_json(recorded: Mapping[str, Any]) -> JobConfig:
    """Return the configuration that `to_json` recorded.

    What a newer nanobatch added is left out, what an older one did not know has its default.

    Raises:
        JournalError: A field that has no default is missing, or a value is of another type.
        ConfigError: A value is out of bounds.
    """
    config: JobConfig = _from_json(JobConfig, recorded, "job")
    return config


def _absolute(path: str) -> str:
    return path if path == STDIN or "://" in path else str(Path(path).absolute())


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value


def _from_json(wanted: Any, value: Any, place: str) -> Any:
    """Return a value as the type that a field is annotated with."""
    if isinstance(wanted, UnionType) or NoneType in get_args(wanted):
        if value is None:
            return None
        (wanted,) = (option for option in get_args(wanted) if option is not NoneType)
    if is_dataclass(wanted):
        return _dataclass_from_json(wanted, value, place)
    if get_origin(wanted) is tuple:
        member = get_args(wanted)[0]
        return tuple(_from_json(member, item, place) for item in _require(list, value, place))
    if get_origin(wanted) is Literal:  # which of the values it is, who is built of it checks
        return _require(str, value, place)
    if wanted is float:
        return _require((int, float), value, place)
    return _require(get_origin(wanted) or wanted, value, place)


def _dataclass_from_json(wanted: Any, value: Any, place: str) -> Any:
    recorded = _require(Mapping, value, place)
    hints = get_type_hints(wanted)
    values = {}
    for field in fields(wanted):
        where = f"{place}.{field.name}"
        if field.name in recorded:
            values[field.name] = _from_json(hints[field.name], recorded[field.name], where)
        elif not _has_default(field):
            raise _unreadable(f"{where} is missing")
    return wanted(**values)


def _has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _require(wanted: type | tuple[type, ...], value: Any, place: str) -> Any:
    if not isinstance(value, wanted):
        raise _unreadable(f"{place} is {value!r}")
    return value


def _unreadable(what: str) -> JournalError:
    return JournalError(
        f"the manifest's record of the job cannot be read: {what}",
        hint="use the nanobatch that began the job",
    )
