"""The seconds below which no engine can finish a workload on a device: a model of the best.

The workload is run step by step through a perfect engine: continuous batching with a token budget,
shared beginnings computed once and their keys and values read once per step, rows with long outputs
first. A step takes the larger of its arithmetic and its traffic for each kind of kernel, at rates
that good kernels sustain, and a fixed time per layer for their starts. The host takes no time.

It is a model, not a proof: an engine can pass it by some per cent where a kernel is better than
these rates. Sliding windows are taken to attend to everything.
"""

from dataclasses import dataclass

from nanobatch.bench.hardware import Hardware
from nanobatch.bench.model_costs import ModelCosts
from nanobatch.bench.perfect_engine import PerfectEngine
from nanobatch.bench.shared_rows import order_by_sharing
from nanobatch.bench.workloads import Workload
from nanobatch.config import ModelConfig

USABLE_MEMORY_SHARE = 0.86
"""Of the device's memory, what weights and KV cache can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The best that a device can do with a workload.

    Attributes:
        seconds: From the first prompt to the last token.
        num_steps: Steps of the perfect engine.
        num_bytes: Memory traffic that cannot be avoided, for MBU.
        num_flop: Arithmetic that cannot be avoided, for MFU.
        num_prefill_tokens: Prompt tokens that must be computed where beginnings are shared in
            blocks, the last token of each prompt always among them.
        num_distinct_tokens: The same where sharing stops at no block's end.
    """

    seconds: float
    num_steps: int
    num_bytes: float
    num_flop: float
    num_prefill_tokens: int
    num_distinct_tokens: int


def roofline_limit(
    model_config: ModelConfig, workload: Workload, hardware: Hardware, *, bytes_per_element: int
) -> Limit:
    """Return the limit of a workload for a model on a device.

    Args:
        model_config: The model's sizes.
        workload: What is generated.
        hardware: The device's rates.
        bytes_per_element: Of weights, activations, keys and values.
    """
    model = ModelCosts.of(model_config, bytes_per_element=bytes_per_element)
    free_bytes = hardware.memory_bytes * USABLE_MEMORY_SHARE - model.weight_bytes
    rows = order_by_sharing(workload)
    engine = PerfectEngine(rows, kv_capacity_tokens=int(free_bytes / model.kv_bytes_per_token))
    seconds = num_bytes = num_flop = 0.0
    num_steps = num_prefill_tokens = 0
    while not engine.is_done:
        step = engine.step()
        seconds += model.step_seconds(step, hardware)
        num_bytes += model.step_bytes(step)
        num_flop += model.step_flop(step)
        num_steps += 1
        num_prefill_tokens += step.num_prefill_tokens
    return Limit(
        seconds=seconds,
        num_steps=num_steps,
        num_bytes=num_bytes,
        num_flop=num_flop,
        num_prefill_tokens=num_prefill_tokens,
        num_distinct_tokens=rows.num_distinct_tokens,
    )
