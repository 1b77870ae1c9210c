"""How an engine is to be started: the same model and conditions for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from nanobatch.config import Device, Dtype
from nanobatch.models.source import ModelSource

EngineName = Literal["nanobatch", "nanobatch-unshared", "vllm", "transformers"]
ENGINE_NAMES: tuple[str, ...] = get_args(EngineName)

OWN_ENGINES: Mapping[EngineName, Mapping[str, object]] = {
    "nanobatch": {},
    "nanobatch-unshared": {"enable_shared_attention": False},
}
"""Names under which nanobatch itself is measured, and the fields of `EngineConfig` that each sets:
so that one run shows what a part of it is worth."""

DEFAULT_HF_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine with one model.

    Attributes:
        engine: Which.
        source: The model.
        has_random_weights: The source holds no weights; nanobatch draws them on the device.
        device: Where it runs.
        dtype: Of weights and activations.
        max_model_len: Longest prompt plus output in tokens.
        seed: Of the noise.
        options: Further fields of `EngineConfig` that were asked for; what is not in it is each
            engine's own default. vLLM takes those that it knows by the same name.
        vllm_options: Arguments of vLLM's `LLM`, over all of these.
        hf_batch_size: Prompts that transformers generates for at once.
    """

    engine: EngineName
    source: ModelSource
    has_random_weights: bool = False
    device: Device = "auto"
    dtype: Dtype = "auto"
    max_model_len: int
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    vllm_options: Mapping[str, object] = field(default_factory=dict)
    hf_batch_size: int = DEFAULT_HF_BATCH_SIZE

    @property
    def engine_fields(self) -> Mapping[str, object]:
        """Fields of `EngineConfig`: those that were asked for, then those of the engine's name."""
        return {**self.options, **OWN_ENGINES.get(self.engine, {})}
