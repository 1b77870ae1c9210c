"""Engines one after the other over the same workloads, each in a process of its own."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from nanobatch.bench.engine_settings import OWN_ENGINES, EngineName, EngineSettings
from nanobatch.bench.events import Event, Loaded, Machine, OnEvent, Profile, Repeat, Timeline
from nanobatch.bench.measure import MeasurePlan
from nanobatch.bench.results import Result
from nanobatch.bench.roofline import roofline_limit
from nanobatch.bench.tasks import CheckpointTask, EngineTask, InspectTask, Task
from nanobatch.bench.worker_process import run_task
from nanobatch.bench.workloads import Workload
from nanobatch.config import Dtype
from nanobatch.errors import ConfigError
from nanobatch.models.source import read_model_config

PACKAGE_OF_ENGINE: Mapping[str, str] = {"vllm": "vllm", "transformers": "transformers"}
BYTES_PER_ELEMENT: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """What is measured.

    Attributes:
        engines: In the order in which they run.
        settings: Model and conditions; its engine is replaced by each of the engines.
        workloads: What each engine runs, on one load of the model.
        measure: How often.
        is_saving_weights: Write random weights into the model's folder even if no engine needs it.
    """

    engines: tuple[EngineName, ...]
    settings: EngineSettings
    workloads: tuple[Workload, ...]
    measure: MeasurePlan
    is_saving_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteListener:
    """Who is told what happens.

    Attributes:
        on_progress: A line for a person.
        on_result: One engine on one workload, complete.
        on_profile: A profile of an engine, by its name.
        on_timeline: Tokens over time of an engine, by its name.
    """

    on_progress: Callable[[str], None]
    on_result: Callable[[Result], None]
    on_profile: Callable[[str, Profile], None]
    on_timeline: Callable[[str, Timeline], None]


def require_engines(engines: Sequence[str]) -> None:
    """Refuse engines that are not installed.

    Raises:
        ConfigError: There is such a one.
    """
    for engine in engines:
        package = PACKAGE_OF_ENGINE.get(engine)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"--engine {engine}: {package} is not installed here",
                hint=f"pip install {package}, or leave it out",
            )


class Execute(Protocol):
    """Runs a task somewhere."""

    def __call__(self, task: Task, *, name: str, on_event: OnEvent) -> None:
        """Run it to its end; see `run_task`."""
        ...


def run_suite(plan: SuitePlan, listener: SuiteListener, *, execute: Execute = run_task) -> None:
    """Measure every engine on every workload.

    Args:
        plan: What.
        listener: Told of results as they are complete: those of engines that ran are kept when a
            later one fails.
        execute: Runs the tasks, each in a process of its own.

    Raises:
        NanobatchError: An engine failed.
    """
    _Suite(plan, listener, execute).run()


class _Suite:
    """One run of a suite: what is known of the machine, and of the engine that runs now."""

    def __init__(self, plan: SuitePlan, listener: SuiteListener, execute: Execute) -> None:
        self._plan = plan
        self._listener = listener
        self._execute = execute
        self._model_config = read_model_config(plan.settings.source)
        self._machine: Machine | None = None
        self._has_checkpoint = not plan.settings.has_random_weights
        self._loaded: Loaded | None = None
        self._repeats: list[Repeat] = []

    def run(self) -> None:
        """Measure every engine."""
        for engine in self._plan.engines:
            needs_checkpoint = engine not in OWN_ENGINES or self._plan.is_saving_weights
            if needs_checkpoint and not self._has_checkpoint:
                self._write_checkpoint()
            if self._machine is None and engine == "vllm":
                # vLLM starts processes of its own and wants to be the first to touch the device.
                settings = self._plan.settings
                task = InspectTask(device=settings.device, dtype=settings.dtype)
                self._execute(task, name="the inspection", on_event=self._take(engine))
            self._run_engine(engine)

    def _write_checkpoint(self) -> None:
        settings = self._plan.settings
        self._listener.on_progress(f"writing random weights to {settings.source.path}")
        task = CheckpointTask(source=settings.source, device=settings.device, dtype=settings.dtype)
        self._execute(task, name="the checkpoint's writer", on_event=_ignore)
        self._has_checkpoint = True

    def _run_engine(self, engine: EngineName) -> None:
        self._listener.on_progress(f"{engine}: loading {self._plan.settings.source.name}")
        settings = replace(self._plan.settings, engine=engine)
        if self._machine is not None:
            settings = replace(settings, dtype=cast(Dtype, self._machine.dtype))
        task = EngineTask(
            settings=settings,
            workloads=self._plan.workloads,
            plan=self._plan.measure,
            is_inspecting=self._machine is None,
        )
        self._loaded, self._repeats = None, []
        self._execute(task, name=engine, on_event=self._take(engine))

    def _take(self, engine: EngineName) -> OnEvent:
        """Return what takes the events of an engine's process."""

        def take(event: Event) -> None:
            match event:
                case Machine():
                    self._machine = event
                    self._listener.on_progress(_said_of(event))
                case Loaded():
                    self._loaded = event
                    self._listener.on_progress(
                        f"{engine} {event.engine_version}: ready after {event.seconds:.1f} s"
                    )
                case Repeat():
                    self._take_repeat(engine, event)
                case Profile():
                    self._listener.on_profile(engine, event)
                case Timeline():
                    self._listener.on_timeline(engine, event)

        return take

    def _take_repeat(self, engine: EngineName, repeat: Repeat) -> None:
        num_repeats = self._plan.measure.num_repeats
        self._repeats.append(repeat)
        self._listener.on_progress(
            f"{engine} {repeat.workload}: run {len(self._repeats)} of {num_repeats}, "
            f"{repeat.seconds:.2f} s"
        )
        if len(self._repeats) == num_repeats:
            self._listener.on_result(self._result(engine, self._repeats))
            self._repeats = []

    def _result(self, engine: EngineName, repeats: list[Repeat]) -> Result:
        assert self._machine is not None and self._loaded is not None, "reported before any repeat"
        [workload] = [each for each in self._plan.workloads if each.name == repeats[0].workload]
        return Result(
            engine=engine,
            engine_version=self._loaded.engine_version,
            load_s=self._loaded.seconds,
            model=self._plan.settings.source.name,
            workload=workload,
            machine=self._machine,
            limit=roofline_limit(
                self._model_config,
                workload,
                self._machine.hardware,
                bytes_per_element=BYTES_PER_ELEMENT[self._machine.dtype],
            ),
            repeats=tuple(repeats),
        )


def _said_of(machine: Machine) -> str:
    hardware = machine.hardware
    return (
        f"{hardware.name}, {machine.dtype}: {hardware.bytes_per_s / 1e9:,.0f} GB/s and "
        f"{hardware.flop_per_s / 1e9:,.0f} GFLOP/s sustained ({hardware.origin})"
    )


def _ignore(_event: Event) -> None:
    """Take an event that says nothing."""
