"""docs/architecture.md names every module, and only modules that exist.

A module is named by its file, such as `engine/core.py`. In a paragraph or list item a folder holds
for the files after it: `engine/core.py` and `tokenizer.py`, or io/ `lines.py`; `./config.py` leaves
it again.
"""

import posixpath
import re
from pathlib import Path

from tests.project.source_tree import PACKAGE, ROOT

DOCUMENT = ROOT / "docs" / "architecture.md"
MAX_LINES = 100
MENTION = re.compile(r"(?<![\w/])((?:[\w.]+/)*)(\w+\.py\b)?")


def files_named(text: str) -> set[str]:
    """Return the files that a document names, relative to src/nanobatch or to the project."""
    named = set()
    for item in re.split(r"\n\s*\n|\n- ", text):
        folder = ""
        for mention in MENTION.finditer(item):
            folder = mention[1] or folder
            if mention[2]:
                path = posixpath.normpath(folder + mention[2])
                named.add(path.removeprefix("src/").removeprefix("nanobatch/"))
    return named


def modules() -> set[str]:
    """Return every module's file, relative to src/nanobatch; packages' own files are no modules."""
    paths = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    return {str(path) for path in paths if path.name != "__init__.py"}


def test_every_module_is_named() -> None:
    assert modules() - files_named(DOCUMENT.read_text(encoding="utf-8")) == set()


def test_every_file_that_is_named_exists() -> None:
    named = files_named(DOCUMENT.read_text(encoding="utf-8"))
    assert {
        name for name in named if not (PACKAGE / name).exists() and not Path(ROOT, name).exists()
    } == set()


def test_document_is_at_most_a_hundred_lines() -> None:
    assert len(DOCUMENT.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_a_folder_holds_for_the_files_after_it_in_its_item() -> None:
    text = (
        "- `engine/core.py`\n  `batch.py`\n- io/ lines.py jsonl.py and `./config.py`\n\n`errors.py`"
    )
    assert files_named(text) == {
        "engine/core.py",
        "engine/batch.py",
        "io/lines.py",
        "io/jsonl.py",
        "config.py",
        "errors.py",
    }
