"""Workloads: the named ones never change, custom ones have the shape that was asked for."""

import hashlib
import json
from itertools import pairwise

import pytest

from nanobatch.bench.workloads import (
    WORKLOADS,
    CustomShape,
    LengthRange,
    Workload,
    custom_workload,
    named_workload,
)
from nanobatch.errors import ConfigError
from tests.bench.machines import named


@pytest.mark.parametrize(
    ("name", "num_prompts", "num_prompt_tokens", "num_output_tokens", "digest"),
    [
        ("nano", 256, 142_827, 133_966, "d72f19b572464c05"),
        ("nano4", 1024, 580_663, 583_802, "d41b837b0854f5a6"),
        ("shared_prefix", 1000, 2_148_000, 128_000, "aab9e0fb9c7dba28"),
        ("many_prefixes", 2000, 2_176_000, 128_000, "e18a0c75121b9b31"),
        ("three_level", 4000, 7_400_000, 256_000, None),
        ("short_prefixes", 1000, 264_000, 128_000, None),
        ("prefill", 1000, 997_862, 1_000, "e29dd775c57b9d21"),
        ("cpu", 64, 9_280, 4_096, None),
    ],
)
def test_a_name_means_the_same_ids_everywhere(
    name: str, num_prompts: int, num_prompt_tokens: int, num_output_tokens: int, digest: str | None
) -> None:
    workload = named(name)
    assert workload.name == name
    assert workload.num_prompts == num_prompts
    assert workload.num_prompt_tokens == num_prompt_tokens
    assert workload.num_output_tokens == num_output_tokens
    if digest is not None:
        rows = list(zip(workload.prompts, workload.output_lens, strict=True))
        assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == digest


def test_the_cpu_workload_is_greedy_and_shares_its_beginning() -> None:
    workload = named_workload("cpu")
    assert workload.temperature == 0.0
    assert {len(prompt) for prompt in workload.prompts} == {145}
    assert len({prompt[:110] for prompt in workload.prompts}) == 1
    assert len({prompt[:112] for prompt in workload.prompts}) > 60


def test_every_named_workload_is_one_of_those() -> None:
    assert list(WORKLOADS) == [
        *("nano", "nano4", "shared_prefix", "many_prefixes", "three_level", "short_prefixes"),
        *("prefill", "cpu"),
    ]


@pytest.mark.parametrize(
    ("name", "num_different", "first_ids"),
    [
        ("three_level", {1000: 1, 1500: 20, 1800: 1000, 1850: 4000}, (5904, 6690, 4519, 3496)),
        ("short_prefixes", {64: 50, 264: 1000}, (5664, 3054, 8980, 843)),
    ],
)
def test_a_tree_has_its_branches_and_its_rows_are_shuffled(
    name: str, num_different: dict[int, int], first_ids: tuple[int, ...]
) -> None:
    prompts = named(name).prompts
    assert {len(prompt) for prompt in prompts} == {max(num_different)}
    for num_tokens, expected in num_different.items():
        assert len({prompt[:num_tokens] for prompt in prompts}) == expected
    branch = sorted(num_different)[-2]
    num_neighbours = sum(first[:branch] == second[:branch] for first, second in pairwise(prompts))
    assert num_neighbours < len(prompts) / 20
    assert prompts[0][-4:] == first_ids  # drawn and shuffled as ever


def test_a_custom_workload_has_its_shape() -> None:
    shape = CustomShape(
        num_prompts=10,
        input_lens=LengthRange(3, 5),
        output_lens=LengthRange(7, 7),
        prefix_len=20,
        num_prefixes=3,
    )
    workload = custom_workload(shape)
    assert workload.output_lens == (7,) * 10
    assert {len(prompt) for prompt in workload.prompts} == {23, 24, 25}
    assert len({prompt[:20] for prompt in workload.prompts}) == 3
    assert workload == custom_workload(shape)
    assert workload.max_sequence_len == 32


def test_ids_are_folded_into_a_small_vocabulary_and_sharing_stays() -> None:
    workload = named_workload("cpu").within_vocabulary(100)
    assert max(map(max, workload.prompts)) < 100
    assert len({prompt[:110] for prompt in workload.prompts}) == 1
    assert workload.within_vocabulary(100) is workload


@pytest.mark.parametrize(
    ("text", "expected"), [("512", (512, 512)), ("100:1024", (100, 1024)), ("1_000", (1000, 1000))]
)
def test_lengths_are_fixed_or_a_range(text: str, expected: tuple[int, int]) -> None:
    lengths = LengthRange.parse("--input-len", text)
    assert (lengths.low, lengths.high) == expected


@pytest.mark.parametrize("text", ["", "x", "1:", ":5", "5:1", "0", "-3", "1:2:3", "1.5"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--input-len is "):
        LengthRange.parse("--input-len", text)


@pytest.mark.parametrize("field", ["num_prompts", "num_prefixes", "prefix_len"])
def test_counts_have_lower_bounds(field: str) -> None:
    wrong: dict[str, int] = {field: -1}
    with pytest.raises(ConfigError, match="it must be at least"):
        CustomShape(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("nanoo", "did you mean nano"), ("many_prefix", "did you mean many_prefixes?"), ("x", "or a")],
)
def test_an_unknown_workload_names_the_closest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"no such workload: {name}") as raised:
        named_workload(name)
    assert hint in (raised.value.hint or "")


def test_prompts_and_lengths_belong_together() -> None:
    with pytest.raises(AssertionError):
        Workload(name="x", prompts=((1,),), output_lens=())
