import io
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from nanobatch.dashboard.plain import PlainProgress, format_line
from nanobatch.job.stats import JobStats, Phase
from tests.dashboard.snapshots import FINISHED, RUNNING, SHARING
from tests.dashboard.terminal import ROOT, environment

CLOCK = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)


class LogFile(io.StringIO):
    encoding = "utf-8"

    def lines(self) -> list[str]:
        return [CLOCK.sub("", line) for line in self.getvalue().splitlines()]


def run_on_pipe(*arguments: str) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-m", "tests.dashboard.player", *arguments],
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    return process.stderr.decode().splitlines()


def test_a_line_says_everything_that_a_log_is_searched_for() -> None:
    assert format_line(RUNNING) == (
        "running 61.4 % · 6,140/10,000 rows (3 errors) · 48 running · 812 waiting · "
        "prefill 1,204 tok/s · decode 3,310 tok/s · hit 70.9 % · KV 64.1 % · "
        "12m04s elapsed · ETA 4m10s"
    )


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FINISHED])
def test_a_line_says_what_sharing_saves_once_it_does(phase: Phase) -> None:
    quiet = format_line(replace(SHARING, phase=phase, num_saved_kv_tokens=0)).split(" · ")
    shared = format_line(replace(SHARING, phase=phase)).split(" · ")
    assert [item for item in shared if item not in quiet] == ["KV reads saved 82.0 %"]
    assert [item for item in quiet if item not in shared] == []


def test_a_line_of_a_quiet_phase_is_short() -> None:
    loading = replace(RUNNING, phase=Phase.LOADING)
    finalizing = replace(RUNNING, phase=Phase.FINALIZING, finalize_fraction=0.25)
    assert format_line(loading) == "loading model 9s"
    assert format_line(finalizing) == (
        "writing output 25.0 % · 6,140/10,000 rows (3 errors) · 12m04s elapsed"
    )


def test_a_run_without_steps_says_for_how_long() -> None:
    assert format_line(RUNNING, age_s=34.0).endswith(" · no step for 34s")


def test_the_last_line_shows_the_final_stats() -> None:
    assert format_line(FINISHED) == (
        "finished 100.0 % · 10,000/10,000 rows (3 errors) · prefill 1,180 tok/s mean · "
        "decode 3,102 tok/s mean · hit 70.9 % · 16m20s elapsed"
    )


def test_a_pipe_gets_a_line_at_the_start_every_interval_and_at_the_end() -> None:
    lines = run_on_pipe("run", "1.0", "0.3")
    progress = [line for line in lines if CLOCK.match(line)]
    phases = [line.split()[1] for line in progress]
    assert len(phases) >= 4
    assert phases == ["running"] * (len(phases) - 1) + ["finished"]
    assert "\x1b" not in "".join(lines)
    assert "\r" not in "".join(lines)


def test_lines_go_on_with_a_moving_clock_when_nothing_happens() -> None:
    lines = run_on_pipe("stuck", "2.5", "0.5")
    spans = [line.rpartition(" ")[2] for line in lines if re.match(r"\S+ loading model ", line)]
    assert len(spans) >= 4
    assert spans == sorted(spans)
    assert (spans[0], spans[-1]) == ("0s", "2s")


def test_a_change_of_phase_is_a_line_of_its_own_between_intervals() -> None:
    stream = LogFile()
    with PlainProgress(stream, 60.0) as progress:
        for phase in (Phase.STARTING, Phase.LOADING, Phase.RUNNING, Phase.FINALIZING):
            progress.update(replace(RUNNING, phase=phase))
            progress.update(replace(RUNNING, phase=phase))
            time.sleep(0.05)
        progress.close(FINISHED)
        progress.close(FINISHED)
    starts = [re.split(r" \d", line)[0] for line in stream.lines()]
    assert starts == ["starting", "loading model", "running", "writing output", "finished"]


def test_an_error_that_ends_the_run_still_gets_its_last_line() -> None:
    stream = LogFile()
    progress = PlainProgress(stream, 60.0)
    with pytest.raises(KeyboardInterrupt), progress:
        progress.update(RUNNING)
        time.sleep(0.05)
        progress.update(replace(RUNNING, num_rows_done=7_000))
        raise KeyboardInterrupt
    assert "7,000/10,000 rows" in stream.lines()[-1]


def test_a_run_that_never_began_leaves_no_last_line() -> None:
    stream = LogFile()
    progress = PlainProgress(stream, 60.0)
    progress.close()
    assert stream.lines() == []
    progress = PlainProgress(stream, 60.0)
    progress.update(JobStats())
    time.sleep(0.05)
    progress.close()
    assert stream.lines() == ["starting 0s"]


def test_a_log_that_is_not_utf_8_gets_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with PlainProgress(stream, 60.0) as progress:
        progress.close(FINISHED)
    stream.seek(0)
    assert " | 10,000/10,000 rows (3 errors) | " in stream.read()


def test_a_pipe_whose_reader_left_does_not_end_the_run() -> None:
    class BrokenPipe(LogFile):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    with PlainProgress(BrokenPipe(), 0.01) as progress:
        progress.update(RUNNING)
        time.sleep(0.05)
        progress.update(RUNNING)
        progress.close(FINISHED)
