import io
from dataclasses import replace

import pytest
from rich.console import Console

from nanobatch.dashboard.frame import StatsFrame
from nanobatch.job.stats import JobStats, Phase
from tests.dashboard.snapshots import EMPTY, FINISHED, ON_GPU, RUNNING, SHARING


def draw(stats: JobStats, *, width: int = 80, height: int = 24, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=stream, width=width, height=height, color_system=None)
    console.print(StatsFrame(stats), end="")
    stream.seek(0)
    return stream.read()


def test_the_frame_at_80_columns() -> None:
    assert draw(ON_GPU).splitlines() == [
        "╭─ nanobatch · answers.parquet ────────────────────────────────────────────────╮",
        "│ ● running · 1,000 rows resumed · SmolLM2-360M-Instruct        12m04s elapsed │",
        "│ ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━─────────────────────   61.4 %    ETA 4m10s │",
        "│                                                                              │",
        "│ 6,140                       48              812             3                │",
        "│ rows done of 10,000         running         waiting         errors           │",
        "│                                                                              │",
        "│ KV blocks   ████████████████████████▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░   64.1 % in use │",
        "│             █ used 1,004   ▓ shared 310   ▒ cached 602   ░ free 132          │",
        "│                                                                              │",
        "│ prefill         1,204 tok/s  mean            1,180 tok/s                     │",
        "│ decode          3,310 tok/s  mean            3,102 tok/s  ██▇▇▇▆▆▆▅▅▅▄▅▄▄▅▄▅ │",
        "│ prefix hits      70.9 %      preemptions         2                           │",
        "│ GPU busy         97.0 %      GPU memory       61.0 of 80.0 GiB               │",
        "╰──────────────────────────────────────────────────────────────────────────────╯",
    ]


def test_what_sharing_saves_stands_under_the_blocks_that_are_shared() -> None:
    quiet, shared = (draw(stats).splitlines() for stats in (ON_GPU, SHARING))
    place = next(place for place, line in enumerate(quiet) if "shared 310" in line) + 1
    assert shared == [
        *quiet[:place],
        "│ KV reads         82.0 % saved by sharing                                     │",
        *quiet[place:],
    ]


def test_without_a_gpu_there_is_no_gpu_line() -> None:
    assert "GPU" not in draw(RUNNING)


def test_a_phase_whose_end_is_not_known_moves_without_a_share() -> None:
    loading = replace(RUNNING, phase=Phase.LOADING, elapsed_s=9.4)
    later = replace(loading, elapsed_s=9.9)
    assert "loading model" in draw(loading)
    assert "%" not in draw(loading).splitlines()[2]
    assert draw(loading).splitlines()[2] != draw(later).splitlines()[2]


def test_writing_the_output_shows_its_own_share() -> None:
    finalizing = replace(RUNNING, phase=Phase.FINALIZING, input_fraction=1.0, finalize_fraction=0.4)
    lines = draw(finalizing).splitlines()
    assert "writing output" in lines[1]
    assert "40.0 %" in lines[2]


@pytest.mark.parametrize("stats", [EMPTY, RUNNING, ON_GPU, SHARING, FINISHED])
@pytest.mark.parametrize("width", [60, 71, 80, 100, 120, 240])
def test_every_line_of_the_box_is_equally_wide(stats: JobStats, width: int) -> None:
    lines = draw(stats, width=width, height=30).splitlines()
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) <= 16


HUGE = replace(
    ON_GPU,
    job_name="s3/very/long/" * 20,
    model_name="组织/模型" * 30,
    num_rows_done=123_456_789,
    num_rows_total=987_654_321,
    num_rows_running=1_024,
    num_rows_waiting=1_000_000,
    num_rows_error=12_345_678,
    num_blocks=4_000_000,
    num_blocks_used=1_234_567,
    num_blocks_shared=1_234_567,
    num_blocks_cached=1_234_567,
    num_attended_tokens=10**15,
    num_saved_kv_tokens=10**15,
    prefill_tokens_per_s_now=1_234_567.0,
    eta_s=86_400.0 * 20,
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_huge_numbers_and_wide_names_stay_in_the_box(width: int) -> None:
    console = Console(width=width, height=30, color_system=None, file=io.StringIO())
    lines = console.render_lines(StatsFrame(HUGE), pad=False)
    assert {sum(segment.cell_length for segment in line) for line in lines} == {width}
    assert {line[-1].text[-1] for line in lines} == {"╮", "│", "╯"}


def test_columns_never_touch_at_80_columns() -> None:
    text = draw(HUGE)
    assert "123,456,789 " in text
    assert "done of 987,654,321 " in text
    assert " 12,345,678 " in text


@pytest.mark.parametrize(("width", "height"), [(59, 24), (80, 16), (10, 5)])
def test_where_space_is_scarce_five_plain_lines_remain(width: int, height: int) -> None:
    lines = draw(RUNNING, width=width, height=height).splitlines()
    assert [line.rstrip() for line in lines] == [
        line[:width].rstrip()
        for line in (
            "running · 61.4 % · ETA 4m10s",
            "6,140/10,000 rows · 3 errors",
            "48 running · 812 waiting",
            "prefill 1,204 · decode 3,310 tok/s",
            "hit 70.9 % · KV 64.1 % · 2 preemptions",
        )
    ]


def test_plain_lines_end_with_what_sharing_saves() -> None:
    last = draw(SHARING, width=59).splitlines()[-1].rstrip()
    assert last == "hit 70.9 % · KV 64.1 % · 2 preemptions · KV reads saved 82."


def test_a_terminal_without_unicode_gets_ascii() -> None:
    assert draw(ON_GPU, encoding="ascii").isascii()


def test_a_name_in_square_brackets_is_no_markup() -> None:
    assert "[bold]answers" in draw(replace(RUNNING, job_name="[bold]answers"))
