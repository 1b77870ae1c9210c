import io

import pytest

from nanobatch.dashboard.live import LiveDashboard
from nanobatch.dashboard.plain import PlainProgress
from nanobatch.dashboard.progress import make_progress
from nanobatch.dashboard.protocol import Progress, SilentProgress
from tests.dashboard.snapshots import FINISHED, RUNNING


@pytest.mark.parametrize(
    ("show_progress", "is_terminal", "term", "expected"),
    [
        (True, True, "xterm", LiveDashboard),
        (True, True, "dumb", PlainProgress),
        (True, False, "xterm", PlainProgress),
        (False, True, "xterm", SilentProgress),
        (False, False, "xterm", SilentProgress),
    ],
)
def test_the_way_to_show_a_run_follows_from_terminal_and_wish(
    monkeypatch: pytest.MonkeyPatch,
    *,
    show_progress: bool,
    is_terminal: bool,
    term: str,
    expected: type[Progress],
) -> None:
    monkeypatch.setenv("TERM", term)
    progress = make_progress(
        io.StringIO(), show_progress=show_progress, is_terminal=is_terminal, interval_s=30.0
    )
    assert type(progress) is expected


def test_silence_is_silent() -> None:
    stream = io.StringIO()
    with make_progress(stream, show_progress=False, is_terminal=True, interval_s=30.0) as progress:
        progress.update(RUNNING)
        progress.close(FINISHED)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_that_was_never_shown_can_be_closed(*, is_terminal: bool) -> None:
    stream = io.StringIO()
    with make_progress(
        stream, show_progress=True, is_terminal=is_terminal, interval_s=30.0
    ) as progress:
        progress.close()
    assert stream.getvalue() == ""
