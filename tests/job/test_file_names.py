"""File names are bytes: those that are no UTF-8 name inputs and outputs like any other."""

import dataclasses
import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import OutputError
from nanobatch.job.lock import output_lock
from nanobatch.job_config import StartOver
from tests.job.null_jobs import null_config, run_null, write_lines

ROWS = [{"id": "a", "prompt": "the answer"}, {"id": "b", "prompt": ""}]
NAME = os.fsdecode(b"r\xfccksicht-\xe9")
"""Latin-1, as a disk from another decade has it."""


def write_input(path: Path) -> Path:
    """Write the rows in the format that a path's suffix says."""
    if path.suffix == ".parquet":
        with path.open("wb") as file:
            pq.write_table(pa.Table.from_pylist(ROWS), file)
    elif path.suffix == ".csv":
        path.write_text("id,prompt\na,the answer\nb,\n")
    else:
        plain = write_lines(path.with_name("plain.jsonl"), ROWS).read_bytes()
        path.write_bytes(gzip.compress(plain) if path.suffix == ".gz" else plain)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet", ".csv"])
def test_an_input_s_name_need_not_be_utf_8(null_model: Path, tmp_path: Path, suffix: str) -> None:
    source = write_input(tmp_path / f"{NAME}{suffix}")
    table = {"prompt_column": "prompt", "raw": True} if suffix == ".csv" else {}
    config = null_config(null_model, source, tmp_path / "out.parquet", rows=table)
    assert run_null(config).exit_code == 3
    messages = pq.read_table(config.output)["error_message"].to_pylist()
    assert messages[0] is None
    assert "r\ufffdcksicht-\ufffd" in messages[1]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet", "/"])
def test_an_output_s_name_need_not_be_utf_8(null_model: Path, tmp_path: Path, suffix: str) -> None:
    source = write_lines(tmp_path / "in.jsonl", ROWS)
    output = tmp_path / f"{NAME}{suffix}"
    config = dataclasses.replace(
        null_config(null_model, source, output), output=f"{tmp_path}/{NAME}{suffix}"
    )
    assert run_null(config).exit_code == 3
    assert run_null(config).stats is None  # it finds its own output
    retried = run_null(dataclasses.replace(config, start_over=StartOver(retry_errors=True)))
    assert retried.stats is not None
    assert retried.stats.num_rows_resumed == 1
    assert output.exists()


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_output_and_a_link_to_it_have_one_journal(
    null_model: Path, tmp_path: Path, slash: str
) -> None:
    """Else two runs could write it at once, and neither would know what the other had done."""
    source = write_lines(tmp_path / "in.jsonl", ROWS)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "link.jsonl").symlink_to("scratch/real.jsonl")
    config = null_config(null_model, source, tmp_path)
    by_link, by_name = (
        dataclasses.replace(config, output=f"{tmp_path}/{name}{slash}")
        for name in ("link.jsonl", "scratch/real.jsonl")
    )
    with (
        output_lock(by_name.journal_dir),
        pytest.raises(OutputError, match="another run writes to"),
    ):
        run_null(by_link)
    assert run_null(by_link).exit_code == 3
    assert (tmp_path / "link.jsonl").is_symlink()
    assert run_null(by_name).stats is None
    assert run_null(by_link).stats is None
