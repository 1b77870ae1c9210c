"""Frozen configuration. Nothing here is changed after it is made; `replace` returns a new value.

`ModelConfig` says what a checkpoint is, `EngineConfig` how to run it; what a job over files does
stands in `job_config`. Reading Hugging Face configs lives in `models.registry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from nanobatch.errors import ConfigError

Dtype = Literal["auto", "bfloat16", "float16", "float32", "float64"]
Device = Literal["auto", "cpu", "cuda"]
AttentionBackendName = Literal["auto", "triton", "fa3", "fa2", "torch"]
LongPrompts = Literal["error", "truncate-left", "truncate-middle"]
RopeType = Literal["default", "linear", "llama3", "yarn"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021) with the scalings that checkpoints use.

    Attributes:
        theta: Base of the geometric frequencies.
        rope_type: Which scaling; the fields below apply to some types only.
        factor: Context extension factor (linear, llama3, yarn).
        original_max_position_embeddings: Context before extension (llama3, yarn).
        low_freq_factor: Wavelengths above context / this are fully scaled (llama3).
        high_freq_factor: Wavelengths below context / this are not scaled (llama3).
        beta_fast: Rotations above which a frequency is not scaled (yarn).
        beta_slow: Rotations below which a frequency is fully scaled (yarn).
        attention_factor: Multiplies cos and sin (yarn); None derives it from factor.
        mscale: Attention-factor numerator scale (yarn), or None.
        mscale_all_dim: Attention-factor denominator scale (yarn), or None.
        truncate: Round yarn's correction range to whole dimensions.
    """

    theta: float = 10_000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a dense decoder checkpoint is: sizes, and the flags in which families differ.

    Attributes:
        architecture: Hugging Face class name, such as `LlamaForCausalLM`.
        head_dim: Dimensions per attention head.
        max_position_embeddings: Context length in tokens.
        rope: Rotary embedding.
        rms_norm_eps: Epsilon inside RMSNorm's square root.
        tie_word_embeddings: The output head is the input embedding.
        has_qk_norm: RMSNorm on each query and key head before RoPE (Qwen3).
        has_qkv_bias: Biases on query, key and value projections (Qwen2, some Llama).
        has_o_bias: Bias on the attention output projection.
        has_mlp_bias: Biases in the MLP.
        sliding_windows: Attention window in tokens per layer; None attends to everything.
        dtype: Data type the checkpoint was saved in.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope: RopeConfig
    rms_norm_eps: float
    tie_word_embeddings: bool
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    dtype: str = "float32"

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Return the bytes of keys and values that one token adds over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """How large steps may be, and how many are on their way.

    Attributes:
        max_num_seqs: Most sequences that run at once.
        max_num_batched_tokens: Most prompt tokens of one step.
        run_ahead: Steps launched before the results of the oldest one are read.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    run_ahead: int


CPU_STEP_SIZES = StepSizes(max_num_seqs=256, max_num_batched_tokens=8192, run_ahead=0)
"""More of any makes a CPU no faster."""

GPU_STEP_SIZES = StepSizes(max_num_seqs=1024, max_num_batched_tokens=32_768, run_ahead=1)
"""A GPU reads its weights once a step: 1,024 rows cost little more than 256. While it computes a
step, the host reads the one before and makes the next."""

ROOMY_GPU_BYTES = 48 * 1024 * MIB
ROOMY_GPU_MAX_NUM_SEQS = 2048
"""Of GPUs on which weights leave that much memory: products are no faster, but twice as many rows
share beginnings, and what is between the kernels of a step comes half as often. They take 1.4 to
2.7 GB more for logits, counts and partial results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to run a model.

    Attributes:
        model: Local folder, Hugging Face id or `.gguf` file; None takes the embedded demo model.
        device: `auto` takes CUDA where there is a GPU.
        dtype: Data type of weights and activations; `auto` takes what suits model and device.
        block_size: Tokens per KV block.
        max_num_seqs: Most sequences that run at once; None goes by the device.
        max_num_batched_tokens: Most prompt tokens of one step; None goes by the device.
        max_model_len: Longest prompt plus output in tokens; None takes the model's context.
        num_kv_blocks: Size of the KV pool in blocks; None sizes it from memory.
        kv_cache_memory_bytes: Size of the KV pool in bytes; None sizes it from memory.
        gpu_memory_utilization: Share of GPU memory that nanobatch may use in all.
        enable_prefix_caching: Reuse KV blocks of equal beginnings.
        enable_shared_attention: Read KV blocks that several rows share once for all of them.
        prior_output_tokens: Length that outputs are taken to have before any has ended; KV blocks
            are reserved by it, and a run learns better as it goes.
        run_ahead: Steps launched before the results of the oldest one are read; None takes what
            suits the device.
        num_decode_steps: Decode steps launched together; None goes by measured time.
        chat_template: Jinja text that replaces the model's chat template.
        chat_template_kwargs: Variables for every chat template rendering.
        seed: Run seed; a request without a seed draws from it and its row index.
        return_logprobs: Compute the log-probability of every generated token.
        enforce_eager: Run decode steps without CUDA graphs; the tokens are the same. On a CPU in
            bfloat16: without functions compiled for the processor, which round less often.
        attention_backend: Which kernels compute the attention of prompts; `auto` takes the fastest
            that is installed.
        trust_remote_code: Allow code that ships with a model's tokenizer.
        long_prompts: What becomes of a prompt that does not fit the context: an error row, or the
            prompt without its beginning or its middle.
        row_timeout_s: Seconds after its first scheduling when a sequence ends as an error; None
            is never.
    """

    model: str | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    block_size: int = 16
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    enable_prefix_caching: bool = True
    enable_shared_attention: bool = True
    prior_output_tokens: int = 256
    run_ahead: int | None = None
    num_decode_steps: int | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    return_logprobs: bool = False
    enforce_eager: bool = False
    attention_backend: AttentionBackendName = "auto"
    trust_remote_code: bool = False
    long_prompts: LongPrompts = "error"
    row_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("device", get_args(Device)),
            ("dtype", get_args(Dtype)),
            ("attention_backend", get_args(AttentionBackendName)),
            ("long_prompts", get_args(LongPrompts)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}", hint=f"use one of {', '.join(allowed)}"
                )
        for name in ("block_size", "prior_output_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "num_kv_blocks",
            "kv_cache_memory_bytes",
            "num_decode_steps",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.run_ahead is not None and self.run_ahead < 0:
            raise ConfigError(f"run_ahead is {self.run_ahead}; it must be at least 0")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization:g}; "
                "it must be above 0 and at most 1"
            )
        if self.row_timeout_s is not None and not self.row_timeout_s > 0:
            raise ConfigError(f"row_timeout_s is {self.row_timeout_s:g}; it must be above 0")

    def step_sizes(self, device_type: str, *, free_bytes: int = 0) -> StepSizes:
        """Return how large steps may be on a device.

        Args:
            device_type: `cpu` or `cuda`.
            free_bytes: What weights leave of a GPU's memory; 0 where that is not known.
        """
        sizes = CPU_STEP_SIZES if device_type == "cpu" else GPU_STEP_SIZES
        if device_type == "cuda" and free_bytes >= ROOMY_GPU_BYTES:
            sizes = replace(sizes, max_num_seqs=ROOMY_GPU_MAX_NUM_SEQS)
        return StepSizes(
            max_num_seqs=self.max_num_seqs or sizes.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens or sizes.max_num_batched_tokens,
            run_ahead=sizes.run_ahead if self.run_ahead is None else self.run_ahead,
        )
