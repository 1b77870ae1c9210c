"""Results: medians, rates, shares, the record of each, and how they are shown."""

import json
from io import StringIO

import pytest
from rich.console import Console

from nanobatch.bench.events import KernelTime, Profile
from nanobatch.bench.table import profile_heading, profile_table, result_table
from tests.bench.machines import result, small_workload


def shown(*renderables: object) -> str:
    console = Console(width=140, file=StringIO())
    console.print(*renderables)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_numbers_are_of_the_median_repeat() -> None:
    each = result()
    workload = small_workload()
    assert each.seconds == 2.0
    assert each.spread == 1.5
    assert each.output_tok_per_s == workload.num_output_tokens / 2
    assert each.total_tok_per_s == (workload.num_output_tokens + workload.num_prompt_tokens) / 2
    assert each.hit_rate == pytest.approx(0.5, abs=0.01)
    num_computed = workload.num_prompt_tokens - workload.num_prompt_tokens // 2
    assert (each.ideal_ratio, each.distinct_ratio) == (num_computed / 100, num_computed / 80)
    assert (each.mbu, each.mfu, each.limit_fraction) == pytest.approx((0.5, 0.5, 0.5))


def test_a_record_is_json_with_everything_that_a_claim_needs() -> None:
    record = json.loads(json.dumps(result().record(date="d", commit="c", options={"seed": 0})))
    assert list(record)[:3] == ["date", "commit", "options"]
    assert record.keys() >= {
        *("engine", "engine_version", "model", "dtype", "hardware", "versions", "workload"),
        *("num_prompts", "num_prompt_tokens", "num_output_tokens", "seconds", "repeats_s"),
        *("output_tok_per_s", "total_tok_per_s", "computed_prefill_tokens", "prefix_hit_rate"),
        *("ideal_prefill_tokens", "prefill_over_ideal", "prefill_over_distinct"),
        *("mbu", "mfu", "limit_s", "limit_fraction", "load_s"),
    }
    assert record["repeats_s"] == [2.0, 1.0, 4.0]
    assert (record["hardware"], record["limit_fraction"]) == ("NVIDIA H200", 0.5)


def test_the_table_has_a_line_for_each_result() -> None:
    text = shown(result_table([result(), result("transformers", (4.0,))]))
    first, second = (line.split() for line in text.splitlines() if "custom" in line)
    assert first[:4] == ["custom", "nanobatch", "2.00", "±75.0%"]
    assert first[-5:] == ["50%", "50%", "50%", "1.00", "50%"]
    assert (second[1], second[-1]) == ("transformers", "25%")


def test_a_profile_says_how_long_the_gpu_was_idle_and_waited() -> None:
    kernel = KernelTime(name="gemm" * 30, num_calls=1234, seconds=0.5, share=0.25)
    profile = Profile(
        workload="nano",
        trace="t.json.gz",
        window_s=2.0,
        idle_share=0.0312,
        host_gap_share=0.002,
        kernels=(kernel,),
    )
    assert profile_heading("vllm", profile) == (
        "vllm nano, 2.00 s of a run: the GPU was idle 3.1% of the time, 0.2% waiting for the host; "
        "trace in t.json.gz"
    )
    text = shown(profile_table(profile))
    assert f"{'gemm' * 14}gem…" in text
    assert "1,234" in text
    assert "25.0%" in text
