"""Whether shards make up a whole job: each once, end to end, of one configuration.

Knows what shards say of themselves; what their files really hold is proven while they are copied
(`io/output_concat`).
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from nanobatch.errors import CoverageError
from nanobatch.io.output_concat import read_schema
from nanobatch.job.merge_shard import ShardOutput, raise_faults
from nanobatch.job_config import JobConfig
from nanobatch.request import ErrorCode

MAX_VALUE_CHARACTERS = 24

_MET_BY_ERROR = {"long_prompts": ErrorCode.PROMPT_TOO_LONG, "row_timeout_s": ErrorCode.TIMEOUT}
_NUMBERED_NAME = re.compile(r"-(\d+)-of-(\d+)")


def prove_coverage(shards: Sequence[ShardOutput]) -> tuple[ShardOutput, ...]:
    """Return shards in the order of their rows, which are all rows of one job.

    Raises:
        CoverageError: A shard is foreign, doubled or missing, or rows are; each is named.
    """
    reference = _most_common(shards)
    ignored = _settings_that_met_nobody(shards)
    raise_faults([fault for shard in shards for fault in _foreign(shard, reference, ignored)])
    ordered = sorted(shards, key=lambda shard: shard.index)
    raise_faults(_doubled(ordered))
    raise_faults(_missing(ordered))
    _require_end_to_end(ordered)
    return tuple(ordered)


def common_schema(shards: Sequence[ShardOutput]) -> pa.Schema:
    """Return the schema of Parquet shards, with the first one's metadata.

    Raises:
        CoverageError: A file is damaged or has other columns than the first.
    """
    schema = read_schema(shards[0].files[0])
    for path in (path for shard in shards for path in shard.files):
        other = read_schema(path)
        if not other.equals(schema):
            names = [field.name for field in set(schema) ^ set(other)] or schema.names
            raise CoverageError(
                f"{path} has other columns than {shards[0].files[0]}: "
                f"{', '.join(dict.fromkeys(names))}",
                hint="merge the shards of one run line",
            )
    return schema


def _most_common(shards: Sequence[ShardOutput]) -> ShardOutput:
    """Return a shard of the job that most belong to, the first one's where none is ahead."""
    keys = [json.dumps([shard.identity, shard.num_shards], sort_keys=True) for shard in shards]
    return shards[keys.index(Counter(keys).most_common(1)[0][0])]


def _foreign(
    shard: ShardOutput, reference: ShardOutput, ignored: Collection[str]
) -> list[CoverageError]:
    names = {*shard.identity, *reference.identity}
    if shard.summary is None or reference.summary is None:  # the metadata do not tell all of it
        names = shard.identity.keys() & reference.identity.keys()
    pairs = {
        name: (shard.identity.get(name), reference.identity.get(name))
        for name in sorted(names)
        if name not in ignored
    }
    pairs["num_shards"] = (shard.num_shards, reference.num_shards)
    pairs["num_job_rows"] = (shard.num_job_rows, reference.num_job_rows)
    different = [_describe(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    if not different:
        return []
    verb = "differs" if len(different) == 1 else "differ"
    return [
        CoverageError(
            f"{shard.path} belongs to another job than {reference.path}: "
            f"{', '.join(different)} {verb}",
            hint="leave it out, or run its shard again with the line of the others",
        )
    ]


def _settings_that_met_nobody(shards: Sequence[ShardOutput]) -> set[str]:
    """Return settings that may differ because no row that is left has the error they lead to.

    `--retry-errors` may change them, and a shard without errors is not run again.
    """
    names = set()
    for name, code in _MET_BY_ERROR.items():
        values = {shard.identity.get(name) for shard in shards}
        has_met = any(
            shard.summary is None or code in shard.summary["rows"]["errors_by_code"]
            for shard in shards
        )
        # Two ways to truncate are two answers, whoever met them.
        if not has_met and (code is ErrorCode.TIMEOUT or len(values - {"error"}) <= 1):
            names.add(name)
    return names


def _describe(name: str, value: object, expected: object) -> str:
    texts = json.dumps(value), json.dumps(expected)
    if max(map(len, texts)) > MAX_VALUE_CHARACTERS:
        return name
    return f"{name} ({texts[0]}, not {texts[1]})"


def _doubled(ordered: Sequence[ShardOutput]) -> list[CoverageError]:
    return [
        CoverageError(
            f"shard {one.index} is there twice: {one.path} and {other.path}",
            hint="name one of them",
        )
        for one, other in pairwise(ordered)
        if one.index == other.index
    ]


def _missing(ordered: Sequence[ShardOutput]) -> list[CoverageError]:
    num_shards = ordered[0].num_shards
    missing = sorted({*range(num_shards)} - {shard.index for shard in ordered})
    if not missing:
        return []
    named = [_describe_missing(index, ordered[0].path) for index in missing]
    listed = ", ".join(named[:8]) + (f", {len(named) - 8:,} more" if len(named) > 8 else "")
    return [
        CoverageError(
            f"missing of {num_shards} shards: {listed}",
            hint="run the missing shards, then merge all of them",
        )
    ]


def _describe_missing(index: int, sibling: Path) -> str:
    """Return a shard's number, with its name and state where its siblings' names tell them."""
    found = _NUMBERED_NAME.search(sibling.name)
    if found is None:
        return str(index)
    start, end = found.span(1)
    number = f"{index:0{end - start}d}"
    path = sibling.with_name(sibling.name[:start] + number + sibling.name[end:])
    if JobConfig(inputs=(), output=str(path)).journal_dir.exists():
        return f"{index} ({path}, not finished: its journal is still there)"
    return f"{index} ({path})" if not path.exists() else f"{index} ({path}, not named)"


def _require_end_to_end(ordered: Sequence[ShardOutput]) -> None:
    """Check that ranges begin at 0, meet, and end at the job's last row."""
    stop = 0
    for shard in ordered:
        if shard.rows.start != stop:
            raise CoverageError(
                f"{shard.path} begins at row {shard.rows.start:,}; "
                f"the shards before it end before row {stop:,}",
                hint="run the shards again with one input",
            )
        stop = shard.rows.stop
    if stop != ordered[-1].num_job_rows:
        raise CoverageError(
            f"the shards end before row {stop:,}; the job has {ordered[-1].num_job_rows:,} rows",
            hint="run the shards again with one input",
        )
