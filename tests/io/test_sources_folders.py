"""Patterns and folders stand for files in order, and never for what a job wrote."""

import gzip
import os
from pathlib import Path

import pytest

from nanobatch.errors import InputError
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"a":1}\n')


def found(folder: Path, path: str = "", output: str | None = None) -> list[str]:
    """Return the inputs that a path in a folder stands for, relative to the folder."""
    sources = resolve_inputs(
        [f"{folder}/{path}"], "jsonl", output=None if output is None else folder / output
    )
    return [str(Path(source.path).relative_to(folder)) for source in sources]


def refusal(folder: Path, path: str = "", output: str | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        found(folder, path, output)
    assert caught.value.hint
    return caught.value


def test_a_pattern_stands_for_its_matches_sorted_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "b.jsonl", "a10.jsonl", "a9.jsonl", "c.txt", "sub/d.jsonl")
    assert found(tmp_path, "*.jsonl") == ["a10.jsonl", "a9.jsonl", "b.jsonl"]
    assert found(tmp_path, "[ab]?.jsonl") == ["a9.jsonl"]


def test_two_stars_go_into_folders(tmp_path: Path) -> None:
    touch(tmp_path, "b.jsonl", "a/c.jsonl", "a/b/d.jsonl", "a.d/e.jsonl", ".git/f.jsonl")
    assert found(tmp_path, "**/*.jsonl") == ["a.d/e.jsonl", "a/b/d.jsonl", "a/c.jsonl", "b.jsonl"]


def test_a_pattern_without_match_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "x.jsonl/b.txt")
    assert refusal(tmp_path, "*.jsonl").message == f"{tmp_path}/*.jsonl matches no file"


def test_a_file_with_the_pattern_as_its_name_goes_first(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert found(tmp_path, "a[1].jsonl") == ["a[1].jsonl"]
    (tmp_path / "a[1].jsonl").unlink()
    assert found(tmp_path, "a[1].jsonl") == ["a1.jsonl"]


def test_hidden_files_match_only_patterns_that_ask_for_them(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", ".b.jsonl", "_c.jsonl")
    assert found(tmp_path, "*") == ["a.jsonl"]
    assert found(tmp_path, "_*") == ["_c.jsonl"]
    assert found(tmp_path, ".*") == [".b.jsonl"]


def test_a_pattern_takes_the_outputs_of_other_jobs_but_never_its_own(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "b.jsonl", "b.jsonl.summary.json", "out.jsonl")
    touch(tmp_path, "out.jsonl.summary.json", "out.jsonl.nanobatch/stdin.jsonl")
    assert found(tmp_path, "*.jsonl", "out.jsonl") == ["a.jsonl", "b.jsonl"]
    assert found(tmp_path, "**/*.jsonl", "out.jsonl") == ["a.jsonl", "b.jsonl"]
    assert refusal(tmp_path, "o*.jsonl", "out.jsonl").message.endswith("matches no file")


def test_a_pattern_takes_no_summary_unless_it_names_one(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "b.jsonl", "b.jsonl.summary.json")
    assert found(tmp_path, "*") == ["a.jsonl", "b.jsonl"]
    assert found(tmp_path, "*.summary.json") == ["b.jsonl.summary.json"]


def test_a_pattern_goes_into_no_journal_unless_it_names_one(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "b.parquet.nanobatch/stdin.jsonl")
    assert found(tmp_path, "**/*.jsonl") == ["a.jsonl"]
    journal = "b.parquet.nanobatch"
    assert found(tmp_path, f"{journal}/*.jsonl") == [f"{journal}/stdin.jsonl"]


def test_a_pattern_takes_no_shard_of_its_own_job(tmp_path: Path) -> None:
    shards = [f"out-0000{index}-of-00002.jsonl" for index in range(2)]
    touch(tmp_path, "a.jsonl", *shards, "out.jsonl", "out-b.jsonl")
    assert found(tmp_path, "*.jsonl", shards[1]) == ["a.jsonl", "out-b.jsonl"]


def test_a_pattern_takes_no_part_file_of_its_own_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "out/part-00000.jsonl")
    assert found(tmp_path, "**/*.jsonl", "out/") == ["a.jsonl"]
    assert found(tmp_path, "", "out/") == ["a.jsonl"]


def test_a_folder_stands_for_its_files_sorted_by_path(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.jsonl", "b/1.csv", "b.jsonl", "a/x/3.txt", "c.NDJSON", "d.parquet")
    names = ["a/x/3.txt", "b.jsonl", "b/1.csv", "b/2.jsonl", "c.NDJSON", "d.parquet"]
    assert found(tmp_path) == names


def test_the_compressed_files_of_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("a.txt.gz", "b.JSONL.GZ"):
        (tmp_path / name).write_bytes(gzip.compress(b'{"a":1}\n'))
    assert found(tmp_path) == ["a.txt.gz", "b.JSONL.GZ"]


def test_other_and_hidden_files_of_a_folder_are_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "README.md", "b.json", ".hidden.jsonl", "_SUCCESS", "_x.jsonl")
    touch(tmp_path, ".cache/c.jsonl", "_temporary/d.jsonl", "e.parquet.gz")
    assert found(tmp_path) == ["a.jsonl"]


def test_the_outputs_of_jobs_in_a_folder_are_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "done.jsonl", "done.jsonl.summary.json")
    touch(tmp_path, "begun.jsonl", "begun.jsonl.nanobatch/stdin.jsonl")
    touch(tmp_path, "parts/part-00000.jsonl", "parts.summary.json", "mine.jsonl")
    touch(tmp_path, "sub/done.jsonl", "sub/mine.jsonl")
    assert found(tmp_path, "", "mine.jsonl") == ["a.jsonl", "sub/done.jsonl", "sub/mine.jsonl"]


def test_the_part_files_of_a_job_can_be_named_as_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "parts/part-00000.jsonl", "parts/_SUCCESS", "parts.summary.json")
    assert found(tmp_path, "parts/") == ["parts/part-00000.jsonl"]


def test_a_folder_with_nothing_to_read_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "README.md", "out.jsonl")
    message = f"{tmp_path}/ is a folder with nothing to read"
    assert refusal(tmp_path, "", "out.jsonl").message == message


def test_linked_folders_are_read_and_links_that_lead_back_are_not(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.jsonl", "elsewhere/b.jsonl")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "elsewhere" / "up").symlink_to(tmp_path / "data")
    assert found(tmp_path, "data") == ["data/a.jsonl", "data/link/b.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "closed/b.jsonl")
    (tmp_path / "closed").chmod(0)
    assert "cannot be opened: Permission denied" in refusal(tmp_path).message
    (tmp_path / "closed").chmod(0o755)


def test_a_link_that_leads_nowhere_is_refused_rather_than_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    assert refusal(tmp_path).message == f"{tmp_path}/b.jsonl does not exist"


def test_rows_are_numbered_through_files_patterns_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "folder/b.jsonl", "folder/a.jsonl", "1.jsonl", "2.jsonl", "last.jsonl")
    names = [f"{tmp_path}/{name}" for name in ("[12].jsonl", "folder", "last.jsonl")]
    rows = [(row.row_index, row.path) for row in iter_rows(resolve_inputs(names))]
    expected = ["1.jsonl", "2.jsonl", "folder/a.jsonl", "folder/b.jsonl", "last.jsonl"]
    assert rows == [(index, f"{tmp_path}/{name}") for index, name in enumerate(expected)]


@pytest.mark.parametrize("name", ["out.jsonl", "link.jsonl", "hard.jsonl"])
def test_an_input_that_is_the_output_by_any_name_is_refused(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "out.jsonl")
    (tmp_path / "link.jsonl").symlink_to("out.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "out.jsonl")
    assert refusal(tmp_path, name, "out.jsonl").message == f"{tmp_path}/{name} is the output"
