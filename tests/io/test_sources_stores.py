"""Google's store, the Hugging Face hub and whatever fsspec knows are read as files are."""

import time
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import InputError, InputReadError
from nanobatch.io.input_sample import source_samples
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from tests.io.failing_store import failing_store
from tests.io.object_server import CONTENT, NAME, object_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with object_server() as address:
        yield address


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is a server of the test's own, also where HF_HUB_OFFLINE keeps from the real one."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/", recursive=True)


def refusal(url: str) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve_inputs([url])
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("path", [NAME, "dir", "dir/", "*/r?ws.jsonl"])
@pytest.mark.parametrize(
    "root", ["gs://bucket", "gs://anonymous@bucket", "hf://datasets/user/repo"]
)
def test_files_patterns_and_folders_of_a_store_are_read(
    server: str, monkeypatch: pytest.MonkeyPatch, root: str, path: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": server})
    sources = resolve_inputs([f"{root}/{path}"])
    *_, last = iter_rows(sources)
    assert (last.row_index, last.offset_bytes) == (19_999, len(CONTENT))
    assert [sample["bytes"] for sample in source_samples(sources)] == [len(CONTENT)]
    assert [source.path.endswith(f"/{NAME}") for source in sources] == [True]


@pytest.mark.parametrize("root", ["gs://bucket", "hf://datasets/user/repo"])
def test_what_a_store_does_not_have_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": server})
    assert refusal(f"{root}/no.jsonl").message == f"{root}/no.jsonl does not exist"
    assert refusal(f"{root}/no*.jsonl").message == f"{root}/no*.jsonl matches no file"


@pytest.mark.parametrize(
    "url",
    [
        "hf://datasets/user/repo/a.jsonl",
        pytest.param("gs://bucket/a.jsonl", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_does_not_answer_is_refused_within_seconds(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": "http://127.0.0.1:9"})
    start_s = time.monotonic()
    assert refusal(url).message.startswith(f"{url} cannot be opened: ")
    assert time.monotonic() - start_s < 40


def test_any_scheme_of_fsspec_is_read(memory: Any) -> None:
    memory.pipe("/a/b.jsonl", b'{"a":1}\n')
    memory.pipe("/a/b.jsonl.summary.json", b"{}")
    memory.pipe("/a/c.jsonl", b'{"a":2}\n{"a":3}\n')
    rows = list(iter_rows(resolve_inputs(["memory://a", "memory://a/b.jsonl"])))
    assert [row.location for row in rows] == [
        "memory://a/c.jsonl:1",
        "memory://a/c.jsonl:2",
        "memory://a/b.jsonl:1",
    ]


def test_parquet_is_read_here_and_there(memory: Any) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": range(1_000)}), buffer, row_group_size=100)
    memory.pipe("/a.parquet", buffer.getvalue().to_pybytes())
    (row,) = iter_rows(resolve_inputs(["memory://a.parquet"]), start=777, stop=778)
    assert (row.location, row.fields()) == ("memory://a.parquet:778", {"a": 777})


def test_an_unknown_scheme_is_refused() -> None:
    message = refusal("nowhere://a.jsonl").message
    assert message == "nowhere://a.jsonl has an unknown scheme: Protocol not known: nowhere"


def test_a_scheme_whose_package_is_missing_is_refused_with_its_name() -> None:
    fsspec.register_implementation("lacking", "no_such_package.Files", errtxt="Install no-such")
    assert (
        refusal("lacking://a.jsonl").message == "lacking://a.jsonl cannot be read: Install no-such"
    )


def test_whatever_a_package_raises_in_mid_run_is_fatal_with_file_and_offset() -> None:
    num_rows = 0
    with failing_store({"/long.jsonl": b'{"a":1}\n' * 10_000}) as store:
        sources = resolve_inputs(["failing://long.jsonl"])
        store.fails_at_bytes = 1
        with pytest.raises(InputReadError) as caught:
            for _ in iter_rows(sources):
                num_rows += 1
    assert num_rows == 8_192
    assert caught.value.message == (
        "cannot read failing://long.jsonl at byte 65,536: 'session expired'"
    )


def test_offline_the_hub_is_not_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": server})
    assert "offline mode is enabled" in refusal("hf://datasets/user/unseen/a.jsonl").message
