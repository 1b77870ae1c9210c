"""A dry run: every row read, checked, rendered and counted, and no weights loaded."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import xxhash

from nanobatch.engine.factory import eos_token_ids, load_tokenizer, resolve_max_model_len
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.tokenizer import TokenIds, Tokenizer
from nanobatch.io.duplicate_ids import DuplicateIds
from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.job.feeder import PORTION_ROWS, parse_row
from nanobatch.job.plan import JobPlan, make_plan
from nanobatch.job_config import JobConfig
from nanobatch.request import Request, RowError

MAX_KNOWN_BLOCKS = 1_000_000
"""Blocks of which prefix sharing is counted; about 100 MB. Later rows are compared with these."""

OnError = Callable[[str, RowError], None]


@dataclass(slots=True, kw_only=True)
class ValidationReport:
    """What a dry run found.

    Attributes:
        num_rows: Rows of the inputs.
        num_errors: Rows that would be error rows.
        prompt_lengths: Number of rows by prompt tokens.
        num_shared_tokens: Prompt tokens in full blocks that an earlier row begins with too.
        first_prompt: The first prompt as the model would see it.
        unknown_parameters: Parameters of batch lines that nanobatch does not know.
    """

    num_rows: int = 0
    num_errors: int = 0
    prompt_lengths: Counter[int] = field(default_factory=Counter)
    num_shared_tokens: int = 0
    first_prompt: str | None = None
    unknown_parameters: tuple[str, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all good rows."""
        return sum(length * count for length, count in self.prompt_lengths.items())


def validate_job(config: JobConfig, *, on_error: OnError) -> ValidationReport:
    """Check every row of a job.

    Args:
        config: The job; its output is not touched.
        on_error: Called with `file:line` and the error of every bad row, in order.

    Raises:
        NanobatchError: The job as a whole would be refused.
    """
    plan = make_plan(config)
    tokenizer = load_tokenizer(config.engine, plan.model)
    parser = RowParser(config.rows, plan.sampling, vocab_size=plan.model_config.vocab_size)
    checker = _RowChecker(plan, tokenizer, on_error)
    duplicate_ids = None if config.rows.allow_duplicate_ids else DuplicateIds()
    for rows in _portions(iter_rows(plan.sources)):
        checker.check([(row, parse_row(row, parser, duplicate_ids)) for row in rows])
    checker.report.unknown_parameters = tuple(sorted(parser.unknown_parameters))
    return checker.report


class _RowChecker:
    """Renders and measures rows a portion at a time."""

    def __init__(self, plan: JobPlan, tokenizer: Tokenizer, on_error: OnError) -> None:
        self.report = ValidationReport()
        self._tokenizer = tokenizer
        self._on_error = on_error
        self._sharing = _PrefixSharing(plan.config.engine.block_size)
        max_model_len = resolve_max_model_len(plan.config.engine, plan.model_config)
        self._limits = EngineLimits(
            max_model_len=max_model_len,
            kv_capacity_tokens=2 * max_model_len,  # unknown without a device: never the bound
            vocab_size=plan.model_config.vocab_size,
            eos_token_ids=eos_token_ids(
                plan.model, tokenizer, vocab_size=plan.model_config.vocab_size
            ),
            long_prompts=plan.config.engine.long_prompts,
            bos_token_id=tokenizer.bos_token_id,
        )

    def check(self, rows: list[tuple[InputRow, Request | RowError]]) -> None:
        """Add rows to the report, in order."""
        requests = [parsed for _, parsed in rows if isinstance(parsed, Request)]
        encoded = iter(
            self._tokenizer.encode_requests(
                requests, max_num_tokens=self._limits.max_encoded_tokens
            )
        )
        for row, parsed in rows:
            self.report.num_rows += 1
            if isinstance(parsed, RowError):
                self._refuse(row, parsed)
                continue
            token_ids = next(encoded)
            if isinstance(token_ids, RowError):
                self._refuse(row, token_ids)
                continue
            prompt = self._limits.fitted(parsed.params, token_ids)
            error = self._limits.check(parsed, prompt)
            if error is not None:
                self._refuse(row, error)
            else:
                self._accept(parsed, prompt, is_cut=len(prompt) < len(token_ids))

    def _refuse(self, row: InputRow, error: RowError) -> None:
        self.report.num_errors += 1
        self._on_error(row.location, error)

    def _accept(self, request: Request, token_ids: TokenIds, *, is_cut: bool) -> None:
        if self.report.first_prompt is None:
            self.report.first_prompt = self._rendered(request, token_ids, is_cut=is_cut)
        self.report.prompt_lengths[len(token_ids)] += 1
        self.report.num_shared_tokens += self._sharing.add(token_ids)

    def _rendered(self, request: Request, token_ids: TokenIds, *, is_cut: bool) -> str:
        if is_cut or request.input_ids is not None:
            return self._tokenizer.decode(token_ids.tolist())
        rendered = self._tokenizer.render(request)
        assert isinstance(rendered, str), "an accepted row has been rendered before"
        return rendered


class _PrefixSharing:
    """Counts prompt tokens in full blocks that an earlier prompt begins with too."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._known: set[int] = set()

    def add(self, token_ids: TokenIds) -> int:
        """Return how many of a prompt's tokens were shared, and remember its blocks."""
        num_shared = 0
        parent = 0
        is_shared = True
        for start in range(0, len(token_ids) - self._block_size + 1, self._block_size):
            block = token_ids[start : start + self._block_size].tobytes()
            parent = xxhash.xxh3_64_intdigest(block, seed=parent)
            is_shared = is_shared and parent in self._known
            if is_shared:
                num_shared += self._block_size
            elif len(self._known) < MAX_KNOWN_BLOCKS:
                self._known.add(parent)
        return num_shared


def _portions(rows: Iterable[InputRow]) -> Iterator[list[InputRow]]:
    iterator = iter(rows)
    while portion := list(islice(iterator, PORTION_ROWS)):
        yield portion
