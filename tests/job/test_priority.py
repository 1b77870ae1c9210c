"""Rows of higher priority go first, as far as the look-ahead window reaches."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.job.null_jobs import null_config, run_null, write_lines


def order_of_completion(
    model: Path,
    folder: Path,
    priorities: list[int | None],
    capfdbinary: pytest.CaptureFixture[bytes],
    **options: Any,
) -> list[int]:
    """Return rows in the order in which they end, one running at a time."""
    rows = [
        {"prompt": f"question {row}", "max_tokens": 1, "priority": priority}
        for row, priority in enumerate(priorities)
    ]
    source = write_lines(folder / "in.jsonl", rows)
    config = null_config(model, source, Path("-"), engine={"max_num_seqs": 1}, **options)
    assert run_null(config).exit_code == 0
    return [json.loads(line)["row_index"] for line in capfdbinary.readouterr().out.splitlines()]


def test_rows_of_higher_priority_are_admitted_first_then_first_come_first_served(
    null_model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    priorities: list[int | None] = [0, -5, 3, None, 3, 2**40]
    assert order_of_completion(null_model, tmp_path, priorities, capfdbinary) == [5, 2, 4, 0, 3, 1]


def test_priority_reaches_no_further_than_the_window(
    null_model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    priorities: list[int | None] = [*[0] * 8, 9]
    order = order_of_completion(null_model, tmp_path, priorities, capfdbinary, window_rows=3)
    # The ninth row comes into sight when six have left the queue, and waits for the one running.
    assert order.index(8) == 6
    assert [row for row in order if row != 8] == list(range(8))
