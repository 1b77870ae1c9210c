"""Templates taken apart: fields with what leads up to them, text that stands for itself."""

import pytest

from nanobatch.io.prompt_template import PromptTemplate
from nanobatch.io.template_parts import TemplatePart, template_parts

LONG = "Read the document below with care and answer only from what it says. "
ROW = {"question": "Who?", "document": "A text.", "language": "English"}


def pairs(template: str) -> list[tuple[str, str | None]]:
    parts = template_parts(template)
    assert parts is not None
    return [(part.text, part.expression) for part in parts.parts]


def ending(template: str) -> str:
    parts = template_parts(template)
    assert parts is not None
    return parts.ending


def test_a_field_moves_with_its_label() -> None:
    template = "Question: {{ question }}\nDocument:\n{{document|upper}}\nAnswer:"
    assert pairs(template) == [
        ("Question: ", "question"),
        ("\nDocument:\n", "document|upper"),
    ]
    assert ending(template) == "\nAnswer:"


@pytest.mark.parametrize(
    ("text", "static", "label"),
    [
        (f"{LONG}Question: ", LONG, "Question: "),
        (f"{LONG}\nQuestion:\n\n", f"{LONG}\n", "Question:\n\n"),
        ("\u6307" * 70 + "\u3002\u554f", "\u6307" * 70 + "\u3002", "\u554f"),
    ],
)
def test_long_text_before_a_label_stands_for_itself(text: str, static: str, label: str) -> None:
    assert pairs(f"{text}{{{{ question }}}}") == [(static, None), (label, "question")]


def test_short_text_and_a_long_line_of_one_sentence_stay_with_their_field() -> None:
    assert pairs("Be brief. Question: {{ question }}") == [("Be brief. Question: ", "question")]
    line = "word " * 40
    assert pairs(f"{line}{{{{ question }}}}") == [(line, "question")]


def test_long_text_at_the_end_can_move() -> None:
    template = f"{{{{ document }}}}\n\n{LONG}"
    assert pairs(template) == [("", "document"), (f"\n\n{LONG}", None)]
    assert ending(template) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{% if language %}{{ language }}{% endif %}{{ document }}",
        "{{ document }}{% for word in document %}{{ word }}{% endfor %}",
        "only text",
    ],
)
def test_what_is_not_plain_is_not_taken_apart(template: str) -> None:
    assert template_parts(template) is None


@pytest.mark.parametrize(
    "template",
    [
        "Question: {{ question }}\nDocument: {{ document }}\n",
        LONG * 2 + "\n{{ language }}: {{ question }}{# a note #} {{ document }}" + LONG,
        "{% raw %}{{ braces }}{% endraw %} {{ question }} {{ document }}",
        "a  {{- question -}}  b  {{ document | replace('{{', '}}') }} {{ {'a': {'b': 1}}['a'] }}",
        '{{ row["question"] }}{{ question ~ " " ~ document }}',
    ],
)
def test_the_parts_in_their_order_are_the_template(template: str) -> None:
    parts = template_parts(template)
    assert parts is not None
    rendered = [
        part.text
        + (
            ""
            if part.expression is None
            else PromptTemplate(f"{{{{ {part.expression} }}}}").render(ROW)
        )
        for part in parts.parts
    ]
    assert "".join([*rendered, parts.ending]) == PromptTemplate(template).render(ROW)


def test_parts_are_named_as_in_the_template() -> None:
    assert TemplatePart(text="x", expression="a | upper").name == "{{ a | upper }}"
    assert TemplatePart(text="Be  brief.\n").name == 'the text "Be brief."'
    assert TemplatePart(text=LONG).name == 'the text "Read the document below with car…"'
