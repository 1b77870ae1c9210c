"""What a step costs a dense decoder: arithmetic, memory traffic, and the time of both.

A step takes the larger of its arithmetic and its traffic for each kind of kernel, at rates that
good kernels sustain, and a fixed time per layer for their starts.
"""

from dataclasses import dataclass

from nanobatch.bench.hardware import Hardware
from nanobatch.bench.perfect_engine import Step
from nanobatch.config import ModelConfig

LAUNCH_S_PER_LAYER = {"cuda": 26e-6, "cpu": 0.0}
"""Starts and ends of a layer's kernels in a CUDA graph: 0.7 ms a step for 28 layers."""
PREFILL_ATTENTION_SHARE = 0.7
SHARED_ATTENTION_SHARE = 0.65
ELEMENTWISE_SHARE = 0.9
"""Shares of the sustained rates that attention over prompts, attention of many rows over a shared
beginning, and norms and activations reach."""

LOGITS_BYTES = 6
"""Bytes a logit moves: written in 16 bits, read in 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """A model as counts.

    Attributes:
        num_layer_weights: Weights of all layers' matrix products.
        num_head_weights: Weights of the output head.
        num_all_weights: With the embedding, where it is not the head.
        attention_width: Query heads x head dimension x layers.
        activation_elements: Elements that norms, rotations and activations move per token.
    """

    model_config: ModelConfig
    bytes_per_element: int
    num_layer_weights: int
    num_head_weights: int
    num_all_weights: int
    attention_width: int
    activation_elements: int

    @classmethod
    def of(cls, model_config: ModelConfig, *, bytes_per_element: int) -> "ModelCosts":
        """Count a model."""
        size, ffn, head_dim = (
            model_config.hidden_size,
            model_config.intermediate_size,
            model_config.head_dim,
        )
        num_heads, num_kv_heads = model_config.num_heads, model_config.num_kv_heads
        num_layers = model_config.num_layers
        per_layer = 2 * size * head_dim * (num_heads + num_kv_heads) + 3 * size * ffn
        head = model_config.vocab_size * size
        moved = 8 * size + 4 * (num_heads + 2 * num_kv_heads) * head_dim + 3 * ffn
        return cls(
            model_config=model_config,
            bytes_per_element=bytes_per_element,
            num_layer_weights=num_layers * per_layer,
            num_head_weights=head,
            num_all_weights=num_layers * per_layer
            + head * (1 if model_config.tie_word_embeddings else 2),
            attention_width=num_layers * num_heads * head_dim,
            activation_elements=num_layers * moved,
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.num_all_weights * self.bytes_per_element

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of a token."""
        return self.model_config.kv_bytes_per_token(self.bytes_per_element)

    def step_seconds(self, step: Step, hardware: Hardware) -> float:
        """Return how long a step takes at the rates that the device sustains."""
        flop_per_s, bytes_per_s = hardware.flop_per_s, hardware.bytes_per_s
        private_s = step.num_private_tokens * self.kv_bytes_per_token / bytes_per_s
        shared_s = max(
            step.num_shared_tokens * self.kv_bytes_per_token / bytes_per_s,
            self._attention_flop(step.num_shared_pairs) / (flop_per_s * SHARED_ATTENTION_SHARE),
        )
        # Partial results of rows with two parts: written, and read twice, in 32 bits.
        merge_s = 12 * step.num_sharing * self.attention_width / bytes_per_s
        prompt_flop = self._attention_flop(step.num_prefill_pairs)
        moved_bytes = self._num_tokens(step) * self.activation_elements * self.bytes_per_element
        return (
            max(self._layer_flop(step) / flop_per_s, self._layer_bytes() / bytes_per_s)
            + max(self._head_flop(step) / flop_per_s, self._head_bytes(step) / bytes_per_s)
            + private_s
            + shared_s
            + merge_s
            + prompt_flop / (flop_per_s * PREFILL_ATTENTION_SHARE)
            + moved_bytes / (bytes_per_s * ELEMENTWISE_SHARE)
            + LAUNCH_S_PER_LAYER[hardware.kind] * self.model_config.num_layers
        )

    def step_bytes(self, step: Step) -> float:
        """Return the bytes that a step cannot but move: weights, keys and values, logits."""
        num_read = step.num_private_tokens + step.num_shared_tokens
        num_kv_tokens = num_read + self._num_tokens(step)
        return (
            self._layer_bytes() + self._head_bytes(step) + num_kv_tokens * self.kv_bytes_per_token
        )

    def step_flop(self, step: Step) -> float:
        """Return the arithmetic of a step's matrix products and attention."""
        num_pairs = step.num_prefill_pairs + step.num_private_tokens + step.num_shared_pairs
        return self._layer_flop(step) + self._head_flop(step) + self._attention_flop(num_pairs)

    def _num_tokens(self, step: Step) -> int:
        return step.num_prefill_tokens + step.num_decoding

    def _layer_flop(self, step: Step) -> float:
        return 2.0 * self.num_layer_weights * self._num_tokens(step)

    def _layer_bytes(self) -> float:
        return float(self.num_layer_weights * self.bytes_per_element)

    def _head_flop(self, step: Step) -> float:
        return 2.0 * self.num_head_weights * step.num_logits

    def _head_bytes(self, step: Step) -> float:
        num_logits = step.num_logits * self.model_config.vocab_size
        return float(self.num_head_weights * self.bytes_per_element + num_logits * LOGITS_BYTES)

    def _attention_flop(self, num_pairs: int) -> float:
        return 4.0 * self.attention_width * num_pairs
