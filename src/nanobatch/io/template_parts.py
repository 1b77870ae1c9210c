"""A prompt template taken apart into what could stand in another order.

Knows Jinja's tokens; not what a field's values are. A template with statements (`{% if %}`) is not
taken apart: what belongs together in it is not ours to guess.
"""

import re
from dataclasses import dataclass
from typing import Final

import jinja2

MIN_STATIC_CHARS: Final = 64
"""Characters from which on text without a field is a part of its own; about a block of KV."""

_LINE_OR_SENTENCE_END = re.compile(r"\n|[.!?]\s|[\u3002\uff01\uff1f]")  # also those of Chinese
_NAME_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePart:
    """A piece of a template that moves as a whole.

    Attributes:
        text: Literal text, which of a field is the label before it.
        expression: The field, as it stands between the braces; None for text alone.
    """

    text: str
    expression: str | None = None

    @property
    def name(self) -> str:
        """What to call the part in a message."""
        if self.expression is not None:
            return f"{{{{ {self.expression} }}}}"
        words = " ".join(self.text.split())
        cut = words if len(words) <= _NAME_CHARS else f"{words[:_NAME_CHARS].rstrip()}…"
        return f'the text "{cut}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateParts:
    """A template's parts in their order, and the text that ends it whatever their order is.

    Attributes:
        parts: The parts; each field moves with the line or sentence that leads up to it.
        ending: Short text after the last field, such as `Answer:`.
    """

    parts: tuple[TemplatePart, ...]
    ending: str


def template_parts(template: str) -> TemplateParts | None:
    """Take a template apart; None where it has statements or no field.

    Args:
        template: A valid template; see `PromptTemplate`.
    """
    parts: list[TemplatePart] = []
    text, expression = "", ""
    for _, kind, value in jinja2.Environment(autoescape=True).lex(template):
        if kind == "block_begin":
            return None
        if kind == "data":
            text += value
        elif kind == "variable_begin":
            expression = ""
        elif kind == "variable_end":
            parts += _field(text, expression.strip())
            text = ""
        elif not kind.startswith(("comment", "raw")):
            expression += value
    if not parts:
        return None
    if len(text) >= MIN_STATIC_CHARS:
        return TemplateParts(parts=(*parts, TemplatePart(text=text)), ending="")
    return TemplateParts(parts=tuple(parts), ending=text)


def _field(text: str, expression: str) -> list[TemplatePart]:
    """Return a field with its label, and before it the text that is none."""
    ends = [match.end() for match in _LINE_OR_SENTENCE_END.finditer(text.rstrip())]
    num_static = ends[-1] if ends else 0
    if num_static < MIN_STATIC_CHARS:
        return [TemplatePart(text=text, expression=expression)]
    label = TemplatePart(text=text[num_static:], expression=expression)
    return [TemplatePart(text=text[:num_static]), label]
