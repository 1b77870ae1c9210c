"""Files of prompts as workloads: what `nanobatch run` would give the model."""

import json
from pathlib import Path

import pytest

from nanobatch.bench.prompt_file import prompt_file_workload
from nanobatch.bench.workloads import Workload
from nanobatch.errors import InputError
from nanobatch.job_config import RowConfig
from nanobatch.models.source import resolve_model
from tests.null_model import write_null_model


def workload_of(
    tmp_path: Path, rows: list[object], *, limit: int | None = None, **config: object
) -> Workload:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = resolve_model(str(write_null_model(tmp_path / "model")))
    return prompt_file_workload(
        str(source),
        model,
        rows=RowConfig(**config),  # type: ignore[arg-type]
        max_tokens=9,
        limit=limit,
    )


def test_rows_become_token_ids_and_keep_their_lengths(tmp_path: Path) -> None:
    rows = [{"prompt": "abc"}, {"input_ids": [40, 41], "max_tokens": 3}, {"prompt": "never read"}]
    workload = workload_of(tmp_path, rows, limit=2)
    assert workload.name == "in.jsonl"
    assert (len(workload.prompts[0]), workload.prompts[1]) == (3, (40, 41))
    assert workload.output_lens == (9, 3)
    assert workload.temperature == 0.0


def test_a_template_goes_through_the_chat_template(tmp_path: Path) -> None:
    raw = workload_of(tmp_path, [{"text": "x"}], template="{{ text }}", raw=True)
    chat = workload_of(tmp_path, [{"text": "x"}], template="{{ text }}")
    assert len(chat.prompts[0]) > len(raw.prompts[0]) == 1


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([{"prompt": "x"}, {"prompt": ""}], r"in.jsonl:2: "),
        ([], "holds no rows"),
        ([{"messages": [{"role": "user"}]}], r"in.jsonl:1: "),
    ],
)
def test_a_row_that_cannot_be_used_is_named(rows: list[object], error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=error):
        workload_of(tmp_path, rows)
