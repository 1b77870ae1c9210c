"""What only a GPU can show: bfloat16 against transformers, and graphs against eager steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanobatch.config import EngineConfig
from nanobatch.engine.factory import build_engine
from nanobatch.request import Request, RequestOutput
from tests.checkpoints import write_checkpoint
from tests.engine.scripted_engine import answer_all, ids_request

pytestmark = pytest.mark.gpu

SIZES: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.08,
}


@pytest.fixture(scope="module", params=["llama3", "qwen3", "mistral"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, **SIZES)


def rows(num_rows: int = 24) -> list[Request]:
    """Rows of 1 to 180 tokens, the first half greedy, some with shared beginnings."""
    return [
        ids_request(
            row,
            [3 + (place * 11 + (row % 6) * (place > 40) * 7) % 300 for place in range(1 + row * 8)],
            max_tokens=48,
            temperature=0.0 if row < num_rows // 2 else 0.9,
            ignore_eos=True,
        )
        for row in range(num_rows)
    ]


def answers(checkpoint: Path, **options: Any) -> dict[int, RequestOutput]:
    config = EngineConfig(
        model=str(checkpoint),
        device="cuda",
        dtype="bfloat16",
        num_kv_blocks=1024,
        return_logprobs=True,
        **{"max_num_seqs": 32, **options},
    )
    engine = build_engine(config)
    outputs = answer_all(engine, rows())
    engine.close()
    assert all(output.error is None for output in outputs.values())
    return outputs


def chosen_logprobs(
    checkpoint: Path, outputs: dict[int, RequestOutput], dtype: torch.dtype
) -> torch.Tensor:
    """Return what transformers gives for every token that the engine has chosen."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
    torch.nn.Module.to(model, "cuda")
    found = []
    for request in rows():
        assert request.input_ids is not None
        prompt, output = request.input_ids, outputs[request.row_index].token_ids
        ids = torch.tensor([[*prompt, *output]], device="cuda")
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.tensor(output, device="cuda")[:, None]
        found.append(logits.log_softmax(-1).gather(1, chosen)[:, 0])
    return torch.cat(found).double().cpu()


def test_bfloat16_errs_no_more_than_transformers(checkpoint: Path) -> None:
    outputs = answers(checkpoint)
    ours = torch.tensor(
        [logprob for row in sorted(outputs) for logprob in outputs[row].logprobs or ()]
    ).double()
    exact = chosen_logprobs(checkpoint, outputs, torch.float32)
    theirs = chosen_logprobs(checkpoint, outputs, torch.bfloat16)
    error, their_error = (
        float((logprobs - exact).pow(2).mean().sqrt()) for logprobs in (ours, theirs)
    )
    print(f"\nroot mean square error of log-probabilities: {error:.5f}, theirs {their_error:.5f}")
    assert 0 < error <= 1.5 * their_error


@pytest.mark.parametrize("num_decode_steps", [1, 3])
def test_graphs_give_what_eager_steps_give(checkpoint: Path, num_decode_steps: int) -> None:
    graphs = answers(checkpoint, num_decode_steps=num_decode_steps)
    eager = answers(checkpoint, num_decode_steps=num_decode_steps, enforce_eager=True)
    assert {row: (output.token_ids, output.logprobs) for row, output in graphs.items()} == {
        row: (output.token_ids, output.logprobs) for row, output in eager.items()
    }
