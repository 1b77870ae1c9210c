"""The program on the null model: `python -m tests.null_program run ...` is `nanobatch run ...`.

It starts as `nanobatch.__main__` does and is the same program in all but the model runner, so that
tests of processes (signals, kills, Slurm) load no weights. `NULL_STEP_S` in the environment is
the time that one step takes, in seconds; without it a step takes none.
"""

from nanobatch.cli.early_signals import handle_early_signals
from nanobatch.cli.standard_streams import replace_missing_streams


def main() -> None:
    """Run the program with the arguments of this process and exit."""
    handle_early_signals()
    replace_missing_streams()
    import functools

    from nanobatch.cli import run_job as in_front_of_a_person
    from nanobatch.cli.app import main as run_program
    from nanobatch.job.run import run_job
    from tests.slow_null_model import load_slow_null_runner

    run_null_job = functools.partial(run_job, load_runner=load_slow_null_runner)
    in_front_of_a_person.run_job = run_null_job  # type: ignore[attr-defined]
    run_program()


if __name__ == "__main__":
    main()
