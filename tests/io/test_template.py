"""Prompt templates: Jinja in a sandbox, null as empty text, undefined names as errors."""

import pytest

from nanobatch.errors import ConfigError
from nanobatch.io.prompt_template import PromptTemplate
from nanobatch.io.row_fault import RowFault


def render(template: str, **columns: object) -> str:
    return PromptTemplate(template).render(columns)


def fault_of(template: str, **columns: object) -> str:
    with pytest.raises(RowFault) as caught:
        render(template, **columns)
    assert caught.value.error.code == "template_error"
    return caught.value.error.message


def test_columns_are_rendered() -> None:
    assert render("{{ a }} {{ b.c }} {{ d[0] }}", a="x", b={"c": 1}, d=[True]) == "x 1 True"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("[{{ a }}]", "[]"),
        ("[{{ a | trim }}]", "[]"),
        ("[{{ a | upper }}]", "[]"),
        ("[{{ b.c }}]", "[]"),
        ("[{{ b.c | upper }}]", "[]"),
        ("[{{ 'a' ~ b.c }}]", "[a]"),
        ("[{{ d | join('+') }}]", "[+x]"),
        ("{{ 'null' if b.c is none else 'text' }}", "null"),
        ("{{ 'null' if a is none else 'text' }}", "null"),
        ("{% if a %}some{% else %}none{% endif %}", "none"),
        ("{{ a or 'default' }}", "default"),
    ],
)
def test_null_renders_as_empty_text(template: str, text: str) -> None:
    assert render(template, a=None, b={"c": None}, d=[None, "x"]) == text


def test_json_text_of_a_null_is_null() -> None:
    assert render("{{ a | tojson }} {{ b | tojson }}", a=None, b=[{"c": None}, ""]) == (
        'null [{"c": null}, ""]'
    )


@pytest.mark.parametrize(
    "template", ["{{ a }}", "{{ b.c }}", "{% if a %}{% endif %}", "{{ row['a'] }}"]
)
def test_an_undefined_name_is_an_error(template: str) -> None:
    assert "UndefinedError" in fault_of(template, b={})


def test_a_column_that_is_no_identifier_is_reached_through_the_row() -> None:
    assert render('{{ row["my text"] }}', **{"my text": "x"}) == "x"
    assert render("{{ row }}", row="a column of that name wins") == "a column of that name wins"


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ a.append(1) }}", "SecurityError"),
        ("{{ range(999999999) | list }}", "OverflowError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ a + 1 }}", "TypeError"),
    ],
)
def test_what_a_sandbox_forbids_and_what_fails_is_a_row_s_error(template: str, error: str) -> None:
    assert fault_of(template, a=[]).startswith(f"template: {error}: ")


@pytest.mark.parametrize(
    "template",
    ["", " \n", "{{ a", "{% if %}", "{{ a | nofilter }}", "{{ a | random }}", "{% include 'x' "],
)
def test_a_template_that_is_not_valid_is_refused_at_start(template: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PromptTemplate(template)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


def test_one_line_end_at_the_end_of_a_template_is_not_part_of_the_prompt() -> None:
    assert render("a\n{{ b }}\n", b="x\n") == "a\nx\n"
    assert render("a\n\n") == "a\n"


def test_surrogates_that_a_template_makes_are_replaced() -> None:
    assert render("{{ '%c' | format(55357) }}") == "\ufffd"


def test_a_template_knows_which_columns_it_takes() -> None:
    template = PromptTemplate("{{ a }}{% for x in b %}{{ x.c }}{% endfor %}")
    assert template.variables == {"a", "b"}
