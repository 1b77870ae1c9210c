"""docs/contract.md names, for every sentence of every promise, the tests that hold it.

A sentence is a list item. It ends with an arrow and its tests (`tests/io/test_lines.py::test_name`;
a file stands for the tests after it, too), or with *next issue* (not built yet) or *unsupported*
(asked for, answered with an error).
"""

import ast
import re
from dataclasses import dataclass

import pytest

from tests.project.source_tree import ROOT, parse

DOCUMENT = ROOT / "docs" / "contract.md"
NUM_PROMISES = 25
LATER = ("*next issue*", "*unsupported*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One claim of a promise and what follows it."""

    promise: int
    text: str
    tests: tuple[str, ...]
    is_later: bool


def test_references(text: str) -> tuple[str, ...]:
    """Return the tests named after an arrow, each with its file."""
    references = []
    file = ""
    for span in re.findall(r"`([^`]+)`", text):
        path, _, name = span.rpartition("::")
        file = path or file
        references.append(f"{file}::{name}")
    return tuple(references)


test_references.__test__ = False  # type: ignore[attr-defined]


def sentences() -> list[Sentence]:
    """Return every list item of the document under the promise that it belongs to."""
    found = []
    parts = re.split(r"^### (\d+)\. .*$", DOCUMENT.read_text(encoding="utf-8"), flags=re.M)
    for number, body in zip(parts[1::2], parts[2::2], strict=True):
        for item in re.split(r"^- ", body.partition("\n## ")[0], flags=re.M)[1:]:
            text, _, tests = " ".join(item.split()).partition(" → ")
            found.append(
                Sentence(
                    promise=int(number),
                    text=text,
                    tests=test_references(tests),
                    is_later=text.endswith(LATER),
                )
            )
    return found


def existing_tests(file: str) -> set[str]:
    """Return the names of the test functions in a file; none where there is no file."""
    path = ROOT / file
    if not path.is_file():
        return set()
    nodes = ast.walk(parse(path))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_promise_stands_there_once_and_in_order() -> None:
    headings = re.findall(r"^### (\d+)\. ", DOCUMENT.read_text(encoding="utf-8"), re.M)
    assert [int(number) for number in headings] == list(range(1, NUM_PROMISES + 1))
    assert {sentence.promise for sentence in sentences()} == set(range(1, NUM_PROMISES + 1))


@pytest.mark.parametrize("promise", range(1, NUM_PROMISES + 1))
def test_every_sentence_has_tests_or_says_that_it_comes_later(promise: int) -> None:
    undecided = [
        sentence.text
        for sentence in sentences()
        if sentence.promise == promise and bool(sentence.tests) == sentence.is_later
    ]
    assert undecided == []


@pytest.mark.parametrize("promise", range(1, NUM_PROMISES + 1))
def test_every_test_named_exists(promise: int) -> None:
    named = [
        reference
        for sentence in sentences()
        if sentence.promise == promise
        for reference in sentence.tests
    ]
    missing = [
        reference
        for reference in named
        if reference.rpartition("::")[2] not in existing_tests(reference.rpartition("::")[0])
    ]
    assert missing == []
