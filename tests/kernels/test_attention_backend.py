import importlib
import sys
from types import ModuleType

import pytest
import torch

from nanobatch.errors import ConfigError
from nanobatch.kernels.attention_backend import AttentionBackend, resolve_attention_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def resolve(
    name: str,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 128,
) -> AttentionBackend:
    return resolve_attention_backend(name, device, dtype=dtype, head_dim=head_dim)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    install(monkeypatch, flash_attn_interface=False, flash_attn=False)


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    install(monkeypatch, flash_attn_interface=False, flash_attn=False)


def install(monkeypatch: pytest.MonkeyPatch, **is_installed: bool) -> None:
    """Make modules importable or not; FA3's operator is there when its module is."""
    for name, is_there in is_installed.items():
        # A None in sys.modules makes an import fail as if the module were not there.
        monkeypatch.setitem(sys.modules, name, ModuleType(name) if is_there else None)
    if is_installed.get("flash_attn_interface"):
        monkeypatch.setattr(torch.ops.flash_attn_3, "fwd", object(), raising=False)


def test_a_cpu_takes_torch_and_refuses_the_rest() -> None:
    assert resolve("auto", CPU) is AttentionBackend.TORCH
    assert resolve("torch", CPU) is AttentionBackend.TORCH
    for name in ("triton", "fa2", "fa3"):
        with pytest.raises(ConfigError, match=f"{name} .*needs a CUDA device, not cpu"):
            resolve(name, CPU)


def test_an_unknown_name_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="'fa4' is not known") as caught:
        resolve("fa4", CPU)
    assert caught.value.hint == "choose one of auto, fa3, fa2, triton, torch"


@pytest.mark.usefixtures("hopper")
def test_auto_takes_the_fastest_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("auto", GPU) is AttentionBackend.TRITON
    install(monkeypatch, flash_attn=True)
    assert resolve("auto", GPU) is AttentionBackend.FA2
    install(monkeypatch, flash_attn_interface=True)
    assert resolve("auto", GPU) is AttentionBackend.FA3
    assert resolve("triton", GPU) is AttentionBackend.TRITON


@pytest.mark.usefixtures("ampere")
def test_fa3_is_for_hopper_only(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn_interface=True, flash_attn=True)
    assert resolve("auto", GPU) is AttentionBackend.FA2
    with pytest.raises(ConfigError, match=r"fa3 cannot be used: .* compute capability 9\.x"):
        resolve("fa3", GPU)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("name", "module"), [("fa3", "flash_attn_interface"), ("fa2", "flash_attn")]
)
def test_a_forced_backend_that_is_not_installed_is_refused(name: str, module: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(name, GPU)
    assert caught.value.message == (
        f"attention backend {name} cannot be used: the Python module {module} is not installed"
    )
    assert caught.value.hint == "--attention-backend auto takes the fastest that works"


@pytest.mark.usefixtures("hopper")
def test_a_module_that_does_not_load_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise ImportError("undefined symbol: x\nmore")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ConfigError, match=r"flash_attn does not load: undefined symbol: x$"):
        resolve("fa2", GPU)


@pytest.mark.usefixtures("hopper")
def test_a_module_without_the_operator_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn_interface=True)
    monkeypatch.delattr(torch.ops.flash_attn_3, "fwd")
    with pytest.raises(ConfigError, match="registers no operator flash_attn_3::fwd"):
        resolve("fa3", GPU)


@pytest.mark.usefixtures("hopper")
def test_types_and_sizes_choose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn_interface=True)
    assert resolve("auto", GPU, dtype=torch.float32) is AttentionBackend.TRITON
    assert resolve("auto", GPU, dtype=torch.float64) is AttentionBackend.TORCH
    assert resolve("auto", GPU, head_dim=100) is AttentionBackend.TRITON
    assert resolve("auto", GPU, head_dim=512) is AttentionBackend.TORCH
    with pytest.raises(ConfigError, match="bfloat16 and float16 only, not float32"):
        resolve("fa3", GPU, dtype=torch.float32)
    with pytest.raises(ConfigError, match="multiples of 8, not 100"):
        resolve("fa3", GPU, head_dim=100)
    with pytest.raises(ConfigError, match="not float64"):
        resolve("triton", GPU, dtype=torch.float64)


def test_every_backend_has_a_description() -> None:
    assert all(backend.description for backend in AttentionBackend)
