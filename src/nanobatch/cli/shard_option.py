"""`--shard`: which part of a split job this run is, and what its output is called.

Knows Slurm's array variables; `job_config.Shard` knows which rows a part has.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from nanobatch.errors import ConfigError
from nanobatch.job_config import Shard

_FORMS = "use i/n with i from 0, auto/n or auto, as in --shard 3/16"
_COMPRESSIONS = (".gz", ".zst")


def parse_shard(text: str | None, environ: Mapping[str, str]) -> Shard | None:
    """Return the shard that `--shard` names.

    Args:
        text: `i/n`, `auto/n` (i is the Slurm array task's), `auto` (n is the array's size too).
        environ: Environment variables.

    Raises:
        ConfigError: The text is no shard, or Slurm's variables do not say which.
    """
    if text is None:
        return None
    if text == "auto":
        return _shard_of_complete_array(environ)
    form = re.fullmatch(r"(auto|\d{1,9})/(\d{1,9})", text, re.ASCII)
    if form is None or int(form[2]) < 1:
        raise ConfigError(f"--shard is {text!r}", hint=_FORMS)
    num_shards = int(form[2])
    if form[1] == "auto":
        return _shard_of_task(num_shards, environ)
    if int(form[1]) >= num_shards:
        raise ConfigError(
            f"--shard is {text}; {num_shards} shards are numbered from 0 to {num_shards - 1}",
            hint=_FORMS,
        )
    return Shard(index=int(form[1]), num_shards=num_shards)


def require_shardable(shard: Shard | None, inputs: Sequence[str], output: str) -> None:
    """Refuse what a split job cannot have.

    Raises:
        ConfigError: An input is a pipe or the output is standard output.
    """
    if shard is None:
        return
    if "-" in inputs:
        raise ConfigError(
            "--shard cannot split standard input: every shard would need all of it",
            hint="write it to a file first",
        )
    if output == "-":
        raise ConfigError(
            "--shard and -o - exclude each other: shards are files that `nanobatch merge` joins",
            hint="name an output file",
        )


def shard_output(output: str, shard: Shard | None) -> str:
    """Return what a shard of this output is called: `a.jsonl.gz` to `a-00003-of-00016.jsonl.gz`."""
    if shard is None:
        return output
    path = PurePosixPath(output)
    suffix = path.suffix
    if suffix in _COMPRESSIONS:
        suffix = PurePosixPath(path.stem).suffix + suffix
    if not suffix.replace(".", "").isalpha():  # a version or a date in a folder's name
        suffix = ""
    stem = output.rstrip("/").removesuffix(suffix)
    slash = "/" if output.endswith("/") else ""
    return f"{stem}-{shard.index:05d}-of-{shard.num_shards:05d}{suffix}{slash}"


def _shard_of_task(num_shards: int, environ: Mapping[str, str]) -> Shard:
    """Return the array task's shard of so many; the array may hold some of them only."""
    task = _variable("SLURM_ARRAY_TASK_ID", environ, f"--shard auto/{num_shards}")
    last = int(environ.get("SLURM_ARRAY_TASK_MAX") or task)
    # One task too high is an array numbered from 1: then shard 0 has no task at all.
    if max(task, last) >= num_shards:
        raise ConfigError(
            f"--shard auto/{num_shards} is in an array with task {max(task, last)}; "
            f"shards are numbered from 0 to {num_shards - 1}",
            hint=f"submit it with sbatch --array=0-{num_shards - 1}",
        )
    return Shard(index=task, num_shards=num_shards)


def _shard_of_complete_array(environ: Mapping[str, str]) -> Shard:
    """Return the array task's shard, where the array's tasks are 0 to the last without a gap."""
    task, first, last, num_tasks = (
        _variable(f"SLURM_ARRAY_TASK_{name}", environ, "--shard auto")
        for name in ("ID", "MIN", "MAX", "COUNT")
    )
    if first != 0 or num_tasks != last + 1:
        raise ConfigError(
            f"--shard auto needs a complete array; this one has {num_tasks} tasks "
            f"from {first} to {last}",
            hint="submit it with sbatch --array=0-N, or say how many shards there are: auto/N",
        )
    return Shard(index=task, num_shards=num_tasks)


def _variable(name: str, environ: Mapping[str, str], flag: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise ConfigError(
            f"{flag} needs {name}, which is {repr(text) if text else 'not set'}",
            hint="run it in a Slurm array (sbatch --array=0-15), or name the shard: --shard 3/16",
        )
    return int(text)
