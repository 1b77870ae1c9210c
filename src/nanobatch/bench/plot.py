"""A picture of a suite: tokens per second over time, and the engines beside the limit."""

import importlib.util
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nanobatch.bench.events import Timeline
from nanobatch.bench.results import Result
from nanobatch.errors import ConfigError

SUFFIXES = (".svg", ".png")
NUM_BINS = 60
EngineAndWorkload = tuple[str, str]


def require_plotting(path: Path) -> None:
    """Refuse a picture that cannot be drawn.

    Raises:
        ConfigError: matplotlib is not installed, or the file is of another kind.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name must end in {' or '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed", hint="pip install 'nanobatch[plot]'"
        )


def write_plot(
    path: Path, results: Sequence[Result], timelines: Mapping[EngineAndWorkload, Timeline]
) -> None:
    """Draw a row of two charts for each workload.

    Args:
        path: An .svg or .png file.
        results: What was measured, at least one result.
        timelines: Tokens over time by engine and workload.
    """
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    workloads = list(dict.fromkeys(result.workload.name for result in results))
    figure, axes = pyplot.subplots(
        len(workloads), 2, figsize=(11, 3.4 * len(workloads)), squeeze=False
    )
    for (time_axes, bar_axes), workload in zip(axes, workloads, strict=True):
        of_workload = [result for result in results if result.workload.name == workload]
        _draw_over_time(time_axes, of_workload, timelines)
        _draw_bars(bar_axes, of_workload)
    first = results[0]
    figure.suptitle(f"{first.model}, {first.machine.dtype}, {first.machine.hardware.name}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def rates_over_time(timeline: Timeline) -> tuple[list[float], list[float]]:
    """Return the middles of equal spans of a run and the tokens per second in each."""
    seconds = np.asarray(timeline.seconds, dtype=np.float64)
    edges = np.linspace(0.0, seconds[-1], min(NUM_BINS, len(seconds)) + 1)
    num_tokens = np.interp(edges, seconds, np.asarray(timeline.num_tokens, dtype=np.float64))
    rates = np.diff(num_tokens) / np.maximum(np.diff(edges), 1e-9)
    return ((edges[1:] + edges[:-1]) / 2).tolist(), rates.tolist()


def _draw_over_time(
    axes: Any, results: Sequence[Result], timelines: Mapping[EngineAndWorkload, Timeline]
) -> None:
    for result in results:
        timeline = timelines.get((result.engine, result.workload.name))
        if timeline is not None:
            axes.plot(*rates_over_time(timeline), label=result.engine)
            axes.legend()
    axes.set(title=results[0].workload.name, xlabel="seconds", ylabel="output tok/s")
    axes.set_ylim(bottom=0)


def _draw_bars(axes: Any, results: Sequence[Result]) -> None:
    names = [result.engine for result in results]
    bars = axes.barh(names, [result.seconds for result in results])
    axes.bar_label(bars, [f"{result.seconds:.2f} s" for result in results], padding=3)
    limit_s = results[0].limit.seconds
    axes.axvline(limit_s, linestyle="--", color="black", label=f"limit {limit_s:.2f} s")
    axes.set(xlabel="seconds, lower is better")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.legend()
