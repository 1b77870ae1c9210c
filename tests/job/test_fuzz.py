"""Twenty thousand mutated lines among good ones: a row each, no crash, no neighbour lost."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.job.mutated_lines import TEMPLATE, mutated_lines
from tests.job.null_jobs import null_config, read_rows, run_null
from tests.null_model import write_null_model

NUM_MUTATED = 10_000
NUM_GOOD = 1_000
LONG_TEXT = "x" * 3_000
CODES_OF_LINES = {
    *("invalid_json", "invalid_utf8", "not_an_object", "missing_prompt", "empty_prompt"),
    *("bad_type", "bad_params", "template_error", "prompt_too_long", "exceeds_kv_capacity"),
    *("duplicate_id", "unsupported"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("model"))


def good_line(number: int) -> bytes:
    if number % 2:
        return json.dumps({"id": f"good {number}", "prompt": f"the answer of {number}"}).encode()
    messages = [{"role": "user", "content": f"say {number}"}]
    body = {"messages": messages, "max_tokens": 5}
    return json.dumps({"custom_id": f"good {number}", "body": body}).encode()


def is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode()), dict)
    except (ValueError, RecursionError):
        return False


def rows_by_index(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return the samples of each row, in the order of the output."""
    by_index: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_index.setdefault(row["row_index"], []).append(row)
    return by_index


def assert_sound(samples: list[dict[str, Any]], place: str) -> None:
    """Check that a row has its samples in order, or one error that says where it is."""
    assert [row["sample_index"] for row in samples] == list(range(len(samples))), place
    for row in samples:
        if row["status"] == "error":
            assert len(samples) == 1, place
            assert row["error_message"].startswith(place), row
            assert "\n" not in row["error_message"]


def answer(row: dict[str, Any]) -> list[object]:
    names = ("id", "status", "generated_text", "finish_reason", "stop_reason", "completion_tokens")
    return [row[name] for name in names]


def run(model: Path, source: Path, output: Path, **options: Any) -> list[dict[str, Any]]:
    config = null_config(
        model,
        source,
        output,
        sampling={"temperature": 0.0, "max_tokens": 4},
        output_shape="flat",
        engine={"chat_template": TEMPLATE, "num_kv_blocks": 100},
        **options,
    )
    assert run_null(config).exit_code in (0, 3)
    return read_rows(output)


@pytest.mark.parametrize(("seed", "suffix"), [(20, ".jsonl"), (26, ".parquet")])
@pytest.mark.slow
def test_mutated_lines_are_a_row_each_and_leave_good_ones_unchanged(
    seed: int, suffix: str, model: Path, tmp_path: Path
) -> None:
    random = Random(seed)
    print(f"seed {seed}")
    mutated = list(mutated_lines(random, NUM_MUTATED))
    assert sum(map(is_object, mutated)) >= NUM_MUTATED / 2
    lines = [(line, False) for line in mutated]
    lines += [(good_line(number), True) for number in range(NUM_GOOD)]
    random.shuffle(lines)
    source = tmp_path / "mixed.jsonl"
    source.write_bytes(b"\n".join(line for line, _ in lines))
    rows = rows_by_index(run(model, source, tmp_path / f"mixed.out{suffix}"))
    assert list(rows) == list(range(len(lines)))
    for place, samples in rows.items():
        assert_sound(samples, f"{source}:{place + 1}: ")
    codes = {row["error_code"] for samples in rows.values() for row in samples}
    assert codes >= CODES_OF_LINES

    (tmp_path / "good.jsonl").write_bytes(b"\n".join(line for line, is_good in lines if is_good))
    alone = run(model, tmp_path / "good.jsonl", tmp_path / "good.out.jsonl")
    kept = [rows[place][0] for place, (_, is_good) in enumerate(lines) if is_good]
    assert list(map(answer, kept)) == list(map(answer, alone))


@pytest.mark.slow
def test_mutated_csv_rows_are_a_row_each_and_leave_good_ones_unchanged(
    model: Path, tmp_path: Path
) -> None:
    random = Random(3)
    rows_are = {"prompt_column": "question"}
    pieces = (
        "",
        ",",
        ",,",
        " ",
        "\x00",
        "nobody",
        "\u2028",
        "1e400",
        "{{",
        "caf\u00e9",
        "x" * 3_000,
    )
    mutated = ["".join(random.choices(pieces, k=4)) for _ in range(1_000)]
    mutated = [line if line.strip() else "," for line in mutated]
    good = [f"say {number},{number}" for number in range(200)]
    lines = [*mutated, *good]
    random.shuffle(lines)
    source = tmp_path / "mixed.csv"
    source.write_text("question,number\n" + "\n".join(lines))
    rows = run(model, source, tmp_path / "out.parquet", rows=rows_are)
    assert [row["row_index"] for row in rows] == list(range(1_200))
    codes = Counter(row["error_code"] for row in rows)
    assert codes.keys() == {None, "bad_row", "empty_prompt", "prompt_too_long"}

    (tmp_path / "good.csv").write_text("question,number\n" + "\n".join(good))
    alone = run(
        model, tmp_path / "good.csv", tmp_path / "g.parquet", rows={"prompt_column": "question"}
    )
    places = {line: place for place, line in enumerate(lines)}
    assert [answer(rows[places[line]]) for line in good] == list(map(answer, alone))
