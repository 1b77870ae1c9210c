"""As much of Slurm as the shipped scripts meet: srun, scontrol, signals, requeueing.

A task is no child of the batch script, as under slurmd: its srun waits for it, hands it signals,
and makes a KILL of a TERM. At the end of its time a job gets what it asked for with --signal, or
TERM for its shell and its tasks; after `kill_wait_s` (Slurm's KillWait, 30 s) it gets KILL.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cli.program import ROOT, environment

SRUN = """\
import os, signal, subprocess, sys
task = subprocess.Popen(sys.argv[1:], start_new_session=True)
with open(os.path.join(os.environ["FAKE_SLURM"], "tasks"), "a") as tasks:
    tasks.write(f"{task.pid}\\n")
signal.signal(signal.SIGTERM, lambda number, frame: task.kill())
signal.signal(signal.SIGUSR1, lambda number, frame: task.send_signal(number))
code = task.wait()
sys.exit(code if code >= 0 else 128 - code)
"""
SCONTROL = """\
import os, sys
with open(os.path.join(os.environ["FAKE_SLURM"], "requests"), "a") as requests:
    requests.write(" ".join(sys.argv[1:]) + "\\n")
"""
NANOBATCH = """\
import os, sys
os.execv(sys.executable, [sys.executable, "-m", "tests.null_program", *sys.argv[1:]])
"""
POLL_S = 0.02
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a job.

    Attributes:
        code: Exit code of its script.
        log: What it printed.
        was_requeued: Whether it asked for another start.
        was_killed: Whether it was still there `kill_wait_s` after the end of its time.
    """

    code: int
    log: str
    was_requeued: bool
    was_killed: bool


class FakeSlurm:
    """A cluster of one node.

    Args:
        folder: For the commands and their records.
        kill_wait_s: Time between the first signal and KILL.
        nanobatch: Python text of the command `nanobatch`.
    """

    def __init__(self, folder: Path, *, kill_wait_s: float, nanobatch: str = NANOBATCH) -> None:
        self._folder = folder
        self._kill_wait_s = kill_wait_s
        (folder / "bin").mkdir(parents=True)
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("nanobatch", nanobatch)):
            command = folder / "bin" / name
            command.write_text(f"#!{sys.executable}\n{text}")
            command.chmod(0o755)

    def start(
        self,
        script: str,
        variables: Mapping[str, str],
        *,
        is_over: Callable[[], bool] = lambda: False,
        warns: bool = False,
    ) -> Start:
        """Start a job and wait for its end.

        Args:
            script: The batch script, from the project's root.
            variables: Environment of the job.
            is_over: Says when the job's time is over.
            warns: At that time the batch shell alone gets USR1, as with `--signal=B:USR1`.
        """
        for record in ("tasks", "requests"):
            (self._folder / record).write_text("")
        job = subprocess.Popen(
            ["bash", script],
            cwd=ROOT,
            env=self._environment(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        was_killed = self._end_in_time(job, is_over, warns=warns)
        log, _ = job.communicate(timeout=TIMEOUT_S)
        requests = (self._folder / "requests").read_text().splitlines()
        assert requests in ([], ["requeue 4711"])
        return Start(
            code=job.returncode,
            log=log.decode(),
            was_requeued=bool(requests),
            was_killed=was_killed,
        )

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {
            **environment(),
            "PATH": f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "FAKE_SLURM": str(self._folder),
            "SLURM_JOB_ID": "4711",
            **variables,
        }

    def _end_in_time(
        self, job: "subprocess.Popen[bytes]", is_over: Callable[[], bool], *, warns: bool
    ) -> bool:
        """Wait until the job has ended or its time is over; return whether it was killed."""
        if not _wait_until(lambda: job.poll() is not None or is_over(), TIMEOUT_S):
            raise TimeoutError("neither did the job end nor was its time over")
        if job.poll() is not None:
            return False
        if warns:
            job.send_signal(signal.SIGUSR1)
        else:
            job.send_signal(signal.SIGTERM)
            _send(self._tasks(), signal.SIGTERM)
        if _wait_until(lambda: job.poll() is not None, self._kill_wait_s):
            return False
        os.killpg(job.pid, signal.SIGKILL)
        _send(self._tasks(), signal.SIGKILL)
        return True

    def _tasks(self) -> list[int]:
        return [int(line) for line in (self._folder / "tasks").read_text().split()]


def _send(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)


def _wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
