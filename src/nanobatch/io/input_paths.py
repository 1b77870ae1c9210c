"""From what a command line names to files: patterns and folders, here and in remote stores.

Knows which names of a folder are inputs and which are our own outputs; not what files hold. Files
of a pattern or a folder are sorted by their whole path, as bytes compare.
"""

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow.fs import FileType

from nanobatch.errors import InputError
from nanobatch.io.foreign_files import failures_as_os_errors
from nanobatch.io.remote_files import RemoteFile, hint_for, is_remote, locate, one_line

JOURNAL_SUFFIX = ".nanobatch"
SUMMARY_SUFFIX = ".summary.json"

_HIDDEN_STARTS = (".", "_")
_SHARD_NAME = re.compile(r"(.+)-\d{5,}-of-\d{5,}((?:\.\w+)*)")

IsInput = Callable[[str], bool]
"""Whether a file's name in a folder says that it can be read."""

Level = tuple[str, list[str], list[str]]
"""A folder, the names of the folders in it and those of its files. Removing one of the first from
the list keeps a walk out of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file that is to be read.

    Attributes:
        path: Local path or URL.
        remote: Where it is, if it is remote.
    """

    path: str
    remote: RemoteFile | None = None


def find_files(path: str, *, is_input: IsInput, output: Path | None) -> list[FoundFile]:
    """Return the files that a path, a pattern or a folder stands for, at least one.

    A file whose name is the pattern itself goes before what the pattern matches. From folders come
    files with a known name that are not hidden, do not begin with `_`, and come from no job of
    ours; from a pattern what it matches except hidden files, summaries and what this run writes.

    Args:
        path: As the command line names it.
        is_input: Whether a file's name in a folder says that it can be read.
        output: What this run writes; None if that is no file.

    Raises:
        InputError: A pattern matches nothing, a folder has nothing to read, or a place cannot be
            looked at.
    """
    try:
        if is_remote(path):
            return _find_remote(path, is_input)
        return _find_local(_local_path(path), is_input, output)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{path} cannot be opened: {one_line(error)}", hint=hint_for(path)
        ) from None


def is_pattern(path: str) -> bool:
    """Return whether a path has characters that stand for others."""
    return glob.has_magic(path)


class _OwnFiles:
    """What this run writes: its output, the journal and the summary beside it.

    The other shards of a job and what they are merged to count as its own: otherwise a pattern
    would match more files for each shard that is done.
    """

    def __init__(self, output: Path) -> None:
        shard = _SHARD_NAME.fullmatch(output.name)
        name = (
            re.escape(output.name)
            if shard is None
            else rf"{re.escape(shard[1])}(-\d+-of-\d+)?{re.escape(shard[2])}"
        )
        beside = "|".join(map(re.escape, (JOURNAL_SUFFIX, SUMMARY_SUFFIX)))
        self._name = re.compile(f"{name}({beside})?")
        self._folder = output.parent.resolve()

    def have(self, path: str) -> bool:
        """Return whether a path is one of them, or lies in one."""
        return any(
            self._name.fullmatch(place.name) and place.parent.resolve() == self._folder
            for place in (Path(path), *Path(path).parents)
        )


def _find_local(path: str, is_input: IsInput, output: Path | None) -> list[FoundFile]:
    if "\0" in path:
        raise InputError(f"{path!r} is no path: it has a zero byte", hint="check the command line")
    if Path(path).is_dir():
        found, error = {*_readable(_walk_local(path), is_input)}, _empty_folder(path)
    elif is_pattern(path) and not Path(path).exists():
        matches = glob.iglob(path, recursive=True)  # noqa: PTH207 (Path.glob begins in a folder)
        found = {name for name in matches if _is_wanted(name, path) and not Path(name).is_dir()}
        error = _no_match(path)
    else:
        _require_apart(path, output)
        return [FoundFile(path=path)]
    if output is not None:
        own_files = _OwnFiles(output)
        found = {name for name in found if not own_files.have(name)}
    if not found:
        raise error
    return [FoundFile(path=name) for name in sorted(found)]


def _require_apart(path: str, output: Path | None) -> None:
    if output is not None and output.exists() and Path(path).exists() and output.samefile(path):
        raise InputError(f"{path} is the output", hint="choose another output")


def _find_remote(url: str, is_input: IsInput) -> list[FoundFile]:
    place = locate(url)
    kind, _ = place.kind_and_size()
    with failures_as_os_errors():
        if kind is FileType.Directory:
            levels = place.listing.walk(place.path, on_error="raise")
            paths, error = sorted(_readable(levels, is_input)), _empty_folder(url)
        elif kind is FileType.NotFound and is_pattern(place.path):
            matches = place.listing.glob(place.path, detail=True)
            paths = sorted(
                path
                for path, found in matches.items()
                if found["type"] == "file" and _is_wanted(path, place.path)
            )
            error = _no_match(url)
        else:
            return [FoundFile(path=url, remote=place)]
    if not paths:
        raise error
    return [FoundFile(path=file.url, remote=file) for file in map(place.at, paths)]


def _walk_local(folder: str, above: tuple[Path, ...] = ()) -> Iterator[Level]:
    """Walk through a folder and those that are linked into it."""
    real = Path(folder).resolve()
    if real in above:  # a link that leads back
        return
    with os.scandir(folder) as entries:
        is_folder = {entry.name: entry.is_dir() for entry in entries}
    folders = [name for name in is_folder if is_folder[name]]
    yield folder, folders, [name for name in is_folder if not is_folder[name]]
    for name in folders:
        yield from _walk_local(_join(folder, name), (*above, real))


def _readable(levels: Iterable[Level], is_input: IsInput) -> Iterator[str]:
    """Yield the files of a walk that are inputs, and keep it out of folders that are none."""
    for folder, folders, files in levels:
        siblings = {*folders, *files}
        folders[:] = [name for name in folders if not _is_skipped(name, siblings)]
        for name in files:
            if is_input(name) and not _is_skipped(name, siblings):
                yield _join(folder, name)


def _is_skipped(name: str, siblings: Set[str]) -> bool:
    """Return whether a name in a folder is hidden or comes from a job of ours."""
    return (
        name.startswith(_HIDDEN_STARTS)
        or name.endswith((JOURNAL_SUFFIX, SUMMARY_SUFFIX))
        or name + SUMMARY_SUFFIX in siblings
        or name + JOURNAL_SUFFIX in siblings
    )


def _is_wanted(path: str, pattern: str) -> bool:
    """Return whether a match is neither hidden nor kept by a job, unless such files are meant."""
    *folders, name = path.split("/")
    *asked_folders, asked_name = pattern.split("/")
    if any(folder.endswith(JOURNAL_SUFFIX) for folder in {*folders} - {*asked_folders}):
        return False
    if name.endswith(SUMMARY_SUFFIX) and not asked_name.endswith(SUMMARY_SUFFIX):
        return False
    return not name.startswith(_HIDDEN_STARTS) or name[0] == asked_name[:1]


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _local_path(path: str) -> str:
    return unquote(urlsplit(path).path) if "://" in path else path


def _empty_folder(path: str) -> InputError:
    return InputError(
        f"{path} is a folder with nothing to read",
        hint="hidden files, _* and outputs of jobs are skipped; name other files by a pattern: "
        f"'{path.rstrip('/')}/*'",
    )


def _no_match(path: str) -> InputError:
    return InputError(f"{path} matches no file", hint="check the pattern; ** goes into folders")
