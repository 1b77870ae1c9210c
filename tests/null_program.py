"""The program on the null model: `python -m tests.null_program run ...` is `nanobatch run ...`.

It is the same program from its first line, in all but the model runner and without torch, so that
tests of processes (signals, kills, Slurm) start in a second or two. `NULL_STEP_S` in the
environment is the time that one step takes, in seconds; without it a step takes none.
"""

import functools
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from nanobatch.__main__ import main

_RUNS_JOBS = "nanobatch.cli.run_job"


class _NullRunJob(SourceFileLoader):
    """Loads the module that runs jobs, and lets it run them on the null model."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        from tests.slow_null_model import load_slow_null_runner

        module.run_job = functools.partial(  # type: ignore[attr-defined]
            module.run_job, load_runner=load_slow_null_runner
        )


class _NullRunJobFinder:
    """Waits for that module: loading it before the program does would change how it starts."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _RUNS_JOBS:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _NullRunJob(name, spec.origin)
        return spec


if __name__ == "__main__":
    # As where torch is not installed: transformers would load it for the tokenizer, in 4 s.
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would say that torch is missing
    sys.meta_path.insert(0, _NullRunJobFinder())
    main()
