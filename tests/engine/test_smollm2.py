"""The demo model is what transformers reads in the same file, in logits and in whole answers."""

import copy
import functools
import inspect
import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from nanobatch import LLM, SamplingParams
from nanobatch.models.source import resolve_model
from tests.models.steps import PagedSequences, load

pytestmark = pytest.mark.slow  # transformers takes seconds to read a GGUF file

SAMPLE = Path(__file__).parents[2] / "sample_data" / "prompts.jsonl"
MAX_TOKENS = 24
QUESTIONS = (
    "What is the capital of France?",
    "Classify the sentiment of this review as positive or negative: 'The battery died twice.'",
    "Écris une phrase sur la mer.",
)


@pytest.fixture(scope="module", autouse=True)
def gguf_file_read_once() -> Iterator[None]:
    """Model, configuration and tokenizer each read the whole file: let them read it together."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))
        yield


@pytest.fixture(scope="module")
def reference() -> Any:
    """The same GGUF file, loaded by transformers in fp32."""
    from transformers import AutoModelForCausalLM

    path = resolve_model(None).path
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    path = resolve_model(None).path
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def rendered(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Return the token ids of a conversation, up to where the answer begins."""
    token_ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return token_ids


def is_one(token_ids: Sequence[int]) -> bool:
    """Return whether all are the same."""
    return len(set(token_ids)) == 1


def test_logits_equal_transformers_reading_the_same_file(reference: Any, tokenizer: Any) -> None:
    prompts = [
        rendered(tokenizer, [{"role": "user", "content": question}]) for question in QUESTIONS
    ]
    with torch.inference_mode():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    model = load(resolve_model(None).path)
    for chunk in (1000, 13):
        actual = PagedSequences(model, prompts).run(chunk)
        for ours, theirs in zip(actual, expected, strict=True):
            assert float((ours - theirs).abs().max() / theirs.abs().max()) <= 1e-5


def test_every_greedy_token_of_the_sample_is_the_one_transformers_takes(
    reference: Any, tokenizer: Any
) -> None:
    """By induction: where each token is the argmax after the same history, texts are equal.

    transformers computes the beginning that all prompts share once, and continues a copy of it.
    """
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    conversations = [row["messages"] for row in rows]
    with LLM(dtype="float32", device="cpu") as llm:
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    prompts = [rendered(tokenizer, messages) for messages in conversations]
    beginning = [ids[0] for ids in takewhile(is_one, zip(*prompts, strict=False))]
    parameters = inspect.signature(reference.forward).parameters
    cache_name = "cache" if "cache" in parameters else "past_key_values"  # transformers < 5.24
    with torch.inference_mode():
        cache = reference(torch.tensor([beginning]), use_cache=True)[cache_name]
    different = []
    for messages, prompt, output in zip(conversations, prompts, outputs, strict=True):
        assert output.num_prompt_tokens == len(prompt)
        rest = [*prompt, *output.token_ids[:-1]][len(beginning) :]
        with torch.inference_mode():
            logits = reference(
                torch.tensor([rest]),
                logits_to_keep=len(output.token_ids),
                **{cache_name: copy.deepcopy(cache)},
            ).logits[0]
        expected = logits.argmax(dim=-1).tolist()
        if list(output.token_ids) != expected:
            different.append((messages[-1]["content"], list(output.token_ids), expected))
        ended = output.token_ids[-1] == tokenizer.eos_token_id
        assert ended == (output.finish_reason == "stop")
        assert ended or len(output.token_ids) == MAX_TOKENS
    assert different == []


def test_the_demo_model_knows_the_capital_of_france() -> None:
    with LLM(device="cpu") as llm:
        [output] = llm.chat(
            [{"role": "user", "content": "What is the capital of France?"}],
            SamplingParams(temperature=0, max_tokens=16),
        )
    assert output.text == "The capital of France is Paris."
    assert output.finish_reason == "stop"
