"""Made-up machines and models for tests of the arithmetic."""

from functools import cache
from random import Random

from nanobatch.bench.engine_settings import EngineName
from nanobatch.bench.events import Machine, Repeat
from nanobatch.bench.hardware import Hardware, known_hardware
from nanobatch.bench.results import Result
from nanobatch.bench.roofline import Limit
from nanobatch.bench.workloads import (
    CustomShape,
    LengthRange,
    Workload,
    custom_workload,
    named_workload,
)


@cache
def named(name: str) -> Workload:
    """Return a named workload, drawn once: some take seconds."""
    return named_workload(name)


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


def nested_workload() -> Workload:
    """Return a tree of three levels whose ends fall into blocks; rows shuffled, one of them twice.

    14 rows: a beginning of 40 tokens, then of 3 sets of 25, then of 2 documents of 30 each, then 2
    tails; one prompt is the first 64 tokens of another, as if it were cached whole.
    """
    random = Random(9)

    def ids(num_tokens: int) -> tuple[int, ...]:
        return tuple(random.randrange(1000) for _ in range(num_tokens))

    top = ids(40)
    prompts = [
        branch + document + ids(random.randint(1, 9))
        for branch in [top + ids(25) for _ in range(3)]
        for document in [ids(30) for _ in range(2)]
        for _ in range(2)
    ]
    prompts += [prompts[0], prompts[1][:64]]
    random.shuffle(prompts)
    output_lens = tuple(random.randint(1, 6) for _ in prompts)
    return Workload(name="nested", prompts=tuple(prompts), output_lens=output_lens)


def result(
    engine: EngineName = "nanobatch", durations_s: tuple[float, ...] = (2.0, 1.0, 4.0)
) -> Result:
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
            seconds=1.0,
            num_steps=5,
            num_bytes=4.8e12,
            num_flop=989e12,
            num_prefill_tokens=100,
            num_distinct_tokens=80,
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
