"""The dense decoder that Llama, Mistral, Qwen2 and Qwen3 all are; `ModelConfig` says which.

Families differ in flags only: head norms (`has_qk_norm`), biases (`has_qkv_bias`, `has_o_bias`,
`has_mlp_bias`), tied heads, rotary scaling and attention windows. All state is an argument:
the model keeps weights and nothing else.
"""

import torch
from torch import nn

from nanobatch.config import ModelConfig
from nanobatch.errors import ConfigError
from nanobatch.kernels.best_tokens import BestTokenSearch
from nanobatch.kernels.default_kernels import default_kernels
from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.kernels.kv_cache import KVCache, KVCacheSpec
from nanobatch.kernels.step_attention import ModelAttention, StepAttention
from nanobatch.layers.attention import PagedSelfAttention
from nanobatch.layers.embedding import VocabMatrix
from nanobatch.layers.mlp import GatedMLP
from nanobatch.layers.norm import RMSNorm
from nanobatch.layers.rotary import RotaryEmbedding
from nanobatch.layers.weights import WeightSlot, with_prefix
from nanobatch.parallel.group import SINGLE_RANK, TensorParallelGroup


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(
        self,
        model_config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup,
        kernels: KernelSet,
    ) -> None:
        """Reserve the weights of one layer."""
        super().__init__()
        size, eps = model_config.hidden_size, model_config.rms_norm_eps
        self.input_norm = RMSNorm(size, eps=eps, dtype=dtype, device=device, kernels=kernels)
        self.attention = PagedSelfAttention(
            model_config, dtype=dtype, device=device, group=group, kernels=kernels
        )
        self.mlp_norm = RMSNorm(size, eps=eps, dtype=dtype, device=device, kernels=kernels)
        self.mlp = GatedMLP(
            size,
            model_config.intermediate_size,
            has_bias=model_config.has_mlp_bias,
            dtype=dtype,
            device=device,
            group=group,
            kernels=kernels,
        )

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        attention: StepAttention,
        slot_mapping: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        output_indices: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute one layer.

        A block's output is added to the residual stream by the norm of the block after it, so
        that the sum is read once.

        Args:
            hidden: [num_tokens, hidden_size], output of the block before.
            residual: [num_tokens, hidden_size], the stream without `hidden`, may be overwritten;
                None in the first layer.
            rotation: cos and sin of the tokens' positions.
            attention: Attends in this step and in this layer's window.
            slot_mapping: [num_tokens] int64, where keys and values are stored.
            key_cache: This layer's pool of keys, written.
            value_cache: This layer's pool of values, written.
            output_indices: [n], tokens whose output is wanted; None wants all.

        Returns:
            The output of the feed-forward block and the stream without it, each
            [n or num_tokens, hidden_size].
        """
        hidden, residual = self.input_norm.add_and_normalise(hidden, residual)
        attended = self.attention.forward(
            hidden,
            rotation,
            attention=attention,
            slot_mapping=slot_mapping,
            key_cache=key_cache,
            value_cache=value_cache,
        )
        if output_indices is not None:
            attended, residual = attended[output_indices], residual[output_indices]
        hidden, residual = self.mlp_norm.add_and_normalise(
            self.attention.project(attended), residual
        )
        return self.mlp.forward(hidden), residual

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slots of the layer by their checkpoint names."""
        return {
            **with_prefix("input_layernorm", self.input_norm.weight_slots()),
            **with_prefix("self_attn", self.attention.weight_slots()),
            **with_prefix("post_attention_layernorm", self.mlp_norm.weight_slots()),
            **with_prefix("mlp", self.mlp.weight_slots()),
        }


class DecoderModel(nn.Module):
    """Token ids in, hidden states and logits out; keys and values go to the caller's cache."""

    def __init__(
        self,
        model_config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup = SINGLE_RANK,
        kernels: KernelSet | None = None,
    ) -> None:
        """Reserve this rank's weights, uninitialised (`models.loader` fills them).

        Args:
            model_config: Sizes and flags.
            dtype: Data type of weights and activations.
            device: Where the model lives.
            group: Ranks that share the model.
            kernels: What the layers compute with; None takes what suits device and data type.

        Raises:
            ConfigError: The model's sizes cannot be split among the ranks.
        """
        super().__init__()
        check_divisible(model_config, group.size)
        kernels = default_kernels(device, dtype) if kernels is None else kernels
        self.model_config, self.dtype, self.device = model_config, dtype, device
        self._kernels = kernels
        self.windows = model_config.sliding_windows or (None,) * model_config.num_layers
        size, vocab_size = model_config.hidden_size, model_config.vocab_size
        self.embedding = VocabMatrix(vocab_size, size, dtype=dtype, device=device, group=group)
        self.rotary = RotaryEmbedding(
            model_config.rope,
            model_config.head_dim,
            max_positions=model_config.max_position_embeddings,
            dtype=dtype,
            device=device,
        )
        self.layers = nn.ModuleList(
            DecoderLayer(model_config, dtype=dtype, device=device, group=group, kernels=kernels)
            for _ in range(model_config.num_layers)
        )
        self.final_norm = RMSNorm(
            size, eps=model_config.rms_norm_eps, dtype=dtype, device=device, kernels=kernels
        )
        self.head = (
            self.embedding
            if model_config.tie_word_embeddings
            else VocabMatrix(vocab_size, size, dtype=dtype, device=device, group=group)
        )
        self._num_stored_bytes = sum(weight.nbytes for weight in self.parameters())

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: ModelAttention,
        kv_cache: KVCache,
        logits_indices: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute one step.

        Every layer stores the step's keys and values before its attention reads the cache.

        Args:
            input_ids: [num_tokens] token ids, each below the vocabulary size.
            positions: [num_tokens] place of each token in its sequence.
            attention: Where keys and values go, and who attends to what.
            kv_cache: Keys and values, written.
            logits_indices: [n], tokens whose hidden state is wanted; the last layer computes
                its projections for these only. None wants all, in their order.

        Returns:
            [n or num_tokens, hidden_size], normalised, ready for `compute_logits`.
        """
        hidden, residual = self.embedding.embed(input_ids), None
        rotation = self.rotary.forward(positions)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            hidden, residual = layer.forward(
                hidden,
                residual,
                rotation,
                attention=attention.by_window[self.windows[index]],
                slot_mapping=attention.slot_mapping,
                key_cache=kv_cache.keys[index],
                value_cache=kv_cache.values[index],
                output_indices=logits_indices if index == last else None,
            )
        return self.final_norm.add_and_normalise(hidden, residual)[0]

    def compute_logits(
        self, hidden: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Map [n, hidden_size] to logits [n, vocab_size], fp32 (float64 in float64).

        Args:
            hidden: What `forward` returned.
            out: [n, num_head_rows] that holds this rank's share, or None for a new tensor.
        """
        return self.head.logits(hidden, out=out)

    @property
    def best_token_search(self) -> BestTokenSearch | None:
        """What finds the best tokens of `forward`'s result faster than `compute_logits`, if any."""
        return self.head.search

    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        """Return what each layer of this rank keeps per token."""
        return tuple(
            KVCacheSpec(
                num_kv_heads=self.num_kv_heads,
                head_dim=self.model_config.head_dim,
                dtype=self.dtype,
                window=window,
            )
            for window in self.windows
        )

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return a slot for every checkpoint tensor, by its Hugging Face name."""
        slots = with_prefix("model.embed_tokens", self.embedding.weight_slots())
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            slots |= with_prefix(f"model.layers.{index}", layer.weight_slots())
        slots |= with_prefix("model.norm", self.final_norm.weight_slots())
        if self.head is not self.embedding:
            slots |= with_prefix("lm_head", self.head.weight_slots())
        return slots

    @property
    def num_heads(self) -> int:
        """Query heads of this rank."""
        return self._attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """KV heads of this rank."""
        return self._attention.num_kv_heads

    @property
    def num_head_rows(self) -> int:
        """Logits that this rank computes for every token, padding included."""
        return self.head.num_rows

    def finish_loading(self) -> None:
        """Prepare the head; the layers prepare their own weights."""
        self.head.pack_head(self._kernels, keeps_rows=self.head is self.embedding)

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of this rank's weights, a second copy of the embedding for the head included."""
        is_tied = self.head is self.embedding
        return self._num_stored_bytes + (self.head.head.num_packed_bytes if is_tied else 0)

    @property
    def _attention(self) -> PagedSelfAttention:
        attention = self.layers[0].attention
        assert isinstance(attention, PagedSelfAttention)
        return attention


def check_divisible(model_config: ModelConfig, tp_size: int) -> None:
    """Refuse a number of ranks among which the model cannot be split.

    Raises:
        ConfigError: Heads or intermediate features do not divide evenly.
    """
    for name in ("num_heads", "intermediate_size"):
        value = getattr(model_config, name)
        if value % tp_size:
            raise ConfigError(f"{name} is {value}, which {tp_size} ranks cannot share evenly")
    num_kv_heads = model_config.num_kv_heads
    if max(num_kv_heads, tp_size) % min(num_kv_heads, tp_size):
        raise ConfigError(f"{num_kv_heads} KV heads cannot be split or repeated on {tp_size} ranks")
