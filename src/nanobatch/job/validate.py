"""A dry run: every row read, checked, rendered and counted, and no weights loaded."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from nanobatch.engine.factory import eos_token_ids, load_tokenizer, resolve_max_model_len
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.tokenizer import TokenIds, Tokenizer
from nanobatch.io.duplicate_ids import DuplicateIds
from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.job.feeder import PORTION_ROWS, parse_row
from nanobatch.job.plan import JobPlan, make_plan
from nanobatch.job.sharing_counter import SharingCounter
from nanobatch.job.sharing_report import SharingReport
from nanobatch.job.template_hint import TemplateHint, TemplateSample
from nanobatch.job_config import JobConfig
from nanobatch.request import Request, RowError, SamplingParams

OnError = Callable[[str, RowError], None]


@dataclass(slots=True, kw_only=True)
class ValidationReport:
    """What a dry run found.

    Attributes:
        num_rows: Rows of the inputs.
        num_errors: Rows that would be error rows.
        prompt_lengths: Number of rows by prompt tokens.
        sharing: What the prompts of good rows share; None where there are none.
        template_hint: What another order of the template's fields would share; None without one.
        first_prompt: The first prompt as the model would see it.
        unknown_parameters: Parameters of batch lines that nanobatch does not know.
    """

    num_rows: int = 0
    num_errors: int = 0
    prompt_lengths: Counter[int] = field(default_factory=Counter)
    sharing: SharingReport | None = None
    template_hint: TemplateHint | None = None
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
    sample = TemplateSample(config.rows.template)
    for rows in _portions(iter_rows(plan.sources)):
        checker.check([(row, parse_row(row, parser, duplicate_ids)) for row in rows])
        sample.add(rows)
    report = checker.finished_report()
    report.template_hint = sample.hint()
    report.unknown_parameters = tuple(sorted(parser.unknown_parameters))
    return report


class _RowChecker:
    """Renders and measures rows a portion at a time."""

    def __init__(self, plan: JobPlan, tokenizer: Tokenizer, on_error: OnError) -> None:
        self.report = ValidationReport()
        self._tokenizer = tokenizer
        self._on_error = on_error
        self._prior_output_tokens = plan.config.engine.prior_output_tokens
        self._sharing = _sharing_counter(plan.config)
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

    def finished_report(self) -> ValidationReport:
        """Return the report, after the last row."""
        if self.report.num_rows > self.report.num_errors:
            self.report.sharing = self._sharing.report()
        return self.report

    def _refuse(self, row: InputRow, error: RowError) -> None:
        self.report.num_errors += 1
        self._on_error(row.location, error)

    def _accept(self, request: Request, token_ids: TokenIds, *, is_cut: bool) -> None:
        if self.report.first_prompt is None:
            self.report.first_prompt = self._rendered(request, token_ids, is_cut=is_cut)
        self.report.prompt_lengths[len(token_ids)] += 1
        num_steps = max(0, self._expected_tokens(request.params, len(token_ids)) - 1)
        self._sharing.add(token_ids, num_samples=request.params.n, num_decode_steps=num_steps)

    def _expected_tokens(self, params: SamplingParams, num_prompt_tokens: int) -> int:
        """Return how long an answer is taken to be, as the engine does before any has ended.

        The first of its tokens comes of the prefill, each other one of a decode step. The length is
        known where the end-of-sequence token is ignored.
        """
        max_tokens = self._limits.max_tokens(params, num_prompt_tokens)
        if params.ignore_eos:
            return max_tokens
        return min(max_tokens, max(self._prior_output_tokens, params.min_tokens))

    def _rendered(self, request: Request, token_ids: TokenIds, *, is_cut: bool) -> str:
        if is_cut or request.input_ids is not None:
            return self._tokenizer.decode(token_ids.tolist())
        rendered = self._tokenizer.render(request)
        assert isinstance(rendered, str), "an accepted row has been rendered before"
        return rendered


def _sharing_counter(config: JobConfig) -> SharingCounter:
    engine = config.engine
    return SharingCounter(
        block_size=engine.block_size,
        window_rows=config.window_rows,
        window_tokens=config.window_tokens,
        # As many as run at once on any device, if the memory is there.
        num_running_seqs=engine.step_sizes("cpu").max_num_seqs,
        num_output_tokens=engine.prior_output_tokens,
    )


def _portions(rows: Iterable[InputRow]) -> Iterator[list[InputRow]]:
    iterator = iter(rows)
    while portion := list(islice(iterator, PORTION_ROWS)):
        yield portion
