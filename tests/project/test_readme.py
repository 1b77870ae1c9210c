"""README.md shows commands, flags, targets and files that exist, and starts with a command."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nanobatch.cli.app import app
from tests.project.source_tree import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "sample_data" / "README.md"]
MAX_WORDS_BEFORE_FIRST_COMMAND = 60


def code_spans(text: str) -> Iterator[str]:
    """Yield every line of the code blocks and every piece of inline code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    for block in blocks:
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def commands() -> dict[str, set[str]]:
    """Return every command of the program with its flags; the program itself is ''."""
    group: Any = typer.main.get_command(app)
    parsers = {"": group, **group.commands}
    return {
        name: {flag for param in parser.params for flag in (*param.opts, *param.secondary_opts)}
        | {"--help", "-h"}
        for name, parser in parsers.items()
    }


def command_lines(path: Path) -> list[list[str]]:
    """Return the words of every `nanobatch ...` line that a document shows."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [span.removeprefix("$ ").strip() for span in code_spans(text)]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("nanobatch ")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_flag_shown_exists(path: Path) -> None:
    known = commands()
    shown = command_lines(path)
    assert shown
    for words in shown:
        name = words[1] if not words[1].startswith("-") else ""
        assert name in known, words
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= known[name], words


def test_every_flag_named_in_the_text_exists() -> None:
    named = {
        span.split()[0].partition("=")[0]
        for span in code_spans((ROOT / "README.md").read_text(encoding="utf-8"))
        if span.startswith("--")
    }
    assert named <= set.union(*commands().values())


def test_every_command_of_the_program_is_shown() -> None:
    shown = {words[1] for words in command_lines(ROOT / "README.md")}
    assert set(commands()) - {""} <= shown


def test_every_make_target_shown_exists_and_help_lists_them_all() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [phony] = re.findall(r"^\.PHONY: (.+)$", makefile, re.M)
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^  make (\S+)", listed.stdout, re.M) == phony.split()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {span.split()[1] for span in code_spans(readme) if span.startswith("make ")}
    assert {"demo", "test", "check"} <= shown <= set(phony.split())


def test_ci_runs_the_commands_of_the_readme() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make demo", "make check"} <= set(lines)


def test_first_command_comes_within_sixty_words() -> None:
    before, fence, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("```")
    assert fence
    assert len(before.split()) <= MAX_WORDS_BEFORE_FIRST_COMMAND


def test_every_file_linked_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


RUN_BY_MAKE_DEMO = ["run", "sample_data/prompts.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [words for words in command_lines(DOCUMENTS[1]) if words[1:3] != RUN_BY_MAKE_DEMO],
    ids=lambda words: f"{words[1]} {words[2]}",
)
def test_command_of_the_sample_readme_succeeds(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    done = subprocess.run(
        [sys.executable, "-m", "nanobatch", *words[1:]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr if done.returncode else "") == (0, "")
