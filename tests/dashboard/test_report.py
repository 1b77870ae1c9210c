from dataclasses import replace

from nanobatch.dashboard.report import render_summary
from nanobatch.job.stats import Phase
from tests.dashboard.snapshots import EMPTY, FINISHED, RUNNING, SHARING


def test_the_summary_says_what_promise_23_lists() -> None:
    assert render_summary(FINISHED, "answers.parquet").splitlines() == [
        "finished: 10,000/10,000 rows in 16m20s",
        "  rows        9,997 ok, 3 errors (2 prompt_too_long, 1 invalid_json); "
        "1,000 from earlier runs",
        "  tokens      1,733,001 in, 1,234,567 cached, 512,000 out",
        "  speed       prefill 1,180 tok/s, decode 3,102 tok/s (mean)",
        "  prefix      70.9 % hits, 505,433 prefill tokens computed",
        "  preempted   1,024 tokens in 5 preemptions",
        "  time        starting 0.4s, loading model 9.0s, running 967.6s, writing output 3.0s",
        "  note        412 of 10,000 rows hit max_tokens",
        "  output      answers.parquet",
    ]


def test_what_did_not_happen_is_not_noted() -> None:
    quiet = replace(FINISHED, num_rows_max_tokens=0, num_rows_resumed=0)
    text = render_summary(quiet)
    assert "note" not in text
    assert "earlier runs" not in text
    assert "output  " not in text


def test_what_sharing_saved_stands_beside_the_prefix_cache() -> None:
    lines = render_summary(replace(SHARING, phase=Phase.FINISHED)).splitlines()
    assert (
        "  prefix      70.9 % hits, 505,433 prefill tokens computed, 82.0 % of KV reads saved"
        in lines
    )


def test_replaced_surrogates_are_noted() -> None:
    text = render_summary(replace(FINISHED, num_surrogates=1))
    assert "  note        1 lone surrogate replaced by U+FFFD\n" in text


def test_a_stopped_run_says_so_first() -> None:
    text = render_summary(replace(RUNNING, phase=Phase.STOPPED))
    assert text.startswith("stopped: 6,140/10,000 rows in 12m04s\n")


def test_a_run_of_nothing_has_a_summary_too() -> None:
    assert "  rows        0 ok, 0 errors\n" in render_summary(EMPTY)


def test_a_summary_is_at_most_a_dozen_lines() -> None:
    everything = replace(FINISHED, num_surrogates=4)
    assert len(render_summary(everything, "answers.parquet").splitlines()) <= 12
