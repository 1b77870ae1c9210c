"""What `validate` says of sharing, in words."""

from dataclasses import replace

from nanobatch.cli.sharing_text import render_sharing
from nanobatch.job.sharing_report import SharingLevel, SharingReport

GROUPS = SharingLevel(
    num_beginnings=50,
    typical_rows=40,
    most_rows=45,
    typical_tokens=1_024,
    num_reused_tokens=2_000_000,
)
REPORT = SharingReport(
    block_size=16,
    num_prompt_tokens=2_500_000,
    num_shared_tokens=2_051_200,
    num_reused_tokens=2_000_000,
    num_near_tokens=1_950_000,
    num_prefill_tokens=500_000,
    num_attended_tokens=800_000_000,
    num_saved_kv_tokens=600_000_000,
    num_running_seqs=256,
    num_output_tokens=128,
    window_rows=4_096,
    window_tokens=4_194_304,
    levels=(GROUPS,),
    is_lower_bound=False,
)


def test_groups_are_told_with_what_they_save() -> None:
    assert render_sharing(REPORT) == [
        "sharing: 82.0 % of prompt tokens are beginnings that other rows have too",
        "  level  beginnings  rows each   at most  tokens each    reused",
        "      1          50         40        45        1,024    80.0 %",
        "  prefill: 500,000 of 2,500,000 prompt tokens are computed, 80.0 % are reused",
        "  decode: about 75.0 % of KV reads are saved, "
        "with up to 256 answers at once, of 128 tokens or max_tokens if less",
    ]


def test_deep_levels_are_summed_up() -> None:
    pair = replace(GROUPS, num_beginnings=3, num_reused_tokens=25_000)
    lines = render_sharing(replace(REPORT, levels=(GROUPS, *[pair] * 7)))
    table = [line.split() for line in lines[2:9]]
    assert [line[0] for line in table] == ["1", "2", "3", "4", "5", "6", "deeper"]
    assert table[5][-2:] == ["1.0", "%"]
    assert table[6] == ["deeper", "6", "2.0", "%"]
    assert lines[9].startswith("  prefill: ")


def test_rows_that_are_too_far_apart_get_a_hint() -> None:
    near = replace(REPORT, num_near_tokens=1_875_001)
    assert render_sharing(near)[-1].startswith("  decode")
    far = replace(REPORT, num_near_tokens=1_875_000, num_prefill_tokens=2_400_000)
    assert render_sharing(far)[-3:][1:] == [
        "  hint: 80.0 % could be reused, but rows that begin alike are far apart: "
        "a run looks ahead",
        "  by 4,096 rows and 4,194,304 tokens; sort the rows, "
        "or raise --window-rows and --window-tokens",
    ]
    assert "4.0 % are reused" in render_sharing(far)[3]


def test_what_was_forgotten_makes_it_a_bound() -> None:
    far = replace(REPORT, num_near_tokens=0, is_lower_bound=True)
    assert render_sharing(far)[-2].startswith("  hint: at least 80.0 % could be reused")
    assert render_sharing(far)[0].startswith("sharing: at least 82.0 % of prompt tokens")


def test_nothing_shared_is_one_line() -> None:
    nothing = replace(REPORT, num_shared_tokens=0, num_reused_tokens=0, levels=())
    assert render_sharing(nothing) == ["sharing: no two rows begin with the same 16 tokens"]
