"""What is done in a process of its own, so that the device is free again when it has ended.

A task is pickled to its process and reports events.
"""

import time
from dataclasses import dataclass
from typing import Protocol

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.events import Loaded, OnEvent
from nanobatch.bench.measure import MeasurePlan, measure
from nanobatch.bench.workloads import Workload
from nanobatch.config import Device, Dtype
from nanobatch.models.source import ModelSource, read_model_config


class Task(Protocol):
    """Something to do in another process."""

    def run(self, on_event: OnEvent) -> None:
        """Do it, reporting events as they come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectTask:
    """Finds out what the device is and can do."""

    device: Device
    dtype: Dtype

    def run(self, on_event: OnEvent) -> None:
        """Report a `Machine`."""
        from nanobatch.bench.probe import inspect_machine

        on_event(inspect_machine(self.device, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTask:
    """Writes random weights into a model's folder."""

    source: ModelSource
    device: Device
    dtype: Dtype

    def run(self, on_event: OnEvent) -> None:
        """Write them; nothing is reported."""
        from nanobatch.engine.model_runner import resolve_device
        from nanobatch.models.loader import resolve_dtype
        from nanobatch.models.random_weights import save_random_weights

        del on_event
        device = resolve_device(self.device)
        save_random_weights(
            self.source.path,
            read_model_config(self.source),
            dtype=resolve_dtype(self.dtype, device),
            device=device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTask:
    """Loads an engine and measures workloads on it.

    Attributes:
        settings: The engine.
        workloads: What it runs, in order.
        plan: How.
        is_inspecting: Report the `Machine` first. Not for engines that want to be the first to
            touch the device in their process.
    """

    settings: EngineSettings
    workloads: tuple[Workload, ...]
    plan: MeasurePlan
    is_inspecting: bool

    def run(self, on_event: OnEvent) -> None:
        """Report the engine loaded, then its repeats, profiles and timelines."""
        from nanobatch.bench.engines.loading import load_engine

        if self.is_inspecting:
            InspectTask(device=self.settings.device, dtype=self.settings.dtype).run(on_event)
        begin_s = time.perf_counter()
        engine = load_engine(self.settings, is_profiled=self.plan.trace_folder is not None)
        seconds = time.perf_counter() - begin_s
        on_event(Loaded(engine_version=engine.version, seconds=seconds))
        try:
            for workload in self.workloads:
                name = self.settings.engine
                measure(engine, workload, self.plan, engine_name=name, on_event=on_event)
        finally:
            engine.close()
