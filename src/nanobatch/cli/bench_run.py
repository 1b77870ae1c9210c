"""Runs a suite in front of a person: progress and tables on stderr, JSON lines on stdout."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from nanobatch.bench.events import Profile, Timeline
from nanobatch.bench.plot import EngineAndWorkload, require_plotting, write_plot
from nanobatch.bench.provenance import commit, now
from nanobatch.bench.results import Result
from nanobatch.bench.suite import SuiteListener, SuitePlan, run_suite
from nanobatch.bench.table import profile_heading, profile_table, result_table
from nanobatch.bench.worker_process import WorkerCrashError, run_task
from nanobatch.cli.run_job import SPIN_COUNT
from nanobatch.errors import ConfigError

MIN_WIDTH = 140
"""Columns of the tables where standard error is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutputs:
    """Where results go beside standard output.

    Attributes:
        json: File that the JSON lines are appended to, or None.
        plot: Picture, or None.
    """

    json: Path | None
    plot: Path | None

    @classmethod
    def of(cls, *, json: str | None, plot: str | None) -> "BenchOutputs":
        """Return the outputs that were asked for.

        Raises:
            ConfigError: One of them cannot be written.
        """
        outputs = cls(
            json=None if json is None else Path(json), plot=None if plot is None else Path(plot)
        )
        if outputs.plot is not None:
            require_plotting(outputs.plot)
        if outputs.json is not None and not outputs.json.parent.is_dir():
            raise ConfigError(f"--json {json}: there is no folder {outputs.json.parent}")
        return outputs


def run_bench(plan: SuitePlan, outputs: BenchOutputs, *, debug: bool) -> None:
    """Measure, and show what was measured even if an engine fails on the way.

    Raises:
        NanobatchError: An engine failed.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # every engine's process inherits it
    width = None if sys.stderr.isatty() else MIN_WIDTH
    report = _Report(plan, outputs, Console(stderr=True, width=width, highlight=False))
    try:
        with _interruptible():
            run_suite(
                plan,
                report.listener(),
                execute=partial(run_task, log=sys.stderr) if debug else run_task,
            )
    except WorkerCrashError as error:
        report.show_lines(error.last_lines)
        raise
    finally:
        report.show_tables()
    report.draw()


class _Report:
    """Takes results as they come."""

    def __init__(self, plan: SuitePlan, outputs: BenchOutputs, console: Console) -> None:
        self._plan = plan
        self._outputs = outputs
        self._console = console
        self._commit = commit()
        self._results: list[Result] = []
        self._profiles: list[tuple[str, Profile]] = []
        self._timelines: dict[EngineAndWorkload, Timeline] = {}

    def listener(self) -> SuiteListener:
        """Return the listener that fills this report."""
        return SuiteListener(
            on_progress=self._show_progress,
            on_result=self._take_result,
            on_profile=lambda engine, profile: self._profiles.append((engine, profile)),
            on_timeline=self._take_timeline,
        )

    def show_lines(self, lines: tuple[str, ...]) -> None:
        """Show what a process printed last."""
        for line in lines:
            self._console.out(f"  | {line}")

    def show_tables(self) -> None:
        """Show all results and profiles that there are."""
        if self._results:
            self._console.print(result_table(self._results))
        for engine, profile in self._profiles:
            self._console.out(profile_heading(engine, profile))
            self._console.print(profile_table(profile))

    def draw(self) -> None:
        """Draw the picture that was asked for."""
        if self._outputs.plot is not None:
            write_plot(self._outputs.plot, self._results, self._timelines)
            self._show_progress(f"picture: {self._outputs.plot}")

    def _show_progress(self, line: str) -> None:
        self._console.out(line)

    def _take_result(self, result: Result) -> None:
        self._results.append(result)
        measure = self._plan.measure
        settings = replace(self._plan.settings, engine=result.engine)
        line = json.dumps(
            result.record(
                date=now(),
                commit=self._commit,
                options={
                    **settings.engine_fields,
                    "max_model_len": settings.max_model_len,
                    "seed": settings.seed,
                    "warmup": measure.num_warmups,
                    **({"vllm": dict(settings.vllm_options)} if result.engine == "vllm" else {}),
                    **(
                        {"hf_batch_size": settings.hf_batch_size}
                        if result.engine == "transformers"
                        else {}
                    ),
                },
            )
        )
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if self._outputs.json is not None:
            with self._outputs.json.open("a", encoding="utf-8") as lines:
                lines.write(f"{line}\n")

    def _take_timeline(self, engine: str, timeline: Timeline) -> None:
        self._timelines[engine, timeline.workload] = timeline


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let stop signals unwind the stack, so that engines are ended and folders removed."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
