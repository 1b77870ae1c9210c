"""The sample files are what their README says and what their script writes."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.project.source_tree import ROOT

SAMPLES = ROOT / "sample_data"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_readme_gives_the_number_of_rows_of_every_file() -> None:
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    told = {name: int(rows) for name, rows in re.findall(r"^\| `(\S+)` \| (\d+) \|", readme, re.M)}
    assert told == {
        "prompts.jsonl": len(read_jsonl(SAMPLES / "prompts.jsonl")),
        "openai_batch.jsonl": len(read_jsonl(SAMPLES / "openai_batch.jsonl")),
        "reviews.parquet": pq.read_metadata(SAMPLES / "reviews.parquet").num_rows,
    }


def test_prompts_share_one_system_prompt() -> None:
    rows = read_jsonl(SAMPLES / "prompts.jsonl")
    assert len({row["messages"][0]["content"] for row in rows}) == 1
    assert {tuple(turn["role"] for turn in row["messages"]) for row in rows} == {("system", "user")}


def test_prompts_hold_the_tasks_that_the_readme_lists() -> None:
    rows = read_jsonl(SAMPLES / "prompts.jsonl")
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    told = {task: int(count) for count, task in re.findall(r"\b(\d+) `([a-z]+)`", readme)}
    assert told == Counter(row["task"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({row["messages"][1]["content"] for row in rows}) == len(rows)


def test_batch_lines_speak_to_both_endpoints_under_their_own_ids() -> None:
    lines = read_jsonl(SAMPLES / "openai_batch.jsonl")
    urls = Counter(line["url"] for line in lines)
    assert urls == {"/v1/chat/completions": 12, "/v1/completions": 6}
    assert len({line["custom_id"] for line in lines}) == len(lines)
    assert {tuple(line) for line in lines} == {("custom_id", "method", "url", "body")}


def test_reviews_are_a_table_with_the_columns_of_the_readme() -> None:
    schema = pq.read_schema(SAMPLES / "reviews.parquet")
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "id": "int64",
        "product": "string",
        "rating": "int8",
        "review": "string",
    }


def test_script_writes_the_files_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SAMPLES / "make_samples.py", tmp_path], check=True)
    for name in ("prompts.jsonl", "openai_batch.jsonl"):
        assert (tmp_path / name).read_bytes() == (SAMPLES / name).read_bytes()
    again = pq.read_table(tmp_path / "reviews.parquet")
    assert again.equals(pq.read_table(SAMPLES / "reviews.parquet"))
