"""The hint what another order of a template's fields would let rows share."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from nanobatch.job import template_hint
from nanobatch.job.plan import make_plan
from nanobatch.job.template_hint import TemplateHint, TemplateSample, find_template_hint
from nanobatch.job.validate import validate_job
from nanobatch.job_config import Shard
from tests.job.null_jobs import null_config, read_rows, run_null, write_lines

UNIQUE_FIRST = "Question: {{ question }}\nDocument: {{ document }}\nAnswer:"
DOCUMENT_FIRST = "Document: {{ document }}\nQuestion: {{ question }}\nAnswer:"
NUM_DOCUMENTS, NUM_QUESTIONS = 4, 10
DOCUMENT_CHARS, QUESTION_CHARS = 250, 40


def rows_of_documents() -> list[dict[str, Any]]:
    """Return questions that differ from their first character, each to one of few documents."""
    return [
        {
            "question": f"{chr(0x100 + row)}" * QUESTION_CHARS,
            "document": f"{chr(65 + row % NUM_DOCUMENTS)}" * DOCUMENT_CHARS,
        }
        for row in range(NUM_DOCUMENTS * NUM_QUESTIONS)
    ]


def hint_of(
    model: Path, folder: Path, template: str | None, rows: list[dict[str, Any]], **options: Any
) -> TemplateHint | None:
    source = write_lines(folder / "in.jsonl", rows)
    of_rows = {} if template is None else {"template": template}
    return find_template_hint(
        make_plan(null_config(model, source, Path("-"), rows=of_rows, **options))
    )


def test_what_repeats_is_to_come_first(null_model: Path, tmp_path: Path) -> None:
    hint = hint_of(null_model, tmp_path, UNIQUE_FIRST, rows_of_documents())
    assert hint is not None
    # 250 characters and a label of 11 are 4 blocks of 64, which all questions but one reuse.
    num_chars = 10 + QUESTION_CHARS + 11 + DOCUMENT_CHARS + 8
    num_shared = NUM_DOCUMENTS * (NUM_QUESTIONS - 1) * 4 * 64
    assert hint == TemplateHint(
        names=("{{ question }}", "{{ document }}"),
        order=(1, 0),
        present_fraction=0.0,
        better_fraction=num_shared / (NUM_DOCUMENTS * NUM_QUESTIONS * num_chars),
        num_rows=NUM_DOCUMENTS * NUM_QUESTIONS,
    )
    assert hint.text == (
        "with {{ document }} before {{ question }}, rows would share about 72 % of the template's "
        "text instead of 0 % (first 40 rows, in characters): put what repeats most first"
    )


def test_a_good_order_gets_no_hint(null_model: Path, tmp_path: Path) -> None:
    assert hint_of(null_model, tmp_path, DOCUMENT_FIRST, rows_of_documents()) is None


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ document }}",
        "{% if question %}{{ question }}{% endif %}{{ document }}",
        "{{ question }}{{ nothing }}{{ document }}",
    ],
)
def test_where_nothing_can_move_there_is_no_hint(
    template: str | None, null_model: Path, tmp_path: Path
) -> None:
    rows = rows_of_documents() if template else [{"prompt": "x" * 100}] * 5
    assert hint_of(null_model, tmp_path, template, rows) is None


def test_instructions_behind_the_data_are_text_that_can_move(
    null_model: Path, tmp_path: Path
) -> None:
    instructions = "Say in one word whether the review above is positive or negative. " * 4
    hint = hint_of(null_model, tmp_path, f"{{{{ question }}}}\n{instructions}", rows_of_documents())
    assert hint is not None
    moved = 'the text "Say in one word whether the revi…"'
    assert hint.text.startswith(f"with {moved} before {{{{ question }}}}, rows would share")


@pytest.mark.parametrize(("num_chars", "has_hint"), [(300, True), (5_000, False)])
def test_a_small_gain_is_not_worth_a_hint(
    num_chars: int, has_hint: bool, null_model: Path, tmp_path: Path
) -> None:
    rows = [{**row, "question": row["question"] * (num_chars // 40)} for row in rows_of_documents()]
    hint = hint_of(null_model, tmp_path, UNIQUE_FIRST, rows)
    assert (hint is not None) == has_hint


def test_if_more_moves_the_whole_order_is_said() -> None:
    hint = TemplateHint(
        names=("a", "b", "c", "a"),
        order=(2, 3, 0, 1),
        present_fraction=0.031,
        better_fraction=0.786,
        num_rows=2_048,
    )
    assert hint.text.startswith("with the order c, a, a, b, rows would share about 79 % of")
    assert "instead of 3 % (first 2,048 rows, in characters)" in hint.text


def test_rows_that_cannot_be_rendered_are_left_out(null_model: Path, tmp_path: Path) -> None:
    rows = rows_of_documents()
    broken = [rows[0], {"question": "alone"}, *rows[1:]]
    whole = hint_of(null_model, tmp_path, UNIQUE_FIRST, rows)
    assert hint_of(null_model, tmp_path, UNIQUE_FIRST, broken) == whole is not None


def test_only_the_first_rows_of_the_inputs_are_read(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of_documents()
    for options, num_rows in (
        ({}, 40),
        ({"limit": 12}, 12),
        ({"shard": Shard(index=0, num_shards=2)}, 20),
        ({"shard": Shard(index=1, num_shards=2)}, 40),
    ):
        hint = hint_of(null_model, tmp_path, UNIQUE_FIRST, rows, **options)
        assert hint is not None
        assert hint.num_rows == num_rows
    monkeypatch.setattr(template_hint, "SAMPLE_ROWS", 15)
    hint = hint_of(null_model, tmp_path, UNIQUE_FIRST, rows)
    assert hint is not None
    assert hint.num_rows == 15


def test_a_sample_is_bounded_in_characters(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row has 10 + 40 + 11 + 250 characters.
    monkeypatch.setattr(template_hint, "SAMPLE_CHARS", 10 * 311)
    hint = hint_of(null_model, tmp_path, UNIQUE_FIRST, rows_of_documents())
    assert hint is not None
    assert hint.num_rows == 10
    assert TemplateSample(None).is_full
    assert not TemplateSample(UNIQUE_FIRST).is_full


def test_a_pipe_is_left_to_the_run(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as stdin, os.fdopen(theirs, "w") as pipe:
        pipe.write("".join(json.dumps(row) + "\n" for row in rows_of_documents()[:20]))
        pipe.flush()
        monkeypatch.setattr("sys.stdin", stdin)
        rows = {"template": UNIQUE_FIRST}
        config = null_config(null_model, Path("-"), tmp_path / "out.jsonl", rows=rows)
        assert find_template_hint(make_plan(config)) is None
        assert len(os.read(ours, 1 << 16).splitlines()) == 20


def test_a_run_says_it_once_and_changes_no_prompt(
    null_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_lines(tmp_path / "in.jsonl", rows_of_documents())
    answers = []
    for template, num_hints in ((UNIQUE_FIRST, 1), (DOCUMENT_FIRST, 0)):
        output = tmp_path / f"out-{num_hints}.jsonl"
        config = null_config(null_model, source, output, rows={"template": template})
        with caplog.at_level(logging.INFO):
            caplog.clear()
            run_null(config)
        hints = [line for line in caplog.messages if line.startswith("hint: with {{ document }}")]
        assert len(hints) == num_hints
        answers.append([row["prompt_tokens"] for row in read_rows(output)])
    assert answers[0] == answers[1]


def test_validate_finds_the_same_hint(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", rows_of_documents())
    config = null_config(null_model, source, Path("-"), rows={"template": UNIQUE_FIRST})
    report = validate_job(config, on_error=lambda _place, _error: None)
    assert report.template_hint == find_template_hint(make_plan(config)) is not None
