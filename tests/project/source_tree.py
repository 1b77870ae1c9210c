"""What the project tests know about the tree: where things are and what imports what."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "nanobatch"


@cache
def source_files() -> dict[str, Path]:
    """Return every source file by module name (`nanobatch`, `nanobatch.engine.core`, ...)."""
    return {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def module_name(path: Path) -> str:
    """Return the dotted name of a file under src."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of everything that the code under a node imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import on line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_level_imports(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports when it is imported itself: function bodies are left out."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported_names(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """Return for every module the modules of nanobatch that it imports, at whatever level."""
    modules = source_files()
    graph = {}
    for module, path in modules.items():
        targets = set()
        for name in imported_names(parse(path)):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and name != "nanobatch.__version__":
                targets.add(target)
        graph[module] = frozenset(targets)
    return graph
