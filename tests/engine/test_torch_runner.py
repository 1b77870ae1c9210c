"""The torch runner samples by the full logits or by a search of the best token, with one result."""

from pathlib import Path

import pytest
import torch

from nanobatch.config import EngineConfig
from nanobatch.engine.factory import build_engine
from nanobatch.kernels.best_tokens import BestTokens, BestTokenSearch
from nanobatch.kernels.cpu_matrix import has_bfloat16_units
from nanobatch.models.decoder import DecoderModel
from nanobatch.request import Request, RowIndex, SamplingParams
from tests.checkpoints import write_checkpoint
from tests.engine.scripted_engine import answer_samples

KINDS = (
    SamplingParams(max_tokens=12, temperature=0.0),
    SamplingParams(max_tokens=12, temperature=1.0),
    SamplingParams(max_tokens=12, temperature=0.0, repetition_penalty=1.3),
    SamplingParams(max_tokens=12, temperature=0.0, logit_bias=((17, 5.0),)),
    SamplingParams(max_tokens=12, temperature=0.0, min_tokens=4),
)


@pytest.mark.skipif(not has_bfloat16_units(), reason="no AMX or AVX-512 BF16")
@pytest.mark.parametrize("num_kinds", [1, len(KINDS)])
def test_rows_get_the_same_tokens_with_and_without_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_kinds: int
) -> None:
    config = EngineConfig(
        model=str(write_checkpoint(tmp_path / "model", "qwen3", tie_word_embeddings=True)),
        device="cpu",
        dtype="bfloat16",
        num_kv_blocks=64,
        max_num_seqs=8,
        enforce_eager=True,
    )
    requests = [
        Request(
            row_index=RowIndex(row),
            input_ids=tuple(range(5 + row, 30 + row)),
            params=KINDS[row % num_kinds],
        )
        for row in range(10)
    ]
    num_searched = 0
    best_tokens = BestTokenSearch.best_tokens

    def counted(search: BestTokenSearch, hidden: torch.Tensor) -> BestTokens:
        nonlocal num_searched
        num_searched += len(hidden)
        return best_tokens(search, hidden)

    def answers() -> dict[int, tuple[int, ...]]:
        engine = build_engine(config)
        outputs = answer_samples(engine, requests)
        engine.close()
        return {row: samples[0].token_ids for row, samples in outputs.items()}

    monkeypatch.setattr(BestTokenSearch, "best_tokens", counted)
    searched = answers()
    num_greedy = sum(kind.temperature == 0 for kind in KINDS[:num_kinds])
    assert 0 < num_searched <= 10 * 12 * num_greedy / num_kinds
    monkeypatch.setattr(DecoderModel, "best_token_search", None)
    assert searched == answers()
