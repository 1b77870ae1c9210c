"""What the project asks of every file: docstrings, short files and functions, a public surface."""

import ast
from pathlib import Path

import pytest

import nanobatch
from tests.project.source_tree import PACKAGE, ROOT, parse, source_files

MAX_FILE_LINES = 300
SHORT_FUNCTION_LINES = 20
LONG_FUNCTION_LINES = 40
MIN_SHORT_SHARE = 0.85
MAX_LONG_SHARE = 0.02

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PYTHON_FILES = sorted(
    path
    for folder in (PACKAGE, ROOT / "tests", ROOT / "sample_data")
    for path in folder.rglob("*.py")
)


def public_definitions(node: ast.Module | ast.ClassDef) -> list[Definition]:
    """Return the public classes, functions and methods under a module or class."""
    found: list[Definition] = []
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_"):
            found.append(child)
            if isinstance(child, ast.ClassDef):
                found.extend(public_definitions(child))
    return found


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if not body:
        return 0
    return (function.end_lineno or 0) - body[0].lineno + 1


def functions() -> list[tuple[str, int]]:
    """Return (place, code lines) of every function under src."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", code_lines(node))
        for path in source_files().values()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("module", sorted(source_files()))
def test_everything_public_has_a_docstring(module: str) -> None:
    tree = parse(source_files()[module])
    missing = [node.name for node in public_definitions(tree) if not ast.get_docstring(node)]
    assert (bool(ast.get_docstring(tree)), missing) == (True, [])


def test_files_are_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PYTHON_FILES
    }
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_most_functions_are_short() -> None:
    longer = sorted(entry for entry in functions() if entry[1] > SHORT_FUNCTION_LINES)
    assert 1 - len(longer) / len(functions()) >= MIN_SHORT_SHARE, longer


def test_almost_no_function_is_long() -> None:
    long = sorted(entry for entry in functions() if entry[1] > LONG_FUNCTION_LINES)
    assert len(long) / len(functions()) <= MAX_LONG_SHARE, long


def test_public_surface_is_what_all_says() -> None:
    assert nanobatch.__all__ == ["LLM", "SamplingParams", "__version__"]
    assert [name for name in nanobatch.__all__ if not hasattr(nanobatch, name)] == []


@pytest.mark.parametrize("module", sorted(source_files()))
def test_names_in_all_exist(module: str) -> None:
    tree = parse(source_files()[module])
    exported = [
        name
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
        for name in ast.literal_eval(node.value)
    ]
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound |= {node.name for node in tree.body if isinstance(node, Definition)}
    bound |= {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(exported) <= bound


def test_no_file_leaves_work_for_later() -> None:
    marker = "TO" + "DO"
    left: list[Path] = [path for path in PYTHON_FILES if marker in path.read_text(encoding="utf-8")]
    assert left == []
