"""The picture: refused before anything runs where it cannot be drawn."""

import importlib.util
from pathlib import Path

import pytest

from nanobatch.bench.events import Timeline
from nanobatch.bench.plot import require_plotting, write_plot
from nanobatch.errors import ConfigError
from tests.bench.machines import result

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def test_other_kinds_of_pictures_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the name must end in \.svg or \.png"):
        require_plotting(Path("plot.pdf"))


@pytest.mark.skipif(HAS_MATPLOTLIB, reason="matplotlib is installed")
def test_without_matplotlib_the_extra_is_named() -> None:
    with pytest.raises(ConfigError, match="--plot needs matplotlib") as raised:
        require_plotting(Path("plot.svg"))
    assert raised.value.hint == "pip install 'nanobatch[plot]'"


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_shows_engines_and_limit(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"plot{suffix}"
    require_plotting(path)
    timeline = Timeline(workload="custom", seconds=[0.0, 1.0, 2.0], num_tokens=[0, 10, 30])
    write_plot(path, [result(), result("vllm")], {("nanobatch", "custom"): timeline})
    assert path.stat().st_size > 1000
