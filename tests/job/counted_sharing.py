"""What prompts share, counted by brute force over all beginnings and all pairs of rows."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from typing import Any

import numpy as np

from nanobatch.job.sharing_counter import SharingCounter
from nanobatch.job.sharing_report import SharingLevel, SharingReport

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    token_ids: tuple[int, ...]
    num_samples: int = 1
    num_steps: int = 10


SETTINGS: dict[str, Any] = {
    "block_size": 2,
    "window_rows": 1_000,
    "window_tokens": 1_000_000,
    "num_running_seqs": 5,
    "num_output_tokens": 11,
}


def count(prompts: list[Prompt], **settings: Any) -> SharingReport:
    counter = SharingCounter(**{**SETTINGS, **settings})
    for prompt in prompts:
        counter.add(
            np.array(prompt.token_ids, dtype=np.int32),
            num_samples=prompt.num_samples,
            num_decode_steps=prompt.num_steps,
        )
    return counter.report()


def num_common(one: Prefix, other: Prefix) -> int:
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def count_by_brute_force(prompts: list[Prompt], **settings: Any) -> SharingReport:
    """Look at every beginning of full blocks, and at every pair of rows that have it."""
    options = {**SETTINGS, **settings}
    size = options["block_size"]
    rows_of: dict[Prefix, list[int]] = defaultdict(list)
    for row, prompt in enumerate(prompts):
        for end in range(size, len(prompt.token_ids) + 1, size):
            rows_of[prompt.token_ids[:end]].append(row)

    def are_near(row: int, other: int) -> bool:
        between = prompts[row : other + 1]
        num_tokens = sum(len(prompt.token_ids) for prompt in between)
        return len(between) <= int(options["window_rows"]) and num_tokens <= int(
            options["window_tokens"]
        )

    near: dict[Prefix, int] = {
        prefix: sum(any(are_near(row, other) for row in rows if row < other) for other in rows)
        for prefix, rows in rows_of.items()
    }
    near_tokens = computed = 0
    for other, prompt in enumerate(prompts):
        tokens = prompt.token_ids
        others = [prompts[row].token_ids for row in range(other) if are_near(row, other)]
        ends = range(size, len(tokens) + 1, size)
        start = size * sum(any(one[:end] == tokens[:end] for one in others) for end in ends)
        sources = [one for one in others if one[:start] == tokens[:start]]
        copied = max(
            (
                num_common(tokens[start : start + size][:-1], one[start : start + size])
                for one in sources
                if len(one) >= start + size  # only full blocks are published
            ),
            default=0,
        )
        near_tokens += start
        computed += max(1, len(tokens) - start - (copied if copied >= 4 else 0))
    saved = Fraction(0)
    for prefix, rows in rows_of.items():
        num_seqs = sum(prompts[row].num_samples for row in rows)
        steps = sum(prompts[row].num_samples * prompts[row].num_steps for row in rows)
        together = min(Fraction(num_seqs, len(rows) - near[prefix]), options["num_running_seqs"])
        saved += size * steps * (1 - 1 / together)
    return SharingReport(
        block_size=size,
        num_prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        num_shared_tokens=sum(size * len(rows) for rows in rows_of.values() if len(rows) > 1),
        num_reused_tokens=sum(size * (len(rows) - 1) for rows in rows_of.values()),
        num_near_tokens=near_tokens,
        num_prefill_tokens=computed,
        num_attended_tokens=sum(
            prompt.num_samples * (len(prompt.token_ids) + step)
            for prompt in prompts
            for step in range(1, prompt.num_steps + 1)
        ),
        num_saved_kv_tokens=round(saved),
        num_running_seqs=options["num_running_seqs"],
        num_output_tokens=options["num_output_tokens"],
        window_rows=options["window_rows"],
        window_tokens=options["window_tokens"],
        levels=levels_by_brute_force(rows_of, size),
        is_lower_bound=False,
    )


def levels_by_brute_force(rows_of: dict[Prefix, list[int]], size: int) -> tuple[SharingLevel, ...]:
    """Find the beginnings as the different sets of two rows or more that share a prefix."""
    prefixes_of: dict[Prefix, list[Prefix]] = defaultdict(list)
    for prefix, rows in rows_of.items():
        if len(rows) > 1:
            prefixes_of[tuple(rows)].append(prefix)
    by_level: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for same_rows, prefixes in prefixes_of.items():
        above = {tuple(rows_of[prefixes[0][:end]]) for end in range(size, len(prefixes[0]), size)}
        level = 1 + len(above - {same_rows})
        by_level[level].append((len(same_rows), size * len(prefixes)))
    return tuple(level_by_brute_force(by_level[level]) for level in sorted(by_level))


def level_by_brute_force(beginnings: list[tuple[int, int]]) -> SharingLevel:
    def median(place: int) -> int:
        values = sorted(one[place] for one in beginnings for _ in range((one[0] - 1) * one[1]))
        return values[(len(values) - 1) // 2]

    return SharingLevel(
        num_beginnings=len(beginnings),
        typical_rows=median(0),
        most_rows=max(num_rows for num_rows, _ in beginnings),
        typical_tokens=median(1),
        num_reused_tokens=sum((num_rows - 1) * tokens for num_rows, tokens in beginnings),
    )
