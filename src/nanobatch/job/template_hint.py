"""What another order of a template's fields would let rows share.

Rows share beginnings, so what repeats should come first: of `Question: {{ question }} Document:
{{ document }}` two rows share nothing, of `Document: {{ document }} Question: {{ question }}` all
rows with the same document share it. Prompts are never changed; this is a hint to who wrote them.

Nor does a template change the order of rows. The prefix tree of the look-ahead brings rows together
whose *prompts* begin alike, and with that all rows whose leading fields are equal. Sorting rows by
columns could add nothing to it: a column that is not at the beginning of the prompt shares no
beginning, however often its values repeat, and one that is there is found by its tokens. Only rows
beyond the look-ahead could gain, by reading the inputs in another order. That needs a pass over the
whole input first, which a run never takes; `nanobatch validate` says when a file should be sorted.

Works on a bounded sample, the first rows, and in characters, without a tokenizer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nanobatch.errors import InputReadError
from nanobatch.io.input_row import InputRow
from nanobatch.io.prompt_template import PromptTemplate
from nanobatch.io.readers import iter_rows
from nanobatch.io.row_fault import RowFault
from nanobatch.io.template_parts import TemplatePart, template_parts
from nanobatch.job.plan import JobPlan
from nanobatch.job.template_order import Order, RankedTexts, best_order, shared_chars
from nanobatch.request import RowError

SAMPLE_ROWS: Final = 2048
SAMPLE_CHARS: Final = 8 << 20
"""Characters after which no further row is taken."""

MIN_GAIN: Final = 0.1
"""Share of the text that another order must share in addition to be worth a hint."""

NEARLY: Final = 0.01
"""Share of the text by which an order may miss the best one and still be preferred to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateHint:
    """Another order of a template's parts, and what it would share.

    Attributes:
        names: Names of the parts as they are.
        order: Places of the parts in the other order.
        present_fraction: Share of the sample's text in blocks that an earlier row begins with too,
            as the template is.
        better_fraction: The same in the other order.
        num_rows: Rows of the sample.
    """

    names: tuple[str, ...]
    order: Order
    present_fraction: float
    better_fraction: float
    num_rows: int

    @property
    def text(self) -> str:
        """The hint in one line."""
        better, present = 100 * self.better_fraction, 100 * self.present_fraction
        return (
            f"with {self._change()}, rows would share about {better:.0f} % of the "
            f"template's text instead of {present:.0f} % "
            f"(first {self.num_rows:,} rows, in characters): put what repeats most first"
        )

    def _change(self) -> str:
        """Say what is moved; if that is more than one part, the whole order."""
        first, moved = next((place, part) for place, part in enumerate(self.order) if place != part)
        rest = [part for part in range(len(self.order)) if part != moved]
        if (*rest[:first], moved, *rest[first:]) == self.order:
            return f"{self.names[moved]} before {self.names[first]}"
        return f"the order {', '.join(self.names[part] for part in self.order)}"


class TemplateSample:
    """The first rows of a job, as a template's parts render them.

    Args:
        template: The job's template; None samples nothing.
    """

    def __init__(self, template: str | None) -> None:
        self._parts = None if template is None else template_parts(template)
        parts = () if self._parts is None else self._parts.parts
        self._renderers = [_renderer(part) for part in parts]
        self._rows: list[list[str]] = []
        self._num_chars = 0

    @property
    def is_full(self) -> bool:
        """Whether further rows are not taken; so from the start where no order can be better."""
        is_large = len(self._rows) >= SAMPLE_ROWS or self._num_chars >= SAMPLE_CHARS
        return len(self._renderers) < 2 or is_large

    def add(self, rows: Iterable[InputRow]) -> None:
        """Take rows until the sample is full; those that cannot be rendered are left out."""
        for row in rows:
            if self.is_full:
                return
            fields = row.fields()
            if isinstance(fields, RowError):
                continue
            try:
                texts = [label + part.render(fields) for label, part in self._renderers]
            except RowFault:
                continue
            self._rows.append(texts)
            self._num_chars += sum(map(len, texts))

    def hint(self) -> TemplateHint | None:
        """Return an order that would let rows share much more, or None."""
        if self._parts is None or len(self._rows) < 2 or len(self._renderers) < 2:
            return None
        texts = [RankedTexts(values) for values in zip(*self._rows, strict=True)]
        num_chars = self._num_chars + len(self._rows) * len(self._parts.ending)
        present, better = tuple(range(len(texts))), best_order(texts, NEARLY * num_chars)
        shared = {order: shared_chars(order, texts) / num_chars for order in (present, better)}
        if shared[better] - shared[present] < MIN_GAIN:
            return None
        return TemplateHint(
            names=tuple(part.name for part in self._parts.parts),
            order=better,
            present_fraction=shared[present],
            better_fraction=shared[better],
            num_rows=len(self._rows),
        )


def find_template_hint(plan: JobPlan) -> TemplateHint | None:
    """Return the hint for a run that begins, in a fraction of a second.

    It looks at the first rows of the inputs, also for a shard, whose own may be far into them. Rows
    of a pipe may not be there yet, those of a store are far: they are not read twice.
    """
    sample = TemplateSample(plan.config.rows.template)
    is_near = all(source.spool is None and source.remote is None for source in plan.sources)
    if not is_near or sample.is_full:
        return None
    num_rows = SAMPLE_ROWS if plan.rows.stop is None else min(SAMPLE_ROWS, plan.rows.stop)
    try:
        sample.add(iter_rows(plan.sources, stop=num_rows))
    except InputReadError:
        return None  # whoever reads the rows to answer them says so
    return sample.hint()


def _renderer(part: TemplatePart) -> tuple[str, PromptTemplate]:
    field = "{{ '' }}" if part.expression is None else f"{{{{ {part.expression} }}}}"
    return part.text, PromptTemplate(field)
