"""A model runner without a model, and a folder that looks like one: the whole job, no torch.

Everything else is real: reader, template, tokenizer, scheduler, blocks, journal, writers. What
a row answers depends on its prompt, the sample and the place in the answer alone, so that any
order, batch or resume gives the same text.
"""

import json
from pathlib import Path

import numpy as np
import xxhash

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.factory import LoadedRunner, OnProgress
from nanobatch.engine.sequence import SlotAssignment
from nanobatch.engine.step_batch import DecodeBatch, Int32Array, SampledTokens, StepBatch
from nanobatch.models.source import ModelSource
from tests.tiny_tokenizer import VOCAB_SIZE, write_tokenizer

EOS_TOKEN_ID = 1
FIRST_TEXT_TOKEN = 36
LAST_TEXT_TOKEN = 120
NUM_KV_BLOCKS = 8192


def sampled_places(batch: StepBatch) -> tuple[Int32Array, Int32Array]:
    """Return for whom and after which tokens a batch samples.

    Returns:
        Slots [num_rows], and positions [num_steps, num_rows] of the tokens before the new ones.
    """
    if isinstance(batch, DecodeBatch):
        steps = np.arange(batch.num_steps, dtype=np.int32)
        return batch.row_ids, batch.positions + steps[:, None]
    return batch.row_ids[batch.logits_rows], batch.positions[batch.logits_indices][None]


class NullModelRunner:
    """Answers with tokens drawn from a hash of prompt, sample and position; a tenth stop early."""

    def __init__(self, max_num_seqs: int) -> None:
        self._prompt_hashes = np.zeros(max_num_seqs, dtype=np.uint64)
        self.num_computed_tokens = 0
        self.num_launches = 0

    def launch(self, batch: StepBatch) -> "PendingNull":
        """Answer a batch at once."""
        if not isinstance(batch, DecodeBatch):
            self._assign(batch.slot_assignments)
        self.num_computed_tokens += batch.num_tokens
        self.num_launches += 1
        slots, positions = sampled_places(batch)
        mixed = self._prompt_hashes[slots] ^ (
            positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        num_text_tokens = LAST_TEXT_TOKEN - FIRST_TEXT_TOKEN
        token_ids = (mixed % np.uint64(num_text_tokens)).astype(np.int32) + FIRST_TEXT_TOKEN
        token_ids[(mixed >> np.uint64(20)) % np.uint64(10) == 0] = EOS_TOKEN_ID
        return PendingNull(token_ids)

    def close(self) -> None:
        """Nothing is held."""

    def _assign(self, assignments: tuple[SlotAssignment, ...]) -> None:
        for assignment in assignments:
            digest = xxhash.xxh3_64_intdigest(
                assignment.prompt_token_ids.tobytes(), seed=assignment.sample_index
            )
            self._prompt_hashes[assignment.slot] = digest


class PendingNull:
    """A batch that is done already."""

    def __init__(self, token_ids: Int32Array) -> None:
        self._token_ids = token_ids

    def result(self) -> SampledTokens:
        """Return what was sampled."""
        return SampledTokens(
            token_ids=self._token_ids,
            is_nan=np.zeros(self._token_ids.shape, dtype=np.bool_),
            logprobs=np.full(self._token_ids.shape, -0.5, dtype=np.float32),
        )


def load_null_runner(
    config: EngineConfig,
    _source: ModelSource,
    _model_config: ModelConfig,
    _on_progress: OnProgress | None,
) -> LoadedRunner:
    """Load nothing; a `LoadRunner`."""
    runner = NullModelRunner(config.step_sizes("cpu").max_num_seqs)
    return LoadedRunner(runner, config.num_kv_blocks or NUM_KV_BLOCKS, device_type="cpu")


def write_null_model(folder: Path, *, context: int = 2048) -> Path:
    """Write a folder with a configuration and a tokenizer, and no weights."""
    write_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": EOS_TOKEN_ID,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
