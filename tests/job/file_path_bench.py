"""What reading and writing cost a row, beside a bare loop that does the same work, in one run.

    bare   json.loads, xxhash, a record appended to a file, Arrow columns to a zstd Parquet file;
           no check, no request, nothing read a second time
    ours   Feeder (read, parse, check, request), Recorder and journal, then the output put in order

Only the engine is missing: every request is answered at once with the same text. The issue
allows ours twice the time of the bare loop.

usage: python -m tests.job.file_path_bench [NUM_ROWS] [FOLDER]
"""

import gc
import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from nanobatch.io.columns import output_columns
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.io.rows import RowParser
from nanobatch.job.earlier_runs import open_earlier_runs
from nanobatch.job.feeder import PORTION_ROWS, Feeder
from nanobatch.job.finalize import OrderedOutput, write_output
from nanobatch.job.monitor import Monitor
from nanobatch.job.plan import JobPlan, make_plan
from nanobatch.job.process_memory import set_process_memory
from nanobatch.job.recorder import JournalSink, Recorder
from nanobatch.job.row_stream import open_row_stream
from nanobatch.request import FinishReason, Request, RequestOutput
from tests.job.null_jobs import null_config
from tests.null_model import write_null_model

PROMPT = "Is this review positive or negative? Answer with one word. " + "It broke. " * 14
TEXT = "Negative: the customer says that it broke, twice, and wants the money back."
TOKEN_IDS = tuple(range(300, 316))
RECORD = struct.Struct("<IQQ")
ROWS_PER_GROUP = 50_000
BARE_SCHEMA = pa.schema([*output_columns(pa.schema([])).base, pa.field("stars", pa.int64())])


def prompts(num_rows: int) -> Iterator[dict[str, Any]]:
    """Yield rows of about 240 bytes, 200 of them prompt."""
    for index in range(num_rows):
        yield {"id": f"review-{index}", "prompt": f"{index}: {PROMPT}", "stars": index % 5}


def write_jsonl(path: Path, num_rows: int) -> Path:
    """Write the rows as JSONL."""
    with path.open("w") as file:
        for row in prompts(num_rows):
            file.write(json.dumps(row) + "\n")
    return path


def write_parquet(path: Path, num_rows: int) -> Path:
    """Write the rows as Parquet."""
    pq.write_table(pa.Table.from_pylist(list(prompts(num_rows))), path)
    return path


def bare_jsonl_rows(source: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line and what it holds."""
    with source.open("rb") as lines:
        for line in lines:
            yield line, json.loads(line)


def bare_parquet_rows(source: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each row's values, and bytes that stand for them."""
    for batch in pq.ParquetFile(source).iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            yield repr(row).encode(), row


def bare_loop(rows: Iterator[tuple[bytes, dict[str, Any]]], folder: Path, suffix: str) -> None:
    """Do by hand what a run must do at least, with the columns that a run writes."""
    writer = bare_parquet_output(folder) if suffix == ".parquet" else bare_jsonl_output(folder)
    next(writer)
    with (folder / "bare.journal").open("wb") as journal:
        for index, (payload, row) in enumerate(rows):
            record = json.dumps([TEXT, TOKEN_IDS, 60, "stop"]).encode()
            header = RECORD.pack(len(record), index, xxhash.xxh3_64_intdigest(payload))
            journal.write(header + record)
            writer.send(
                {
                    "row_index": index,
                    "id": row["id"],
                    "sample_index": 0,
                    "status": "ok",
                    "generated_text": TEXT,
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "prompt_tokens": 60,
                    "cached_tokens": 0,
                    "completion_tokens": 16,
                    "error_code": None,
                    "error_message": None,
                    "stars": row["stars"],
                }
            )
    writer.close()


def bare_parquet_output(folder: Path) -> Generator[None, dict[str, Any], None]:
    """Write rows as zstd Parquet."""
    group: list[dict[str, Any]] = []
    with pq.ParquetWriter(folder / "bare.parquet", BARE_SCHEMA, compression="zstd") as writer:
        try:
            while True:
                group.append((yield))
                if len(group) == ROWS_PER_GROUP:
                    writer.write_table(pa.Table.from_pylist(group, BARE_SCHEMA))
                    group.clear()
        finally:
            if group:
                writer.write_table(pa.Table.from_pylist(group, BARE_SCHEMA))


def bare_jsonl_output(folder: Path) -> Generator[None, dict[str, Any], None]:
    """Write rows as JSONL."""
    with (folder / "bare.jsonl").open("w") as file:
        while True:
            file.write(json.dumps((yield)) + "\n")


def answer(request: Request) -> tuple[RequestOutput]:
    """Return the answer that every row gets."""
    return (
        RequestOutput(
            row_index=request.row_index,
            text=TEXT,
            token_ids=TOKEN_IDS,
            finish_reason=FinishReason.STOP,
            num_prompt_tokens=60,
            num_completion_tokens=len(TOKEN_IDS),
        ),
    )


def file_path(plan: JobPlan) -> None:
    """Do all that a run does but generating."""
    set_process_memory()
    parser = RowParser(plan.config.rows, plan.sampling, vocab_size=plan.model_config.vocab_size)
    monitor = Monitor(job_name="bench", model_name="none", input_bytes=None)
    plan.config.journal_dir.mkdir()
    earlier = open_earlier_runs(plan, None)
    with earlier.index:
        with JournalWriter(earlier.index) as writer:
            recorder = Recorder(JournalSink(writer), monitor)
            feeder = Feeder(
                rows=open_row_stream(plan.sources),
                parser=parser,
                earlier=earlier,
                duplicate_ids=None,
                recorder=recorder,
                monitor=monitor,
            )
            while not feeder.is_exhausted:
                requests, _ = feeder.next_requests(PORTION_ROWS, wait=False)
                recorder.record_all([answer(request) for request in requests])
        ordered = OrderedOutput(plan, earlier.index, parser, before_appearing=lambda: None)
        write_output(ordered, plan, on_fraction=lambda _fraction: None)


def seconds(work: Callable[[], None]) -> float:
    """Return the CPU time of a piece of work, of all its threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def measure(num_rows: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return microseconds a row, ours and the bare loop's, for each pair of formats."""
    model = write_null_model(folder / "model")
    sources = {
        ".jsonl": write_jsonl(folder / "in.jsonl", num_rows),
        ".parquet": write_parquet(folder / "in.parquet", num_rows),
    }
    pairs = ((".jsonl", ".parquet"), (".parquet", ".parquet"), (".jsonl", ".jsonl"))
    figures = {}
    for source_suffix, suffix in pairs:
        place = folder / f"{source_suffix[1:]}-{suffix[1:]}"
        place.mkdir()
        plan = make_plan(null_config(model, sources[source_suffix], place / f"out{suffix}"))
        figures[place.name] = compare(sources[source_suffix], plan, num_rows, place)
    return figures


def compare(source: Path, plan: JobPlan, num_rows: int, place: Path) -> dict[str, float]:
    """Return microseconds a row for one pair of formats."""
    suffix = Path(plan.config.output).suffix
    rows = bare_jsonl_rows(source) if source.suffix == ".jsonl" else bare_parquet_rows(source)
    threshold, pool = gc.get_threshold(), pa.default_memory_pool()
    bare_s = seconds(lambda: bare_loop(rows, place, suffix))
    ours_s = seconds(lambda: file_path(plan))
    gc.set_threshold(*threshold)  # the next bare loop is to find what a script finds
    pa.set_memory_pool(pool)
    return {
        "bare_us": round(bare_s / num_rows * 1e6, 2),
        "ours_us": round(ours_s / num_rows * 1e6, 2),
        "ratio": round(ours_s / bare_s, 3),
    }


def main() -> None:
    """Print the figures as JSON."""
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(num_rows, Path(folder))))


if __name__ == "__main__":
    main()
