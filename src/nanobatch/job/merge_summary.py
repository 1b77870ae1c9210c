"""The summary of a merged output: the shards' summaries added up.

Counts and seconds are sums over the shards. Rates are means over them, weighted by what each is a
rate of: speeds are those of one device, not of all together. Rows of a shard whose summary is lost
are counted in its file; what nobody knows any more is null.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanobatch.io.output_concat import count_errors
from nanobatch.job.manifest import MANIFEST_VERSION
from nanobatch.job.merge_shard import ShardOutput
from nanobatch.job.stats import Phase

EXIT_ROW_ERRORS = 3
_COUNTED_IN_RUNS = ("from_earlier_runs", "hit_max_tokens", "surrogates_replaced")
"""Counts of rows that no file but the summaries holds."""

Summary = Mapping[str, Any]


def merged_summary(shards: Sequence[ShardOutput], output: Path) -> dict[str, Any]:
    """Return the summary of a merged output as JSON values.

    Args:
        shards: What was merged, in the order of its rows; proven to be one job.
        output: The merged file.
    """
    known = [shard.summary for shard in shards if shard.summary is not None]
    is_known = len(known) == len(shards)
    rows = _rows(shards, known if is_known else ())
    lost = EXIT_ROW_ERRORS if not is_known and rows["error"] else 0
    return {
        **_agreed(known),
        "version": MANIFEST_VERSION,
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": max([lost, *(summary["exit_code"] for summary in known)]),
        "output": str(output),
        "output_bytes": output.stat().st_size,
        "rows": rows,
        "tokens_of_this_run": _tokens(known) if is_known else None,
        "seconds": _sums(summary["seconds"] for summary in known) if is_known else None,
        "layout": _layout(known),
        "fingerprint": _agreed([shard.fingerprint for shard in shards]),
        "shard": None,
        "shards": shard_entries(shards),
    }


def shard_entries(shards: Sequence[ShardOutput]) -> list[dict[str, Any]]:
    """Return which files were merged, as JSON; equal for equal shards."""
    return [
        {
            "path": str(shard.path),
            "index": shard.index,
            "first_row": shard.rows.start,
            "num_rows": len(shard.rows),
            "bytes": shard.num_bytes,
            "finished_at": None if shard.summary is None else shard.summary["finished_at"],
        }
        for shard in shards
    ]


def _agreed(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return what summaries say: a value where all agree, else the list of all that are said."""
    agreed: dict[str, Any] = {}
    for key in dict.fromkeys(key for summary in summaries for key in summary):
        values: list[Any] = []
        for summary in summaries:
            if summary.get(key) not in values:
                values.append(summary.get(key))
        agreed[key] = values[0] if len(values) == 1 else values
    return agreed


def _layout(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return how a whole job's one file is laid out, as its shards are, as far as that is known."""
    known = summaries[0]["layout"] if summaries else {}
    return {**known, "shard": None, "rows_per_part": None}


def _rows(shards: Sequence[ShardOutput], known: Sequence[Summary]) -> dict[str, Any]:
    errors: Counter[str] = Counter()
    for shard in shards:
        if shard.summary is None:
            errors.update(count_errors(shard.files))
        else:
            errors.update(shard.summary["rows"]["errors_by_code"])
    num_rows = sum(len(shard.rows) for shard in shards)
    return {
        **(_sums(summary["rows"] for summary in known) or dict.fromkeys(_COUNTED_IN_RUNS)),
        "total": num_rows,
        "ok": num_rows - errors.total(),
        "error": errors.total(),
        "errors_by_code": dict(sorted(errors.items())),
    }


def _tokens(summaries: Sequence[Summary]) -> dict[str, Any]:
    tokens = [summary["tokens_of_this_run"] for summary in summaries]
    seconds = [summary["seconds"].get(str(Phase.RUNNING), 0.0) for summary in summaries]
    sums = _sums(tokens)
    if "kv_saved_rate" in sums:  # not in summaries of versions before it
        sums["kv_saved_rate"] = round(sums["saved_kv"] / (sums["attended_kv"] or 1), 6)
    return {
        **sums,
        "prefix_hit_rate": _mean(tokens, "prefix_hit_rate", [one["prompt"] for one in tokens]),
        "prefill_per_s": _mean(tokens, "prefill_per_s", seconds),
        "decode_per_s": _mean(tokens, "decode_per_s", seconds),
    }


def _mean(counts: Sequence[Mapping[str, Any]], name: str, weights: Sequence[float]) -> float:
    weighted = sum(count[name] * weight for count, weight in zip(counts, weights, strict=True))
    return float(round(weighted / (sum(weights) or 1.0), 6))


def _sums(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add numbers up by name; other values are left out."""
    sums: dict[str, Any] = {}
    for name, value in (pair for count in counts for pair in count.items()):
        if isinstance(value, int | float):
            sums[name] = round(sums.get(name, 0) + value, 6)
    return sums
