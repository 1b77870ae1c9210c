"""A whole suite in this process: engines in order, one checkpoint, results even after a failure."""

from dataclasses import replace
from pathlib import Path

import pytest

from nanobatch.bench.engine_settings import EngineName, EngineSettings
from nanobatch.bench.events import Event, Failed, Machine, OnEvent, Profile, Timeline
from nanobatch.bench.measure import MeasurePlan
from nanobatch.bench.results import Result
from nanobatch.bench.suite import SuiteListener, SuitePlan, require_engines, run_suite
from nanobatch.bench.tasks import CheckpointTask, EngineTask, InspectTask, Task
from nanobatch.config import EngineConfig
from nanobatch.errors import ConfigError, EngineError
from nanobatch.models.random_model import write_random_model
from tests.bench.machines import h200, small_workload


class Heard:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.results: list[Result] = []
        self.profiles: list[tuple[str, Profile]] = []
        self.timelines: list[tuple[str, Timeline]] = []

    def listener(self) -> SuiteListener:
        return SuiteListener(
            on_progress=self.lines.append,
            on_result=self.results.append,
            on_profile=lambda engine, profile: self.profiles.append((engine, profile)),
            on_timeline=lambda engine, timeline: self.timelines.append((engine, timeline)),
        )


def smoke_plan(folder: Path, *engines: EngineName, **changes: object) -> SuitePlan:
    settings = EngineSettings(
        engine=engines[0],
        source=write_random_model(folder, "smoke"),
        has_random_weights=True,
        device="cpu",
        max_model_len=128,
        options={"num_kv_blocks": 64},
    )
    plan: dict[str, object] = {
        "engines": engines,
        "settings": settings,
        "workloads": (small_workload().within_vocabulary(512),),
        "measure": MeasurePlan(num_warmups=0, num_repeats=2),
        **changes,
    }
    return SuitePlan(**plan)  # type: ignore[arg-type]


class Here:
    """Runs tasks in this process, on a machine that need not be measured."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def __call__(self, task: Task, *, name: str, on_event: OnEvent) -> None:
        self.tasks.append(task)
        if isinstance(task, EngineTask):
            if task.is_inspecting:
                on_event(Machine(hardware=h200(), dtype="float32", versions={}))
            task = EngineTask(
                settings=task.settings,
                workloads=task.workloads,
                plan=task.plan,
                is_inspecting=False,
            )
        task.run(on_event)


def test_engines_run_in_order_on_one_checkpoint(tmp_path: Path) -> None:
    heard, here = Heard(), Here()
    plan = smoke_plan(
        tmp_path / "model",
        "nanobatch",
        "transformers",
        measure=MeasurePlan(
            num_warmups=0,
            num_repeats=2,
            has_timeline=True,
            trace_folder=tmp_path / "traces",
            profile_window_s=60.0,
        ),
    )
    run_suite(plan, heard.listener(), execute=here)
    assert [type(task) for task in here.tasks] == [EngineTask, CheckpointTask, EngineTask]
    assert [result.engine for result in heard.results] == ["nanobatch", "transformers"]
    assert [len(result.repeats) for result in heard.results] == [2, 2]
    assert {result.limit.num_prefill_tokens for result in heard.results} == {
        heard.results[0].num_prefill_tokens
    }
    assert heard.results[0].hit_rate > heard.results[1].hit_rate == 0.0
    assert [engine for engine, _ in heard.timelines] == ["nanobatch", "transformers"]
    assert {Path(profile.trace).name for _, profile in heard.profiles} == {
        "nanobatch-custom.json.gz",
        "transformers-custom.json.gz",
    }
    assert "nanobatch custom: run 1 of 2" in heard.lines[3]


def test_no_weights_are_written_for_nanobatch_alone(tmp_path: Path) -> None:
    run_suite(smoke_plan(tmp_path, "nanobatch"), Heard().listener(), execute=Here())
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_nanobatch_is_measured_beside_itself_without_shared_attention(tmp_path: Path) -> None:
    heard = Heard()
    plan = smoke_plan(tmp_path, "nanobatch", "nanobatch-unshared")
    run_suite(plan, heard.listener(), execute=Here())
    assert [result.engine for result in heard.results] == ["nanobatch", "nanobatch-unshared"]
    assert not (tmp_path / "model.safetensors").exists()
    shared, unshared = (
        EngineConfig(**replace(plan.settings, engine=name).engine_fields)  # type: ignore[arg-type]
        for name in plan.engines
    )
    assert (shared.enable_shared_attention, unshared.enable_shared_attention) == (True, False)
    assert unshared.num_kv_blocks == 64


def test_weights_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    plan = smoke_plan(tmp_path, "nanobatch", is_saving_weights=True)
    run_suite(plan, Heard().listener(), execute=Here())
    assert (tmp_path / "model.safetensors").exists()


def test_results_that_are_there_survive_an_engine_that_fails(tmp_path: Path) -> None:
    heard, here = Heard(), Here()

    def execute(task: Task, *, name: str, on_event: OnEvent) -> None:
        if name == "vllm":
            raise EngineError("vllm failed")
        here(task, name=name, on_event=on_event)

    plan = smoke_plan(tmp_path, "nanobatch", "vllm")
    with pytest.raises(EngineError, match="vllm failed"):
        run_suite(plan, heard.listener(), execute=execute)
    assert [result.engine for result in heard.results] == ["nanobatch"]


def test_the_machine_is_inspected_before_vllm_touches_the_device(tmp_path: Path) -> None:
    seen: list[tuple[type[Task], str]] = []

    def execute(task: Task, *, name: str, on_event: OnEvent) -> None:
        seen.append((type(task), name))
        if isinstance(task, InspectTask):
            on_event(Machine(hardware=h200(), dtype="bfloat16", versions={}))
        if isinstance(task, EngineTask):
            assert not task.is_inspecting
            assert task.settings.dtype == "bfloat16"

    run_suite(smoke_plan(tmp_path, "vllm"), Heard().listener(), execute=execute)
    assert seen == [
        (CheckpointTask, "the checkpoint's writer"),
        (InspectTask, "the inspection"),
        (EngineTask, "vllm"),
    ]


def test_engines_that_are_not_installed_are_refused() -> None:
    with pytest.raises(ConfigError, match="vllm is not installed here") as raised:
        require_engines(["nanobatch", "vllm"])
    assert raised.value.hint == "pip install vllm, or leave it out"
    require_engines(["nanobatch", "transformers"])


def test_an_inspection_measures_this_machine() -> None:
    events: list[Event] = []
    InspectTask(device="cpu", dtype="float32").run(events.append)
    [machine] = events
    assert isinstance(machine, Machine)
    assert not isinstance(machine, Failed)
    assert (machine.dtype, machine.hardware.kind) == ("float32", "cpu")
    assert machine.hardware.origin == "measured"
    assert machine.hardware.bytes_per_s > 1e8
    assert machine.hardware.flop_per_s > 1e8
    assert "torch" in machine.versions
