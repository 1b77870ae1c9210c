"""Where an output goes: what is refused before anything is loaded, and the names of part files.

Knows paths and file systems, not what is written.
"""

import os
import re
import tempfile
from pathlib import Path

from nanobatch.errors import OutputError
from nanobatch.io.input_source import STDIN
from nanobatch.io.output_shape import settled_shape
from nanobatch.io.writers import OutputFormat, output_format
from nanobatch.job_config import JobConfig

DEFAULT_PART_SUFFIX = ".parquet"
SUCCESS_NAME = "_SUCCESS"
SPOOL_NAME = "stdin.jsonl"
"""File in a journal's folder that keeps standard input."""

_PART_NAME = re.compile(r"part-\d{5,}\.(parquet|(jsonl|ndjson)(\.(gz|zst))?)", re.IGNORECASE)


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part file; a suffix of the folder's name says its format.

    What has other characters than letters is no suffix but a version or a date: `llama-3.1-8b/`.
    """
    suffixes = "".join(folder.suffixes[-2:]) if folder.suffix in (".gz", ".zst") else folder.suffix
    is_word = suffixes.replace(".", "").isalpha()
    return folder / f"part-{number:05d}{suffixes if is_word else DEFAULT_PART_SUFFIX}"


def part_number(path: Path) -> int:
    """Return the number in a part file's name."""
    return int(path.name.partition(".")[0].removeprefix("part-"))


def part_paths(folder: Path) -> list[Path]:
    """Return the part files in a folder, in order of their numbers."""
    parts = [path for path in folder.iterdir() if _PART_NAME.fullmatch(path.name)]
    return sorted(parts, key=part_number)


def is_output_name(name: str) -> bool:
    """Return whether a file of this name in an output folder is one of ours."""
    return name == SUCCESS_NAME or _PART_NAME.fullmatch(name) is not None


def written_format(config: JobConfig) -> OutputFormat:
    """Return the format of a job's output, of its parts where it is a folder.

    Raises:
        OutputError: The suffix is not known.
    """
    if config.writes_to_stdout:
        return OutputFormat.JSONL
    output = Path(config.output)
    return output_format(part_path(output, 0) if config.writes_to_folder else output)


def check_output(config: JobConfig) -> None:
    """Refuse an output that cannot be written or would destroy something.

    Raises:
        OutputError: Says what and why.
    """
    if "://" in config.output:
        raise OutputError(
            f"{config.output} is remote; outputs are local files",
            hint="write to a local file and copy it",
        )
    output = Path(config.output)
    _require_right_kind(config, output)
    settled_shape(config.output_shape, written_format(config))
    try:
        folder = _nearest_existing_parent(output)
    except OSError as error:  # a part of the path is longer than a file system allows
        reason = os.strerror(error.errno or 0)
        raise OutputError(f"cannot write {output}: {reason}", hint="shorten the path") from error
    _require_short_name(config, folder)
    for path in config.inputs:
        if path != STDIN:
            _require_apart(config, Path(path))
    if not folder.is_dir():
        raise OutputError(f"cannot write {output}: {folder} is not a folder")
    try:
        # A folder on a read-only file system can pass os.access as root: try for real.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise OutputError(
            f"cannot write in {folder}: {reason}", hint="choose another folder for the output"
        ) from error


def _require_right_kind(config: JobConfig, output: Path) -> None:
    """Refuse a folder where a file is asked for, and the other way round."""
    if output.name in ("", ".."):
        raise OutputError(
            f"{config.output or 'an empty output'} has no name of its own, which the files beside "
            "it need",
            hint="name a file in it, or a folder: answers.jsonl, answers/",
        )
    try:
        is_folder, is_there = output.is_dir(), output.exists()
    except OSError:  # a name that is too long is refused with its own message
        return
    if config.writes_to_folder and is_there and not is_folder:
        raise OutputError(f"{output} is a file, not a folder", hint="leave out the last /")
    if is_folder and not config.writes_to_folder:
        raise OutputError(
            f"{output} is a folder", hint=f"name a file in it, or write part files: -o {output}/"
        )


def _require_apart(config: JobConfig, path: Path) -> None:
    """Refuse an input that the run would write over: the output or a file beside it."""
    for written in (Path(config.output), config.summary_path):
        if written.exists() and path.exists() and written.samefile(path):
            raise OutputError(f"{written} is an input", hint="choose another output")
    folders = path.resolve().parents
    if config.journal_dir.resolve() in folders:
        raise OutputError(f"{path} lies in the journal of {config.output}", hint="move it")
    if config.writes_to_folder and Path(config.output).resolve() in folders:
        raise OutputError(
            f"{path} lies in {config.output}, which the run writes", hint="choose another output"
        )


def _require_short_name(config: JobConfig, folder: Path) -> None:
    """Refuse a name that leaves no room for the longer ones of the journal and the summary."""
    num_bytes = len(os.fsencode(Path(config.output).name))
    longest = max(len(os.fsencode(path.name)) for path in (config.journal_dir, config.summary_path))
    limit = os.pathconf(folder, "PC_NAME_MAX")
    if 0 < limit < longest:  # otherwise the file system knows no limit
        raise OutputError(
            f"the output's name is {num_bytes} bytes long; at most {limit - longest + num_bytes} "
            "fit beside its journal and summary",
            hint="choose a shorter name",
        )


def _nearest_existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())
