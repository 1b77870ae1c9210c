"""The command line answers at once, because it loads nothing heavy."""

import resource
import subprocess
import sys
from statistics import median

from tests.project.source_tree import ROOT

MAX_HELP_S = 0.5
HEAVY_LIBRARIES = ("torch", "transformers", "triton", "pyarrow", "numpy")


def heavy_libraries_loaded_by(program: str) -> str:
    """Return the heavy libraries in sys.modules after a program ran in a fresh interpreter."""
    report = f"import sys; print(*[name for name in {HEAVY_LIBRARIES} if name in sys.modules])"
    wrapped = f"try:\n    {program}\nexcept SystemExit:\n    pass\n{report}"
    done = subprocess.run(
        [sys.executable, "-c", wrapped], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert heavy_libraries_loaded_by("import nanobatch") == ""


def test_help_loads_no_heavy_library() -> None:
    program = "from nanobatch.cli.app import main; main(['--help'])"
    assert heavy_libraries_loaded_by(program) == ""


def test_help_of_run_loads_no_heavy_library() -> None:
    program = "from nanobatch.cli.app import main; main(['run', '--help'])"
    assert heavy_libraries_loaded_by(program) == ""


def processor_time_s() -> float:
    """Return the processor time of all children so far: wall time would measure our neighbours."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_answers_in_half_a_second() -> None:
    durations_s = []
    for _ in range(5):
        start_s = processor_time_s()
        subprocess.run(
            [sys.executable, "-m", "nanobatch", "--help"], cwd=ROOT, capture_output=True, check=True
        )
        durations_s.append(processor_time_s() - start_s)
    assert median(durations_s) < MAX_HELP_S
