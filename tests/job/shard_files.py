"""Outputs of shards, written by hand: a file, and the summary that its run would leave."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.io.durable import AtomicFile
from nanobatch.io.output_compression import CompressedFile
from nanobatch.io.writers import output_compression
from nanobatch.job.manifest import MANIFEST_VERSION
from nanobatch.job.merge import MergeResult, merge_shards
from nanobatch.job_config import Shard

FINGERPRINT: Mapping[str, object] = {"model": {"model.gguf": "0f"}, "seed": 0, "sampling.n": None}
NUM_JOB_ROWS = 23

Row = dict[str, Any]


def output_rows(rows: range, *, num_samples: int = 1) -> list[Row]:
    """Return rows of a job's output; every fifth row is an error."""
    return [
        {
            "row_index": row_index,
            "id": f'the "{row_index}"\\ \u00e9',
            "sample_index": sample_index,
            "status": "error" if row_index % 5 == 4 else "ok",
            "generated_text": f"answer {sample_index} to {row_index}",
            "error_code": "bad_type" if row_index % 5 == 4 else None,
        }
        for row_index in rows
        for sample_index in range(1 if row_index % 5 == 4 else num_samples)
    ]


SCHEMA = pa.schema(
    [
        pa.field("row_index", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("generated_text", pa.large_string()),
        pa.field("error_code", pa.string()),
    ]
)


def shard_path(folder: Path, index: int, num_shards: int, suffix: str = ".jsonl") -> Path:
    """Return the name that a run gives to the output of a shard."""
    return folder / f"out-{index:05d}-of-{num_shards:05d}{suffix}"


def write_rows(path: Path, rows: Sequence[Row], shard: Mapping[str, int] | None) -> None:
    """Write rows as an output of the format that the suffix says."""
    if path.suffix == ".parquet":
        metadata = {"nanobatch.job": json.dumps(FINGERPRINT), "nanobatch.shard": json.dumps(shard)}
        table = pa.Table.from_pylist(rows, SCHEMA.with_metadata(metadata))
        pq.write_table(table, path, row_group_size=4)
        return
    compression = output_compression(path)
    whole = AtomicFile(path)
    file = whole if compression is None else CompressedFile(whole, compression)
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    file.commit()


def shard_json(index: int, num_shards: int, num_job_rows: int = NUM_JOB_ROWS) -> dict[str, int]:
    """Return what a run says of its shard."""
    rows = Shard(index=index, num_shards=num_shards).rows(num_job_rows)
    return {
        "index": index,
        "num_shards": num_shards,
        "first_row": rows.start,
        "num_rows": len(rows),
        "num_job_rows": num_job_rows,
    }


def write_summary(path: Path, rows: Sequence[Row], shard: object, **changes: Any) -> None:
    """Write the summary of an output; `changes` replaces members of it."""
    num_rows = len({row["row_index"] for row in rows})
    num_errors = sum(row["status"] == "error" for row in rows)
    summary = {
        "version": MANIFEST_VERSION,
        "finished_at": "2026-07-28T12:00:00+0000",
        "exit_code": 3 if num_errors else 0,
        "output": str(path),
        "output_bytes": path.stat().st_size,
        "layout": {"columns": None, "shape": None, "rows_per_part": None, "shard": shard},
        "stdin": None,
        "rows": {
            "total": num_rows,
            "ok": num_rows - num_errors,
            "error": num_errors,
            "errors_by_code": {"bad_type": num_errors} if num_errors else {},
            "hit_max_tokens": 1,
        },
        "tokens_of_this_run": {
            "prompt": 10 * num_rows,
            "output": 7 * num_rows,
            "prefix_hit_rate": 0.5,
            "prefill_per_s": 100.0,
            "decode_per_s": 50.0,
        },
        "seconds": {"running": 2.0},
        "hardware": {"gpu": path.name[-1]},
        "fingerprint": dict(FINGERPRINT),
        "shard": shard,
        **changes,
    }
    Path(f"{path}.summary.json").write_text(json.dumps(summary))


def write_shard(
    path: Path, index: int, num_shards: int, *, rows: Sequence[Row] | None = None, **changes: Any
) -> Path:
    """Write the output of a shard and its summary.

    Args:
        path: The output.
        index: Which shard it is.
        num_shards: How many there are.
        rows: What is in the file; None is what should be.
        **changes: Members of the summary that are not as they should be.
    """
    shard = shard_json(index, num_shards, changes.pop("num_job_rows", NUM_JOB_ROWS))
    own = output_rows(range(shard["first_row"], shard["first_row"] + shard["num_rows"]))
    write_rows(path, own if rows is None else rows, shard)
    write_summary(path, own, shard, **changes)
    return path


def write_shards(folder: Path, num_shards: int, suffix: str = ".jsonl") -> list[Path]:
    """Write all shards of a job."""
    folder.mkdir(exist_ok=True)
    paths = [shard_path(folder, index, num_shards, suffix) for index in range(num_shards)]
    for index, path in enumerate(paths):
        write_shard(path, index, num_shards)
    return paths


def merge(shards: Sequence[Path], output: Path, **options: Any) -> MergeResult:
    """Merge shards; see `merge_shards`."""
    return merge_shards([str(path) for path in shards], str(output), **options)
