"""A GGUF file seen as a Hugging Face checkpoint: configuration, tensor names, tensor layouts.

llama.cpp calls Mistral `llama` too, permutes the rows of Llama's q and k projections (its
rotary embedding pairs neighbouring dimensions), and stores Llama 3.1's rotary scaling as a
tensor of divisors. All three are undone here. Imports no torch.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nanobatch.errors import ModelError
from nanobatch.models.gguf_file import GgufArray, GgufFile

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

ROPE_DIVISORS = "rope_freqs.weight"

_WHOLE_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_FLOAT_FILE_TYPES = {0: "float32", 32: "bfloat16"}  # general.file_type of unquantized files


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """The model in a GGUF file."""

    file: GgufFile
    prefix: str

    @classmethod
    def open(cls, path: Path) -> "GgufModel":
        """Open a file and check its architecture.

        Raises:
            ModelError: The file is damaged or of an architecture that is not supported.
        """
        file = GgufFile.open(path)
        name = file.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in ARCHITECTURES:
            raise ModelError(
                f"{path.name}: GGUF architecture {name} is not supported",
                hint=f"supported: {', '.join(ARCHITECTURES)}",
            )
        return cls(file=file, prefix=name)

    def hugging_face_config(self) -> dict[str, object]:
        """Return what the model's `config.json` would say.

        Raises:
            ModelError: A size is missing, or something is not supported.
        """
        self._refuse_unsupported()
        config: dict[str, object] = {
            "architectures": [ARCHITECTURES[self.prefix]],
            "vocab_size": self._vocab_size(),
            "hidden_size": self._field("embedding_length"),
            "intermediate_size": self._field("feed_forward_length"),
            "num_hidden_layers": self._field("block_count"),
            "num_attention_heads": self._field("attention.head_count"),
            "num_key_value_heads": self._field("attention.head_count_kv"),
            "max_position_embeddings": self._field("context_length"),
            "rms_norm_eps": self._field("attention.layer_norm_rms_epsilon"),
            "head_dim": self._head_dim(),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "attention_bias": "blk.0.attn_q.bias" in self.file.tensors,
            "rope_parameters": self._rope_parameters(),
            "dtype": _FLOAT_FILE_TYPES.get(self._file_type(), "float16"),
        }
        return {key: value for key, value in config.items() if value is not None}

    def eos_token_ids(self) -> tuple[int, ...]:
        """Return the ids that end a text or a turn."""
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        ids = [self.file.metadata.get(key) for key in keys]
        return tuple(dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int)))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its Hugging Face name."""
        return {
            _hugging_face_name(name): tensor.shape
            for name, tensor in self.file.tensors.items()
            if name != ROPE_DIVISORS  # already in the configuration
        }

    def read(self, hugging_face_name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as fp32, in the layout of a Hugging Face checkpoint.

        Raises:
            ModelError: The file is damaged.
        """
        gguf_name = next(
            name for name in self.file.tensors if _hugging_face_name(name) == hugging_face_name
        )
        values = self.file.read(gguf_name)
        if self.prefix != "llama":
            return values
        if ".self_attn.q_proj." in hugging_face_name:
            return _undo_permutation(values, self._integer("attention.head_count"))
        if ".self_attn.k_proj." in hugging_face_name:
            return _undo_permutation(values, self._num_kv_heads())
        return values

    def _refuse_unsupported(self) -> None:
        num_experts = self._field("expert_count")
        if num_experts:
            raise self._error(f"mixtures of experts ({num_experts} experts) are not supported")
        for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
            if isinstance(self._field(key), GgufArray):
                raise self._error(f"a {key} that differs by layer is not supported")
        num_rotated = self._field("rope.dimension_count")
        if num_rotated is not None and num_rotated != self._head_dim():
            raise self._error(
                f"rotary embedding of {num_rotated} of {self._head_dim()} dimensions "
                "is not supported"
            )
        if self._field("attention.value_length") not in (None, self._head_dim()):
            raise self._error("values of another size than keys are not supported")

    def _rope_parameters(self) -> dict[str, object]:
        theta = float(self._number("rope.freq_base", 10_000.0))
        scaling: dict[str, object] = {"rope_theta": theta}
        linear_factor = self._field("rope.scale_linear")
        rope_type = self._field("rope.scaling.type")
        if ROPE_DIVISORS in self.file.tensors:
            return scaling | self._llama3_scaling(theta)
        if rope_type in (None, "none"):
            if linear_factor in (None, 1.0):
                return scaling
            return scaling | {"rope_type": "linear", "factor": linear_factor}
        optional = {
            "factor": self._field("rope.scaling.factor"),
            "original_max_position_embeddings": self._field("rope.scaling.original_context_length"),
            "beta_fast": self._field("rope.scaling.yarn_beta_fast"),
            "beta_slow": self._field("rope.scaling.yarn_beta_slow"),
        }
        return scaling | {"rope_type": rope_type} | optional

    def _llama3_scaling(self, theta: float) -> dict[str, object]:
        """Return the Llama 3.1 scaling whose frequency divisors the file holds.

        The file has the divisors but not the four numbers that they were computed from. All
        published checkpoints use 1, 4 and 8,192 for three of them and the fourth is the largest
        divisor; whether these give the file's divisors is checked.
        """
        stored = self.file.read(ROPE_DIVISORS)
        factor, context = float(stored.max()), 8192
        frequencies = theta ** -(np.arange(len(stored)) / len(stored))
        rotations = context * frequencies / (2 * math.pi)
        blend = np.clip((rotations - 1.0) / (4.0 - 1.0), 0.0, 1.0)
        divisors = 1.0 / ((1 - blend) / factor + blend)
        if not np.allclose(divisors, stored, rtol=1e-3):
            raise self._error(f"the rotary scaling in {ROPE_DIVISORS} is not Llama 3's")
        return {
            "rope_type": "llama3",
            "factor": round(factor, 4),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": context,
        }

    def _vocab_size(self) -> int:
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise self._error("tensor token_embd.weight is missing")
        return embedding.shape[0]

    def _head_dim(self) -> int:
        head_dim = self._field("attention.key_length")
        if isinstance(head_dim, int):
            return head_dim
        return self._integer("embedding_length") // self._integer("attention.head_count")

    def _num_kv_heads(self) -> int:
        num_kv_heads = self._field("attention.head_count_kv")
        if isinstance(num_kv_heads, int):
            return num_kv_heads
        return self._integer("attention.head_count")

    def _file_type(self) -> int:
        file_type = self.file.metadata.get("general.file_type")
        return file_type if isinstance(file_type, int) else 1

    def _field(self, key: str) -> object:
        return self.file.metadata.get(f"{self.prefix}.{key}")

    def _integer(self, key: str) -> int:
        value = self._field(key)
        if not isinstance(value, int) or value < 1:
            raise self._error(f"{self.prefix}.{key} is {value!r}; it must be a positive number")
        return value

    def _number(self, key: str, default: float) -> float:
        value = self._field(key)
        return float(value) if isinstance(value, int | float) else default

    def _error(self, message: str) -> ModelError:
        return ModelError(f"{self.file.path.name}: {message}")


def _hugging_face_name(name: str) -> str:
    """Return a tensor's Hugging Face name; one that is not known stays as it is."""
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        return name
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _undo_permutation(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Reorder the output features of a projection from pairs (2i, 2i + 1) to (i, i + d / 2)."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])  # [heads, d / 2, 2, ...]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
