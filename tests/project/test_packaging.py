"""What is installed is what the tree holds: the wheel, its marker of types, its command."""

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import nanobatch
from tests.project.source_tree import PACKAGE, ROOT, SRC


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Return the wheel that the build backend makes of this tree."""
    folder: Path = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata_of(wheel: zipfile.ZipFile, name: str) -> str:
    [member] = [member for member in wheel.namelist() if member.endswith(f".dist-info/{name}")]
    return wheel.read(member).decode()


def test_wheel_holds_every_module_and_the_marker_of_types(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if name.startswith("nanobatch/")}
    sources = {str(path.relative_to(SRC)) for path in PACKAGE.rglob("*.py")}
    assert packed == sources | {"nanobatch/py.typed"}


def test_wheel_installs_the_command_and_carries_the_license(wheel: zipfile.ZipFile) -> None:
    assert "nanobatch = nanobatch.__main__:main" in metadata_of(wheel, "entry_points.txt")
    assert "Apache License" in metadata_of(wheel, "licenses/LICENSE")


def test_wheel_needs_python_3_11_and_offers_the_extras(wheel: zipfile.ZipFile) -> None:
    lines = metadata_of(wheel, "METADATA").splitlines()
    assert "Requires-Python: >=3.11" in lines
    extras = {line.split(": ")[1] for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"dev", "fa3", "flash-attn", "gguf", "plot"}


def test_every_package_folder_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == nanobatch.__version__


def test_module_starts_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nanobatch", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"nanobatch {nanobatch.__version__}\n"


def test_installed_command_is_the_program_of_the_tree() -> None:
    scripts = entry_points(group="console_scripts", name="nanobatch")
    assert {script.value for script in scripts} <= {"nanobatch.__main__:main"}
