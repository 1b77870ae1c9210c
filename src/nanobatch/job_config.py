"""Frozen configuration of a job over files. Nothing here is changed after it is made.

`RowConfig` says how a row becomes a request, `JobConfig` what one run of the command line does.
Command-line flags live in `cli`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nanobatch.config import EngineConfig
from nanobatch.errors import ConfigError

InputFormat = Literal["jsonl", "parquet", "csv", "text"]
OutputShape = Literal["flat", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConfig:
    """How a row becomes a request (contract.md, promise 2).

    With `template`, `prompt_column` or `messages_column` the input is a *table*: its columns are
    data, and none is a sampling parameter unless named in `param_columns`. Otherwise each row
    is told apart by itself: OpenAI batch line or flat.

    Attributes:
        template: Jinja text rendered with a row's columns.
        prompt_column: Column that holds the prompt.
        messages_column: Column that holds chat messages.
        id_column: Column that holds the id; None takes `id` where present.
        param_columns: Columns of a table that are sampling parameters.
        system: System turn put before prompts that are user turns.
        raw: Send prompts of templates, columns and text lines as they are.
        strict: An unknown parameter of a batch line's body is an error.
        allow_duplicate_ids: Accept a custom_id that an earlier batch line used.
    """

    template: str | None = None
    prompt_column: str | None = None
    messages_column: str | None = None
    id_column: str | None = None
    param_columns: tuple[str, ...] = ()
    system: str | None = None
    raw: bool = False
    strict: bool = False
    allow_duplicate_ids: bool = False

    def __post_init__(self) -> None:
        sources = [
            flag
            for flag, value in (
                ("--template", self.template),
                ("--prompt-column", self.prompt_column),
                ("--messages-column", self.messages_column),
            )
            if value is not None
        ]
        if len(sources) > 1:
            raise ConfigError(f"{' and '.join(sources)} exclude each other", hint="give one")
        if self.param_columns and not sources:
            raise ConfigError(
                "--param-columns needs a table",
                hint="add --template, --prompt-column or --messages-column",
            )

    @property
    def is_table(self) -> bool:
        """Whether rows are read as a table's columns."""
        sources = (self.template, self.prompt_column, self.messages_column)
        return any(source is not None for source in sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One of the equal parts into which a job's rows are split, in order.

    Attributes:
        index: Which part, from 0.
        num_shards: How many there are.
    """

    index: int
    num_shards: int

    def __post_init__(self) -> None:
        if self.num_shards < 1:
            raise ConfigError(f"{self.num_shards} shards; there must be at least 1")
        if not 0 <= self.index < self.num_shards:
            raise ConfigError(
                f"shard {self.index} of {self.num_shards}; "
                f"shards are numbered from 0 to {self.num_shards - 1}"
            )

    def rows(self, num_rows: int) -> range:
        """Return the shard's rows of a job with so many; sizes differ by one row at most."""
        start = num_rows * self.index // self.num_shards
        return range(start, num_rows * (self.index + 1) // self.num_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """What a run does about an output or a journal that is there already (promise 14).

    Attributes:
        overwrite: Replace the output of another job, or of this one, when the new one is done.
        restart: Discard the journal.
        retry_errors: Run rows again whose record is an error.
        repair_journal: Remove damage in the middle of the journal and run the rest.
    """

    overwrite: bool = False
    restart: bool = False
    retry_errors: bool = False
    repair_journal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """One run of `nanobatch run`.

    Attributes:
        inputs: Input paths in order; `-` is JSONL on standard input.
        output: Output path; `-` is JSONL on standard output, in order of completion.
        input_format: Format of every input; None goes by suffix.
        delimiter: Field separator of CSV inputs.
        rows: How rows become requests.
        engine: How to run the model.
        sampling: Sampling parameters given as flags, by their OpenAI names.
        columns: Pass-through columns to keep; None keeps all.
        include_token_ids: Write the `token_ids` column.
        max_errors: Error rows that still count as success; None is `any`.
        keep_journal: Keep the journal after the output is complete.
        window_rows: Most rows read ahead of the engine.
        window_tokens: Most prompt tokens read ahead of the engine.
        show_progress: Draw the dashboard on a terminal, print lines elsewhere.
        log_interval_s: Seconds between plain progress lines.
        limit: First rows to take; None takes all.
        shard: Part of the rows to take; None takes all.
        output_shape: Flat rows or OpenAI's; None goes by the first row.
        rows_per_part: Rows in each file of an output folder.
        start_over: What to do about an output or a journal that is there already.
        stop_after_s: Seconds after which the run stops in good order; None is never.
        stop_after_errors: Error rows after which the run stops; None is never.
    """

    inputs: tuple[str, ...]
    output: str
    input_format: InputFormat | None = None
    delimiter: str = ","
    rows: RowConfig = field(default_factory=RowConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sampling: Mapping[str, object] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    include_token_ids: bool = False
    max_errors: int | None = 0
    keep_journal: bool = False
    window_rows: int = 1 << 15
    window_tokens: int = 16 << 20
    show_progress: bool = True
    log_interval_s: float = 30.0
    limit: int | None = None
    shard: Shard | None = None
    output_shape: OutputShape | None = None
    rows_per_part: int = 100_000
    start_over: StartOver = field(default_factory=StartOver)
    stop_after_s: float | None = None
    stop_after_errors: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("limit", 0), ("rows_per_part", 1), ("stop_after_errors", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}; it must be at least {low}")
        if self.stop_after_s is not None and not self.stop_after_s > 0:
            raise ConfigError(f"stop_after_s is {self.stop_after_s:g}; it must be above 0")

    @property
    def writes_to_stdout(self) -> bool:
        """Whether results go to standard output, without a journal."""
        return self.output == "-"

    @property
    def writes_to_folder(self) -> bool:
        """Whether the output is a folder of part files."""
        return self.output.endswith("/")

    @property
    def journal_dir(self) -> Path:
        """Folder beside the output that holds what a killed run resumes from."""
        return Path(f"{self._place}.nanobatch")

    @property
    def summary_path(self) -> Path:
        """File beside the output that says what produced it."""
        return Path(f"{self._place}.summary.json")

    @property
    def _place(self) -> str:
        """Where the output really is: under each of its names it has one journal and one lock."""
        path = self.output.rstrip("/")
        is_link = os.path.islink(path)  # noqa: PTH114  (what is too long for a path is no link)
        return os.path.realpath(path) if is_link else path
