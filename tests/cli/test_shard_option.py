"""`--shard` names a part of a job, by hand or from Slurm's array variables, and its output."""

import pytest

from nanobatch.cli.shard_option import parse_shard, shard_output
from nanobatch.errors import ConfigError
from nanobatch.job_config import Shard


def array_task(index: int, tasks: list[int], **variables: str) -> dict[str, str]:
    """Return the variables of one task of a Slurm array."""
    return {
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_ARRAY_TASK_MIN": str(min(tasks)),
        "SLURM_ARRAY_TASK_MAX": str(max(tasks)),
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        **variables,
    }


@pytest.mark.parametrize(
    ("text", "environ", "shard"),
    [
        (None, {}, None),
        ("0/1", {}, Shard(index=0, num_shards=1)),
        ("15/16", {}, Shard(index=15, num_shards=16)),
        ("3/16", array_task(5, [5]), Shard(index=3, num_shards=16)),
        ("auto/16", {"SLURM_ARRAY_TASK_ID": "7"}, Shard(index=7, num_shards=16)),
        ("auto/16", array_task(7, list(range(16))), Shard(index=7, num_shards=16)),
        ("auto/16", array_task(7, [3, 7]), Shard(index=7, num_shards=16)),
        ("auto", array_task(2, [0, 1, 2, 3]), Shard(index=2, num_shards=4)),
        (
            "auto",
            array_task(0, [0, 1], SLURM_ARRAY_TASK_STEP="1"),
            Shard(index=0, num_shards=2),
        ),
    ],
)
def test_a_shard_is_found(text: str | None, environ: dict[str, str], shard: Shard | None) -> None:
    assert parse_shard(text, environ) == shard


FORMS = "use i/n with i from 0, auto/n or auto, as in --shard 3/16"
NO_ARRAY = "run it in a Slurm array (sbatch --array=0-15), or name the shard: --shard 3/16"
COMPLETE = "submit it with sbatch --array=0-N, or say how many shards there are: auto/N"


@pytest.mark.parametrize(
    ("text", "environ", "message", "hint"),
    [
        ("3", {}, "--shard is '3'", FORMS),
        ("0/0", {}, "--shard is '0/0'", FORMS),
        ("-1/4", {}, "--shard is '-1/4'", FORMS),
        ("1/4/2", {}, "--shard is '1/4/2'", FORMS),
        ("automatic", {}, "--shard is 'automatic'", FORMS),
        ("4/4", {}, "--shard is 4/4; 4 shards are numbered from 0 to 3", FORMS),
        (
            "auto/16",
            {},
            "--shard auto/16 needs SLURM_ARRAY_TASK_ID, which is not set",
            NO_ARRAY,
        ),
        (
            "auto/16",
            {"SLURM_ARRAY_TASK_ID": "x"},
            "--shard auto/16 needs SLURM_ARRAY_TASK_ID, which is 'x'",
            NO_ARRAY,
        ),
        (
            "auto/4",
            array_task(2, [1, 2, 3, 4]),
            "--shard auto/4 is in an array with task 4; shards are numbered from 0 to 3",
            "submit it with sbatch --array=0-3",
        ),
        ("auto", {}, "--shard auto needs SLURM_ARRAY_TASK_ID, which is not set", NO_ARRAY),
        (
            "auto",
            array_task(1, [1, 2, 3]),
            "--shard auto needs a complete array; this one has 3 tasks from 1 to 3",
            COMPLETE,
        ),
        (
            "auto",
            array_task(2, [0, 2, 4]),
            "--shard auto needs a complete array; this one has 3 tasks from 0 to 4",
            COMPLETE,
        ),
    ],
)
def test_a_shard_that_is_not_clear_is_refused(
    text: str, environ: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_shard(text, environ)
    assert (refused.value.message, refused.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ("name.parquet", "name-00003-of-00016.parquet"),
        ("a/b.v2/name.v2.jsonl", "a/b.v2/name.v2-00003-of-00016.jsonl"),
        ("name.jsonl.gz", "name-00003-of-00016.jsonl.gz"),
        ("/x/name.ndjson.zst", "/x/name-00003-of-00016.ndjson.zst"),
        ("DIR/", "DIR-00003-of-00016/"),
        ("a/DIR.jsonl.gz/", "a/DIR-00003-of-00016.jsonl.gz/"),
    ],
)
def test_a_shard_s_output_says_which_it_is(output: str, named: str) -> None:
    assert shard_output(output, Shard(index=3, num_shards=16)) == named
    assert shard_output(output, None) == output
