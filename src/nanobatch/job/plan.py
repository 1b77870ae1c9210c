"""Everything about a run that is decided before anything is loaded or written.

Refuses what can be refused: inputs that cannot be read, an output that would destroy something,
a model that is not there, options that contradict each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nanobatch.config import ModelConfig
from nanobatch.engine.factory import resolve_max_model_len
from nanobatch.errors import ConfigError
from nanobatch.io.column_checks import require_columns
from nanobatch.io.input_source import InputSource
from nanobatch.io.sources import resolve_inputs
from nanobatch.job.fingerprint import job_fingerprint
from nanobatch.job.job_rows import find_job_rows
from nanobatch.job.output_place import SPOOL_NAME, check_output, part_paths
from nanobatch.job.output_plan import OutputPlan
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
class JobPlan(OutputPlan):
    """A run that may start.

    Attributes:
        model: Where the model is.
        model_config: What the model is.
        sampling: Parameters of rows that give none.
    """

    model: ModelSource
    model_config: ModelConfig
    sampling: SamplingParams

    def output_files(self) -> list[Path]:
        """Return the files of an output that exists, in order of their rows."""
        output = Path(self.config.output)
        return part_paths(output) if output.is_dir() else [output]


def make_plan(config: JobConfig) -> JobPlan:
    """Check a run and return its plan.

    Raises:
        UsageError: The run is refused; nothing was written.
    """
    if not config.writes_to_stdout:
        check_output(config)
    if config.window_rows < 1:
        raise ConfigError(f"--window-rows is {config.window_rows}; it must be at least 1")
    sources = resolve_inputs(
        config.inputs,
        config.input_format,
        delimiter=config.delimiter,
        spool_path=_spool_path(config),
        output=None if config.writes_to_stdout else Path(config.output),
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
        model_name=model.name,
        model_config=model_config,
        sampling=default_sampling(config.sampling, read_generation_defaults(model)),
        fingerprint=job_fingerprint(config, sources, model),
        rows=find_job_rows(config, sources),
    )


def _spool_path(config: JobConfig) -> Path | None:
    """Return where standard input is kept: beside the journal, nowhere without a journal."""
    return None if config.writes_to_stdout else config.journal_dir / SPOOL_NAME


def _check_selected_columns(columns: Sequence[str] | None, sources: Sequence[InputSource]) -> None:
    """Refuse `--columns` that no input has, where all inputs declare what they have."""
    declared = dict.fromkeys(name for source in sources for name in source.columns or ())
    if any(source.columns is None for source in sources):
        return
    for name in columns or ():
        if name not in declared:
            closest = get_close_matches(name, declared, n=1)
            hint = f"did you mean {closest[0]}?" if closest else f"they have {', '.join(declared)}"
            raise ConfigError(f"--columns names {name!r}, which no input has", hint=hint)
