"""The process of one task: `python -m nanobatch.bench.worker FOLDER`.

Reads the task from the folder, appends events to a file beside it. What libraries print goes where
the starting process sent standard output and error.
"""

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

from nanobatch.bench.events import Event, Failed, Finished, encode_event
from nanobatch.bench.tasks import Task
from nanobatch.errors import NanobatchError
from nanobatch.job.process_memory import set_process_memory

TASK_FILE = "task.pickle"
EVENTS_FILE = "events.jsonl"
ORPHAN_CHECK_S = 1.0


def main(folder: Path) -> None:
    """Do the task in a folder; errors that nobody foresaw end the process with a traceback."""
    _die_with_parent()
    set_process_memory()  # as every run does
    task: Task = pickle.loads((folder / TASK_FILE).read_bytes())
    with (folder / EVENTS_FILE).open("a", encoding="utf-8", buffering=1) as lines:

        def report(event: Event) -> None:
            lines.write(encode_event(event) + "\n")

        try:
            task.run(report)
        except NanobatchError as error:
            report(Failed(error=type(error).__name__, message=error.message, hint=error.hint))
        else:
            report(Finished())


def _die_with_parent() -> None:
    """End this process and its children once the one that started it is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_S)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
