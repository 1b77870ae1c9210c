"""Fills a decoder with a checkpoint's weights, strictly: nothing missing, extra or mis-shaped.

Names and shapes are compared before any weight is read. Tensors are read one at a time and
copied into place, so that peak memory is the model and its largest tensor. Data types are
chosen here too (`resolve_dtype`).
"""

from collections.abc import Callable, Mapping

import torch

from nanobatch.config import GIB, Dtype, ModelConfig
from nanobatch.errors import ConfigError, EngineError, ModelError
from nanobatch.kernels.host_memory import keep_freed_memory
from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.layers.weights import FinishesLoading, WeightSlot
from nanobatch.models.checkpoint import Checkpoint, open_checkpoint
from nanobatch.models.decoder import DecoderModel
from nanobatch.models.source import ModelSource
from nanobatch.parallel.group import SINGLE_RANK, TensorParallelGroup

HARMLESS_SUFFIX = ".rotary_emb.inv_freq"
"""A buffer that old checkpoints carry and that follows from the configuration."""

MAX_NAMES_SHOWN = 3

DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def load_model(
    source: ModelSource,
    model_config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    group: TensorParallelGroup = SINGLE_RANK,
    checkpoint: Checkpoint | None = None,
    kernels: KernelSet | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> DecoderModel:
    """Build a decoder and load this rank's share of its weights.

    Args:
        source: Where the weights are.
        model_config: What `read_model_config` said of the same source.
        dtype: Data type of weights and activations.
        device: Where the model lives.
        group: Ranks that share the model.
        checkpoint: The weights; None opens those of the source.
        kernels: What the layers compute with; None takes what suits device and data type.
        on_progress: Called with the share of weights loaded, 0 to 1.

    Raises:
        ModelError: Tensors are missing, extra or of another shape, or a file is damaged.
        ConfigError: The model cannot be split among the ranks.
        EngineError: The device has too little memory for the weights.
    """
    checkpoint = checkpoint or open_checkpoint(source)
    shapes = {
        name: shape
        for name, shape in checkpoint.shapes.items()
        if not _is_harmless_extra(name, model_config)
    }
    outline = DecoderModel(model_config, dtype=dtype, device=torch.device("meta"), group=group)
    _check_names_and_shapes(outline.weight_slots(), shapes, model_name=source.name)
    try:
        model = DecoderModel(model_config, dtype=dtype, device=device, group=group, kernels=kernels)
    except RuntimeError as error:  # torch's allocators raise nothing more precise
        raise EngineError(
            f"{source.name}: the {outline.num_weight_bytes / GIB:.1f} GiB of weights do not fit "
            f"into the memory of {device}",
            hint="use a smaller model, or --dtype bfloat16",
        ) from error
    _fill(
        model,
        checkpoint,
        num_elements=sum(map(_num_elements, shapes.values())),
        on_progress=on_progress,
    )
    _finish_loading(model)
    if device.type == "cpu":
        keep_freed_memory()  # from here on: what loading needed goes back to the system
    return model.eval()


def resolve_dtype(name: Dtype, device: torch.device) -> torch.dtype:
    """Return the data type of weights and activations.

    `auto` takes bfloat16 on GPUs since Ampere and fp32 elsewhere. Processors with AMX multiply
    bfloat16 faster too (SmolLM2: 4 times the prefill speed of fp32, 1.9 times at 64 decoding
    rows), but a row's last bits then depend on how many rows are beside it, and bfloat16 has so
    few bits that tokens change: a row would not answer the same beside other neighbours or
    after a resume, which docs/contract.md promises. So there it is opt-in.

    Raises:
        ConfigError: There is no data type of that name.
    """
    if name != "auto":
        if name not in DTYPES:
            raise ConfigError(f"dtype is {name!r}; it must be auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    is_fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if is_fast else torch.float32


def _fill(
    model: DecoderModel,
    checkpoint: Checkpoint,
    *,
    num_elements: int,
    on_progress: Callable[[float], None] | None,
) -> None:
    slots = model.weight_slots()
    num_loaded = 0
    with torch.no_grad():
        for name, tensor in checkpoint.tensors():
            if name not in slots:
                continue
            slots[name].store(tensor)
            num_loaded += tensor.numel()
            if on_progress is not None:
                on_progress(num_loaded / num_elements)


def _finish_loading(model: DecoderModel) -> None:
    """Let modules bring their weights into their final form, one after the other to save memory."""
    with torch.inference_mode():
        for module in model.modules():
            if isinstance(module, FinishesLoading):
                module.finish_loading()


def _is_harmless_extra(name: str, model_config: ModelConfig) -> bool:
    if name.endswith(HARMLESS_SUFFIX):
        return True
    return model_config.tie_word_embeddings and name == "lm_head.weight"


def _check_names_and_shapes(
    slots: Mapping[str, WeightSlot], shapes: Mapping[str, tuple[int, ...]], *, model_name: str
) -> None:
    missing = [name for name in slots if name not in shapes]
    if missing:
        raise ModelError(
            f"{model_name}: {_counted(missing)} missing from the checkpoint",
            hint="the weights do not belong to config.json, or the download is not complete",
        )
    extra = [name for name in shapes if name not in slots]
    if extra:
        raise ModelError(
            f"{model_name}: {_counted(extra)} in the checkpoint that the model has no place for",
            hint="the weights do not belong to config.json",
        )
    for name, slot in slots.items():
        if slot.shape != shapes[name]:
            raise ModelError(
                f"{model_name}: tensor {name} has shape {list(shapes[name])}; "
                f"config.json asks for {list(slot.shape)}",
                hint="the weights do not belong to config.json",
            )


def _counted(names: list[str]) -> str:
    """Return "tensor a" or "2 tensors (a, b)", naming a few."""
    if len(names) == 1:
        return f"tensor {names[0]} is"
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    more = ", …" if len(names) > MAX_NAMES_SHOWN else ""
    return f"{len(names):,} tensors are ({shown}{more})"


def _num_elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
