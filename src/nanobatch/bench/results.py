"""What was measured, as numbers that people compare: medians, rates, shares of the limit."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nanobatch.bench.engine_settings import EngineName
from nanobatch.bench.events import Machine, Repeat
from nanobatch.bench.roofline import Limit
from nanobatch.bench.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One engine on one workload.

    MBU and MFU count the traffic and the arithmetic that the workload cannot do without (`Limit`),
    over the data sheet's rates, or the measured ones where there is no sheet. So engines compare by
    time alone, and work done twice earns nothing.

    Attributes:
        engine: Name of the engine.
        engine_version: Its version.
        load_s: Seconds until it was ready.
        model: Name of the model.
        workload: What was generated.
        machine: Where.
        limit: The best that the machine can do.
        repeats: Measured runs, at least one.
    """

    engine: EngineName
    engine_version: str
    load_s: float
    model: str
    workload: Workload
    machine: Machine
    limit: Limit
    repeats: Sequence[Repeat]

    @property
    def seconds(self) -> float:
        """Median of the repeats."""
        return statistics.median(repeat.seconds for repeat in self.repeats)

    @property
    def spread(self) -> float:
        """Slowest repeat less the fastest, over the median."""
        durations_s = [repeat.seconds for repeat in self.repeats]
        return (max(durations_s) - min(durations_s)) / self.seconds

    @property
    def output_tok_per_s(self) -> float:
        """Tokens generated per second."""
        return self.workload.num_output_tokens / self.seconds

    @property
    def total_tok_per_s(self) -> float:
        """Tokens of prompts and outputs per second."""
        num_tokens = self.workload.num_prompt_tokens + self.workload.num_output_tokens
        return num_tokens / self.seconds

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens computed, median of the repeats."""
        return int(statistics.median(repeat.num_prefill_tokens for repeat in self.repeats))

    @property
    def ideal_ratio(self) -> float:
        """Prompt tokens computed, over those that must be where whole blocks are shared."""
        return self.num_prefill_tokens / self.limit.num_prefill_tokens

    @property
    def distinct_ratio(self) -> float:
        """Prompt tokens computed, over those that must be where every token is shared."""
        return self.num_prefill_tokens / self.limit.num_distinct_tokens

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the prefix cache."""
        num_cached = statistics.median(repeat.num_cached_tokens for repeat in self.repeats)
        return num_cached / self.workload.num_prompt_tokens

    @property
    def mbu(self) -> float:
        """Memory bandwidth used, of the device's peak."""
        return self.limit.num_bytes / self.seconds / self.machine.hardware.peak_bytes_per_s

    @property
    def mfu(self) -> float:
        """Arithmetic used, of the device's peak."""
        return self.limit.num_flop / self.seconds / self.machine.hardware.peak_flop_per_s

    @property
    def limit_fraction(self) -> float:
        """The limit's time over the measured one: 1 is as fast as can be."""
        return self.limit.seconds / self.seconds

    def record(self, **context: object) -> dict[str, object]:
        """Return everything as one JSON object.

        Args:
            **context: What the result does not know, such as date and commit; it comes first.
        """
        return {
            **context,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "model": self.model,
            "dtype": self.machine.dtype,
            "hardware": self.machine.hardware.name,
            "hardware_rates": self.machine.hardware.origin,
            "versions": dict(self.machine.versions),
            **self._workload_record(),
            "seconds": round(self.seconds, 4),
            "spread": round(self.spread, 4),
            "repeats_s": [round(repeat.seconds, 4) for repeat in self.repeats],
            "output_tok_per_s": round(self.output_tok_per_s, 1),
            "total_tok_per_s": round(self.total_tok_per_s, 1),
            "computed_prefill_tokens": self.num_prefill_tokens,
            "ideal_prefill_tokens": self.limit.num_prefill_tokens,
            "prefill_over_ideal": round(self.ideal_ratio, 4),
            "distinct_prefill_tokens": self.limit.num_distinct_tokens,
            "prefill_over_distinct": round(self.distinct_ratio, 4),
            "prefix_hit_rate": round(self.hit_rate, 4),
            "mbu": round(self.mbu, 4),
            "mfu": round(self.mfu, 4),
            "limit_s": round(self.limit.seconds, 4),
            "limit_fraction": round(self.limit_fraction, 4),
            "load_s": round(self.load_s, 2),
        }

    def _workload_record(self) -> Mapping[str, object]:
        return {
            "workload": self.workload.name,
            "num_prompts": self.workload.num_prompts,
            "num_prompt_tokens": self.workload.num_prompt_tokens,
            "num_output_tokens": self.workload.num_output_tokens,
            "temperature": self.workload.temperature,
        }
