"""`OUTPUT.summary.json`: what a finished run did, with what, and what it was (promise 23)."""

import dataclasses
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nanobatch import __version__
from nanobatch.io.durable import remove_stale_temporaries, write_json_atomically
from nanobatch.job.complete_output import output_bytes, output_layout
from nanobatch.job.fingerprint import stdin_digest
from nanobatch.job.gpu_usage import gpu_name
from nanobatch.job.manifest import MANIFEST_VERSION, read_manifest
from nanobatch.job.plan import JobPlan
from nanobatch.job.stats import JobStats
from nanobatch.job_config import JobConfig

_PACKAGES = ("torch", "triton", "transformers", "tokenizers", "pyarrow", "numpy")


def write_summary(plan: JobPlan, stats: JobStats, *, exit_code: int) -> None:
    """Write the summary beside the output.

    Raises:
        StorageError: It cannot be written.
    """
    path = plan.config.summary_path
    remove_stale_temporaries(path)
    write_json_atomically(path, build_summary(plan, stats, exit_code=exit_code))


def build_summary(plan: JobPlan, stats: JobStats, *, exit_code: int) -> dict[str, object]:
    """Return the summary of a finished run as JSON values."""
    config = plan.config
    manifest = read_manifest(config.journal_dir)
    return {
        "version": MANIFEST_VERSION,
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": exit_code,
        "output": config.output,
        "output_bytes": output_bytes(config),
        "layout": output_layout(config),
        "columns": None if config.columns is None else list(config.columns),
        "shard": plan.shard_rows(),
        "journal_id": None if manifest is None else manifest.journal_id,
        "stdin": stdin_digest(plan.sources),
        "model": plan.model.name,
        "rows": {
            "total": stats.num_rows_done,
            "ok": stats.num_rows_done - stats.num_rows_error,
            "error": stats.num_rows_error,
            "errors_by_code": dict(stats.error_counts),
            "from_earlier_runs": stats.num_rows_resumed,
            "hit_max_tokens": stats.num_rows_max_tokens,
            "surrogates_replaced": stats.num_surrogates,
        },
        "tokens_of_this_run": {
            "prompt": stats.num_prompt_tokens,
            "cached": stats.num_cached_tokens,
            "prefix_hit_rate": round(stats.prefix_hit_rate, 6),
            "computed_prefill": stats.num_prefill_tokens,
            "output": stats.num_output_tokens,
            "attended_kv": stats.num_attended_tokens,
            "saved_kv": stats.num_saved_kv_tokens,
            "kv_saved_rate": round(stats.kv_saved_rate, 6),
            "preempted": stats.num_preempted_tokens,
            "prefill_per_s": round(stats.prefill_tokens_per_s_mean, 1),
            "decode_per_s": round(stats.decode_tokens_per_s_mean, 1),
        },
        "seconds": {name: round(value, 3) for name, value in stats.phase_seconds.items()},
        "versions": package_versions(),
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor_name(),
            "gpu": gpu_name(),
        },
        "configuration": _configuration(config),
        "fingerprint": plan.fingerprint,
    }


def _configuration(config: JobConfig) -> dict[str, object]:
    """Return how the engine ran; what can change an answer stands in the fingerprint."""
    engine = dataclasses.asdict(config.engine)
    del engine["chat_template"], engine["chat_template_kwargs"]
    return {**engine, "window_rows": config.window_rows, "window_tokens": config.window_tokens}


def package_versions() -> dict[str, str]:
    """Return the versions of Python, nanobatch and the packages that shape an answer."""
    versions = {"python": platform.python_version(), "nanobatch": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
