"""Everything about a run that is decided before anything is loaded or written.

Refuses what can be refused: inputs that cannot be read, an output that would destroy something,
a model that is not there, options that contradict each other.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nanobatch.config import ModelConfig
from nanobatch.engine.factory import resolve_max_model_len
from nanobatch.errors import ConfigError, OutputError
from nanobatch.io.input_source import STDIN, InputSource
from nanobatch.io.rows import require_columns
from nanobatch.io.sources import resolve_inputs
from nanobatch.io.writers import output_format
from nanobatch.job.fingerprint import job_fingerprint
from nanobatch.job.sampling import default_sampling
from nanobatch.job_config import JobConfig
from nanobatch.models.source import (
    GenerationDefaults,
    ModelSource,
    read_generation_defaults,
    read_model_config,
    resolve_model,
)
from nanobatch.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A run that may start.

    Attributes:
        config: What was asked for.
        sources: Inputs, opened and sniffed.
        model: Where the model is.
        model_config: What the model is.
        sampling: Parameters of rows that give none.
        fingerprint: What makes another run the same job.
    """

    config: JobConfig
    sources: tuple[InputSource, ...]
    model: ModelSource
    model_config: ModelConfig
    sampling: SamplingParams
    fingerprint: dict[str, object]


def make_plan(config: JobConfig) -> JobPlan:
    """Check a run and return its plan.

    Raises:
        UsageError: The run is refused; nothing was written.
    """
    if not config.writes_to_stdout:
        _check_output(config)
    if config.window_rows < 1:
        raise ConfigError(f"--window-rows is {config.window_rows}; it must be at least 1")
    sources = resolve_inputs(
        config.inputs,
        config.input_format,
        delimiter=config.delimiter,
        spool_path=_spool_path(config),
    )
    require_columns(config.rows, sources)
    _check_selected_columns(config.columns, sources)
    default_sampling(config.sampling, GenerationDefaults())  # before a model may be downloaded
    model = resolve_model(config.engine.model)
    model_config = read_model_config(model)
    resolve_max_model_len(config.engine, model_config)  # refuses what is longer than the context
    return JobPlan(
        config=config,
        sources=sources,
        model=model,
        model_config=model_config,
        sampling=default_sampling(config.sampling, read_generation_defaults(model)),
        fingerprint=job_fingerprint(config, sources, model),
    )


def _spool_path(config: JobConfig) -> Path | None:
    """Return where standard input is kept: beside the journal, nowhere without a journal."""
    return None if config.writes_to_stdout else config.journal_dir / "stdin.jsonl"


def _check_output(config: JobConfig) -> None:
    if "://" in config.output:
        raise OutputError(
            f"{config.output} is remote; outputs are local files",
            hint="write to a local file and copy it",
        )
    output = Path(config.output)
    output_format(output)
    try:
        folder = _nearest_existing_parent(output)
    except OSError as error:  # a part of the path is longer than a file system allows
        reason = os.strerror(error.errno or 0)
        raise OutputError(f"cannot write {output}: {reason}", hint="shorten the path") from error
    _require_short_name(config, folder)
    if output.is_dir():
        raise OutputError(f"{output} is a folder", hint="name a file in it")
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


def _require_apart(config: JobConfig, path: Path) -> None:
    """Refuse an input that the run would write over: the output or a file beside it."""
    for written in (Path(config.output), config.summary_path):
        if written.exists() and path.exists() and written.samefile(path):
            raise OutputError(f"{written} is an input", hint="choose another output")
    if config.journal_dir.resolve() in path.resolve().parents:
        raise OutputError(f"{path} lies in the journal of {config.output}", hint="move it")


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


def _check_selected_columns(columns: Sequence[str] | None, sources: Sequence[InputSource]) -> None:
    """Refuse `--columns` that no input has, where all inputs declare what they have."""
    declared = {name for source in sources for name in source.columns or ()}
    if any(source.columns is None for source in sources):
        return
    for name in columns or ():
        if name not in declared:
            closest = get_close_matches(name, declared, n=1)
            hint = f"did you mean {closest[0]}?" if closest else f"they have {', '.join(declared)}"
            raise ConfigError(f"--columns names {name!r}, which no input has", hint=hint)


def _nearest_existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())
