"""A whole decoder on fused kernels against the same decoder on plain torch."""

from pathlib import Path

import pytest
import torch

from nanobatch.models import decoder
from tests.checkpoints import write_checkpoint
from tests.models.steps import PagedSequences, load, random_prompts
from tests.tiny_tokenizer import VOCAB_SIZE


@pytest.mark.skipif(torch.cuda.is_available(), reason="drives the interpreter on the CPU")
@pytest.mark.parametrize("family", ["qwen3", "qwen2_window"])
def test_a_decoder_gives_the_same_logits_on_either_kernel_set(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanobatch.kernels.gpu.triton_kernels import TritonKernels

    checkpoint = write_checkpoint(tmp_path / "model", family)
    plain = load(checkpoint)
    with monkeypatch.context() as fusing:
        fusing.setattr(decoder, "default_kernels", lambda device, dtype: TritonKernels())
        fused = load(checkpoint)
    prompts = random_prompts((7, 1, 4), vocab_size=VOCAB_SIZE)
    expected = torch.cat(PagedSequences(plain, prompts).run(5))
    actual = torch.cat(PagedSequences(fused, prompts).run(5))
    assert float((actual - expected).abs().max() / expected.abs().max()) <= 1e-5
