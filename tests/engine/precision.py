"""How far an engine's bfloat16 is from fp32, beside how far transformers' is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from nanobatch.config import Device, EngineConfig
from nanobatch.engine.factory import build_engine
from nanobatch.request import Request, RequestOutput
from tests.engine.scripted_engine import answer_all, ids_request

SIZES: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.08,
}


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


def answers(checkpoint: Path, device: Device, **options: Any) -> dict[int, RequestOutput]:
    config = EngineConfig(
        model=str(checkpoint),
        device=device,
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


def _chosen_logprobs(
    checkpoint: Path, device: Device, outputs: dict[int, RequestOutput], dtype: torch.dtype
) -> torch.Tensor:
    """Return what transformers gives for every token that the engine has chosen."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
    torch.nn.Module.to(model, device)
    found = []
    for request in rows():
        assert request.input_ids is not None
        prompt, output = request.input_ids, outputs[request.row_index].token_ids
        ids = torch.tensor([[*prompt, *output]], device=device)
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.tensor(output, device=device)[:, None]
        found.append(logits.log_softmax(-1).gather(1, chosen)[:, 0])
    return torch.cat(found).double().cpu()


def errors_of_bfloat16(checkpoint: Path, device: Device) -> tuple[float, float]:
    """Return the root mean square error of log-probabilities, the engine's and transformers'."""
    outputs = answers(checkpoint, device)
    ours = torch.tensor(
        [logprob for row in sorted(outputs) for logprob in outputs[row].logprobs or ()]
    ).double()
    exact = _chosen_logprobs(checkpoint, device, outputs, torch.float32)
    theirs = _chosen_logprobs(checkpoint, device, outputs, torch.bfloat16)
    error, their_error = (
        float((logprobs - exact).pow(2).mean().sqrt()) for logprobs in (ours, theirs)
    )
    return error, their_error
