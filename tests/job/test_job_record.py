"""A job's configuration survives the manifest, also that of an older or a newer nanobatch."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.config import EngineConfig
from nanobatch.errors import ConfigError, JournalError
from nanobatch.job.job_record import from_json, to_json
from nanobatch.job_config import JobConfig, RowConfig, Shard, StartOver

FULL = JobConfig(
    inputs=("/data/a.jsonl", "s3://bucket/b.parquet", "-"),
    output="out/",
    input_format="csv",
    delimiter=";",
    rows=RowConfig(template="Say {{ x }}", param_columns=("temperature", "seed"), system="S"),
    engine=EngineConfig(
        model="org/model",
        device="cpu",
        chat_template_kwargs={"enable_thinking": False},
        gpu_memory_utilization=0.5,
        long_prompts="truncate-left",
        row_timeout_s=2.5,
    ),
    sampling={"temperature": 0.0, "stop": ["a", "b"]},
    columns=(),
    include_token_ids=True,
    max_errors=None,
    limit=10,
    shard=Shard(index=3, num_shards=16),
    output_shape="flat",
    start_over=StartOver(overwrite=True, retry_errors=True),
    stop_after_s=7.5,
    stop_after_errors=3,
)


def stored(config: JobConfig) -> dict[str, Any]:
    """Return what a manifest holds after it went through a file."""
    loaded: dict[str, Any] = json.loads(json.dumps(to_json(config)))
    return loaded


@pytest.mark.parametrize("config", [FULL, JobConfig(inputs=("/a.jsonl",), output="o.parquet")])
def test_every_field_comes_back(config: JobConfig) -> None:
    assert from_json(stored(config)) == config
    assert to_json(config) == stored(config)


names = st.text(min_size=1, max_size=5)


@given(
    limit=st.none() | st.integers(0, 2**40),
    columns=st.none() | st.lists(names).map(tuple),
    sampling=st.dictionaries(names, st.none() | st.integers() | names | st.booleans()),
    log_interval_s=st.floats(0.1, 1e6) | st.integers(1, 100),
    system=st.none() | st.text(),
)
def test_any_values_come_back(
    limit: int | None,
    columns: tuple[str, ...] | None,
    sampling: dict[str, object],
    log_interval_s: float,
    system: str | None,
) -> None:
    config = dataclasses.replace(
        FULL,
        limit=limit,
        columns=columns,
        sampling=sampling,
        log_interval_s=log_interval_s,
        rows=RowConfig(system=system),
    )
    assert from_json(stored(config)) == config


def test_local_inputs_are_recorded_as_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = JobConfig(inputs=("sub/a.jsonl", "hf://x/y.jsonl", "-"), output="o.jsonl")
    assert to_json(config)["inputs"] == [str(tmp_path / "sub/a.jsonl"), "hf://x/y.jsonl", "-"]


def test_the_files_that_a_glob_stood_for_are_recorded_in_its_place() -> None:
    config = JobConfig(inputs=("/data/*.jsonl",), output="o.jsonl")
    recorded = to_json(config, inputs=["/data/a.jsonl", "/data/b.jsonl"])
    assert from_json(recorded).inputs == ("/data/a.jsonl", "/data/b.jsonl")


def test_what_a_newer_version_added_is_left_out() -> None:
    recorded = stored(FULL)
    recorded["invented"] = 1
    recorded["engine"]["invented"] = {"x": []}
    assert from_json(recorded) == FULL


def test_what_an_older_version_did_not_know_has_its_default() -> None:
    recorded = stored(FULL)
    del recorded["limit"], recorded["engine"]["row_timeout_s"], recorded["start_over"]
    config = from_json(recorded)
    assert (config.limit, config.engine.row_timeout_s) == (None, None)
    assert config.start_over == StartOver()


@pytest.mark.parametrize("place", ["inputs", "output", "shard.num_shards"])
def test_a_missing_field_without_default_is_named(place: str) -> None:
    recorded = stored(FULL)
    *outer, name = place.split(".")
    del (recorded[outer[0]] if outer else recorded)[name]
    with pytest.raises(JournalError) as caught:
        from_json(recorded)
    assert caught.value.message == (
        f"the manifest's record of the job cannot be read: job.{place} is missing"
    )
    assert caught.value.hint == "use the nanobatch that began the job"


@pytest.mark.parametrize(
    ("name", "value"),
    [("inputs", "a.jsonl"), ("output", 3), ("rows", []), ("limit", "x"), ("input_format", 1)],
)
def test_a_value_of_another_type_is_named(name: str, value: object) -> None:
    with pytest.raises(JournalError, match=rf"job\.{name} is "):
        from_json({**stored(FULL), name: value})


def test_a_value_out_of_bounds_is_refused_as_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match="limit is -1; it must be at least 0"):
        from_json({**stored(FULL), "limit": -1})
