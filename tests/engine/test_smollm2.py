"""The demo model answers as transformers does: every token of every row of the sample file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanobatch import LLM, SamplingParams
from nanobatch.models.source import resolve_model

SAMPLE = Path(__file__).parents[2] / "sample_data" / "prompts.jsonl"
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    """The same GGUF file, loaded by transformers in fp32."""
    from transformers import AutoModelForCausalLM

    path = resolve_model(None).path
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    yield model.eval()


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Any]:
    from transformers import AutoTokenizer

    path = resolve_model(None).path
    yield AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.mark.slow
def test_every_greedy_token_of_the_sample_is_the_one_transformers_takes(
    reference: Any, tokenizer: Any
) -> None:
    """By induction: where each token is the argmax after the same history, texts are equal."""
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    conversations = [row["messages"] for row in rows]
    with LLM(dtype="float32", device="cpu") as llm:
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    different = []
    for messages, output in zip(conversations, outputs, strict=True):
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert output.num_prompt_tokens == len(prompt)
        history = torch.tensor([[*prompt, *output.token_ids[:-1]]])
        with torch.inference_mode():
            logits = reference(history, logits_to_keep=len(output.token_ids)).logits[0]
        expected = logits.argmax(dim=-1).tolist()
        if list(output.token_ids) != expected:
            different.append((messages[-1]["content"], list(output.token_ids), expected))
        ended = output.token_ids[-1] == tokenizer.eos_token_id
        assert ended == (output.finish_reason == "stop")
        assert ended or len(output.token_ids) == MAX_TOKENS
    assert different == []


@pytest.mark.slow
def test_the_demo_model_knows_the_capital_of_france() -> None:
    with LLM(device="cpu") as llm:
        [output] = llm.chat(
            [{"role": "user", "content": "What is the capital of France?"}],
            SamplingParams(temperature=0, max_tokens=16),
        )
    assert output.text == "The capital of France is Paris."
    assert output.finish_reason == "stop"
