from pathlib import Path
from xml.etree import ElementTree

from nanobatch.dashboard.picture import export_svg
from tests.dashboard.snapshots import ON_GPU, SHARING


def test_the_picture_is_an_svg_of_the_frame(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.svg"
    export_svg(path, SHARING)
    words = "".join(ElementTree.parse(path).getroot().itertext()).replace("\N{NO-BREAK SPACE}", " ")
    shown_words = ("nanobatch run", "answers.parquet", "61.4 %", "6,140", "82.0 %", "GPU memory")
    for shown in shown_words:
        assert shown in words, shown


def test_the_same_snapshot_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    export_svg(first, ON_GPU)
    export_svg(second, ON_GPU)
    assert first.read_bytes() == second.read_bytes()
