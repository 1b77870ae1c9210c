"""The shipped Slurm scripts on a fake Slurm: requeued until complete, and no further."""

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.configs.fake_slurm import FakeSlurm, Start
from tests.job.null_jobs import read_rows, write_lines
from tests.null_model import write_null_model

NUM_ROWS = 48
KILL_WAIT_S = 12.0  # Slurm's default is 30; nanobatch promises 10
CONFIG = """
max-num-seqs = 4
max-tokens = 8
progress = false
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """What the scripts take from the environment: a job on the null model."""
    rows = [{"id": f"row-{index}", "prompt": f"row {index}"} for index in range(NUM_ROWS)]
    model = write_null_model(tmp_path / "model")
    (tmp_path / "job.toml").write_text(f'model = "{model}"\n{CONFIG}')
    return {
        "INPUT": str(write_lines(tmp_path / "in.jsonl", rows)),
        "OUTPUT": str(tmp_path / "out.jsonl"),
        "CONFIG": str(tmp_path / "job.toml"),
    }


def grows(output: Path) -> Callable[[], bool]:
    """Return whether a row has been recorded since."""

    def journal_bytes() -> int:
        return sum(path.stat().st_size for path in Path(f"{output}.nanobatch").glob("*.journal"))

    before = journal_bytes()
    return lambda: journal_bytes() > before + 200  # a new segment has a header


@pytest.mark.slow
def test_a_job_that_is_stopped_twice_is_requeued_and_completes(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", kill_wait_s=KILL_WAIT_S)
    output = Path(variables["OUTPUT"])
    starts: list[Start] = []
    for warns in (False, True):
        starts.append(
            slurm.start(
                "configs/slurm/requeue.sbatch",
                {**variables, "NULL_STEP_S": "0.1"},
                is_over=grows(output),
                warns=warns,
            )
        )
        assert not output.exists()
    starts.append(slurm.start("configs/slurm/requeue.sbatch", variables))
    assert [start.code for start in starts] == [75, 75, 0], starts
    assert [start.was_requeued for start in starts] == [True, True, False]
    assert not any(start.was_killed for start in starts)
    assert [row["id"] for row in read_rows(output)] == [f"row-{i}" for i in range(NUM_ROWS)]
    resumed = [re.findall(r"resuming: (\d+) rows", start.log) for start in starts]
    assert 0 == len(resumed[0]) < int(resumed[1][0]) < int(resumed[2][0]) < NUM_ROWS
    assert not Path(f"{output}.requeues").exists()


STATUS = """\
import os, sys
if sys.argv[1] == "status":
    print('{"state": "stopped", "rows_done": %s, "rows_error": 0}' % os.environ["ROWS_DONE"])
else:
    sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def stub(tmp_path: Path) -> FakeSlurm:
    """A Slurm whose nanobatch ends with `CODE` and has `ROWS_DONE`."""
    return FakeSlurm(tmp_path / "slurm", kill_wait_s=KILL_WAIT_S, nanobatch=STATUS)


def start(slurm: FakeSlurm, variables: dict[str, str], *, code: int, rows_done: int) -> Start:
    given = {**variables, "CODE": str(code), "ROWS_DONE": str(rows_done)}
    return slurm.start("configs/slurm/requeue.sbatch", given)


def test_a_job_without_a_new_row_is_requeued_three_times(
    stub: FakeSlurm, variables: dict[str, str]
) -> None:
    starts = [start(stub, variables, code=75, rows_done=0) for _ in range(4)]
    assert [one.code for one in starts] == [75] * 4
    assert [one.was_requeued for one in starts] == [True, True, True, False]
    assert starts[-1].log == "not requeued: no new row in 3 requeues (0 rows done)\n"


def test_a_new_row_makes_three_more_requeues(stub: FakeSlurm, variables: dict[str, str]) -> None:
    rows_done = [5, 5, 5, 6, 6, 6, 6]
    starts = [start(stub, variables, code=75, rows_done=number) for number in rows_done]
    assert [one.was_requeued for one in starts] == [True] * 6 + [False]
    assert starts[3].log == "requeueing job 4711: 6 rows done\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130, 137])
def test_only_a_stopped_run_is_requeued(
    code: int, stub: FakeSlurm, variables: dict[str, str]
) -> None:
    assert start(stub, variables, code=75, rows_done=1).was_requeued
    ended = start(stub, variables, code=code, rows_done=1)
    assert (ended.code, ended.was_requeued, ended.log) == (code, False, "")
    assert not Path(f"{variables['OUTPUT']}.requeues").exists()


@pytest.mark.slow
def test_the_array_s_tasks_are_the_shards_of_the_job(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    ended: dict[int, Start] = {}

    def run_task(index: int) -> None:
        slurm = FakeSlurm(tmp_path / f"slurm-{index}", kill_wait_s=KILL_WAIT_S)
        task = {"SLURM_ARRAY_TASK_ID": str(index), "NUM_SHARDS": "3"}
        names = {"OUTPUT_STEM": str(tmp_path / "out"), "OUTPUT_SUFFIX": ".jsonl"}
        ended[index] = slurm.start("configs/slurm/array.sbatch", {**variables, **task, **names})

    tasks = [threading.Thread(target=run_task, args=(index,)) for index in range(3)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert [ended[index].code for index in range(3)] == [0, 0, 0], ended
    rows = [read_rows(tmp_path / f"out-0000{index}-of-00003.jsonl") for index in range(3)]
    assert [row["id"] for shard in rows for row in shard] == [f"row-{i}" for i in range(NUM_ROWS)]
    assert {len(shard) for shard in rows} == {16}
