"""A dense decoder in numpy float64, written from the papers: no cache, no pages, no torch.

Shares no code with nanobatch; its arithmetic is exact enough to catch what fp32 hides.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DenseDecoder:
    """Llama, Mistral, Qwen2 or Qwen3 with default rotary embedding."""

    weights: Mapping[str, Matrix]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    theta: float
    eps: float
    windows: tuple[int | None, ...]

    def logits(self, token_ids: list[int]) -> Matrix:
        """Return [num_tokens, vocab_size]."""
        embedding = self.weights["model.embed_tokens.weight"]
        hidden = embedding[token_ids]
        for layer, window in enumerate(self.windows):
            prefix = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{prefix}.input_layernorm.weight")
            hidden = hidden + self._attention(normed, f"{prefix}.self_attn", window)
            normed = self._norm(hidden, f"{prefix}.post_attention_layernorm.weight")
            gate = self._linear(normed, f"{prefix}.mlp.gate_proj")
            up = self._linear(normed, f"{prefix}.mlp.up_proj")
            hidden = hidden + self._linear(
                gate / (1 + np.exp(-gate)) * up, f"{prefix}.mlp.down_proj"
            )
        head = self.weights.get("lm_head.weight", embedding)
        return self._norm(hidden, "model.norm.weight") @ head.T

    def _attention(self, hidden: Matrix, prefix: str, window: int | None) -> Matrix:
        count = len(hidden)
        query = self._heads(hidden, f"{prefix}.q_proj", self.num_heads)
        key = self._heads(hidden, f"{prefix}.k_proj", self.num_kv_heads)
        value = self._heads(hidden, f"{prefix}.v_proj", self.num_kv_heads)
        if f"{prefix}.q_norm.weight" in self.weights:
            query = self._norm(query, f"{prefix}.q_norm.weight")
            key = self._norm(key, f"{prefix}.k_norm.weight")
        query, key = self._rotate(query), self._rotate(key)
        distance = np.arange(count)[:, None] - np.arange(count)[None, :]
        visible = (distance >= 0) & (distance < (window or count))
        outputs = []
        for head in range(self.num_heads):
            kv_head = head * self.num_kv_heads // self.num_heads
            scores = query[:, head] @ key[:, kv_head].T / np.sqrt(self.head_dim)
            scores = np.where(visible, scores, -np.inf)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(shares / shares.sum(axis=1, keepdims=True) @ value[:, kv_head])
        return self._linear(np.concatenate(outputs, axis=1), f"{prefix}.o_proj")

    def _heads(self, hidden: Matrix, name: str, num_heads: int) -> Matrix:
        return self._linear(hidden, name).reshape(len(hidden), num_heads, self.head_dim)

    def _rotate(self, heads: Matrix) -> Matrix:
        half = self.head_dim // 2
        speeds = self.theta ** -(np.arange(half) / half)
        angles = np.arange(len(heads))[:, None, None] * speeds
        pair = heads[..., :half] + 1j * heads[..., half:]  # each pair as a complex number
        turned = pair * np.exp(1j * angles)
        return np.concatenate((turned.real, turned.imag), axis=-1)

    def _linear(self, hidden: Matrix, name: str) -> Matrix:
        product: Matrix = hidden @ self.weights[f"{name}.weight"].T
        return product + self.weights.get(f"{name}.bias", np.zeros(1))

    def _norm(self, hidden: Matrix, name: str) -> Matrix:
        mean_square = np.mean(hidden**2, axis=-1, keepdims=True)
        normed: Matrix = hidden / np.sqrt(mean_square + self.eps) * self.weights[name]
        return normed
