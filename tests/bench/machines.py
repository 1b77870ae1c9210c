"""Made-up machines and models for tests of the arithmetic."""

from nanobatch.bench.events import Machine, Repeat
from nanobatch.bench.hardware import Hardware, known_hardware
from nanobatch.bench.results import Result
from nanobatch.bench.roofline import Limit
from nanobatch.bench.workloads import CustomShape, LengthRange, Workload, custom_workload


def h200() -> Hardware:
    hardware = known_hardware("NVIDIA H200", "bfloat16")
    assert hardware is not None
    return hardware


def small_workload() -> Workload:
    shape = CustomShape(
        num_prompts=6,
        input_lens=LengthRange(3, 9),
        output_lens=LengthRange(2, 5),
        prefix_len=32,
        num_prefixes=2,
    )
    return custom_workload(shape)


def result(engine: str = "nanobatch", durations_s: tuple[float, ...] = (2.0, 1.0, 4.0)) -> Result:
    """Return a result of `small_workload` on an H200, with half the prompts cached."""
    workload = small_workload()
    num_cached = workload.num_prompt_tokens // 2
    return Result(
        engine=engine,
        engine_version="1.2",
        load_s=3.0,
        model="m",
        workload=workload,
        machine=Machine(hardware=h200(), dtype="bfloat16", versions={"torch": "2"}),
        limit=Limit(
            seconds=1.0, num_steps=5, num_bytes=4.8e12, num_flop=989e12, num_prefill_tokens=9
        ),
        repeats=[
            Repeat(
                workload=workload.name,
                seconds=seconds,
                num_output_tokens=workload.num_output_tokens,
                num_prefill_tokens=workload.num_prompt_tokens - num_cached,
                num_cached_tokens=num_cached,
            )
            for seconds in durations_s
        ],
    )
