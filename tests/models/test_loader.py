import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanobatch.errors import ConfigError, ModelError
from nanobatch.models.loader import load_model, resolve_dtype
from nanobatch.models.source import read_model_config, resolve_model
from tests.checkpoints import write_checkpoint
from tests.models.steps import CPU, PagedSequences, load, random_prompts
from tests.tiny_tokenizer import VOCAB_SIZE

PROMPTS = random_prompts((9,), vocab_size=VOCAB_SIZE)
LAYER = "model.layers.1.self_attn"


def logits_of(folder: Path) -> torch.Tensor:
    return PagedSequences(load(folder), PROMPTS).run(100)[0]


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors; a dot in a name is written as two underscores."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for key, tensor in changes.items():
        name = key.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path)


def load_error(folder: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(folder)
    return caught.value


def test_many_files_with_an_index_load_like_one(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one")
    many = write_checkpoint(tmp_path / "many", max_shard_size="40KB")
    assert len(list(many.glob("*.safetensors"))) > 3
    assert torch.equal(logits_of(many), logits_of(one))


def test_a_missing_file_of_many_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", max_shard_size="40KB")
    file = sorted(folder.glob("*.safetensors"))[1]
    file.unlink()
    assert load_error(folder).message == f"{folder}: weight file {file.name} is missing"


def test_an_index_that_names_the_wrong_file_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", max_shard_size="40KB")
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    files = sorted(set(index["weight_map"].values()))
    moved = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][moved] = files[1]
    index_path.write_text(json.dumps(index))
    assert load_error(folder).message == (
        f"{folder}: {files[1]} does not hold tensor {moved}, which "
        "model.safetensors.index.json says it does"
    )


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_damaged_index_is_refused(content: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", max_shard_size="40KB")
    (folder / "model.safetensors.index.json").write_text(content)
    assert "cannot read model.safetensors.index.json" in load_error(folder).message


def test_an_index_cannot_name_files_outside_the_folder(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", max_shard_size="40KB")
    write_checkpoint(tmp_path / "other")
    outside = "../other/model.safetensors"
    index = {"weight_map": {"lm_head.weight": outside}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_error(folder).message == f"{folder}: weight file {outside} is missing"


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    rewrite(folder, model__layers__1__self_attn__k_proj__weight=None)
    message = f"{folder}: tensor {LAYER}.k_proj.weight is missing from the checkpoint"
    assert load_error(folder).message == message


def test_many_missing_tensors_are_counted_and_some_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    assert load_error(folder).message == (
        f"{folder}: 9 tensors are (model.layers.3.input_layernorm.weight, "
        "model.layers.3.self_attn.q_proj.weight, model.layers.3.self_attn.k_proj.weight, …) "
        "missing from the checkpoint"
    )


def test_an_extra_tensor_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    rewrite(folder, model__layers__1__self_attn__q_norm__weight=torch.ones(16))
    assert load_error(folder).message == (
        f"{folder}: tensor {LAYER}.q_norm.weight is in the checkpoint that the model has no "
        "place for"
    )


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    rewrite(folder, model__layers__1__self_attn__k_proj__weight=torch.ones(31, 48))
    assert load_error(folder).message == (
        f"{folder}: tensor {LAYER}.k_proj.weight has shape [31, 48]; config.json asks for [32, 48]"
    )


def test_rotary_buffers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    expected = logits_of(folder)
    rewrite(folder, model__layers__1__self_attn__rotary_emb__inv_freq=torch.ones(8))
    assert torch.equal(logits_of(folder), expected)


def test_a_tied_model_that_ships_a_head_uses_its_embedding(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "qwen2")
    expected = logits_of(folder)
    rewrite(folder, lm_head__weight=torch.full((VOCAB_SIZE, 48), torch.nan))
    assert torch.equal(logits_of(folder), expected)


def test_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "llama")
    rewrite(folder, lm_head__weight=None)
    message = f"{folder}: tensor lm_head.weight is missing from the checkpoint"
    assert load_error(folder).message == message


@pytest.mark.parametrize("keep", [0, 5, 100, -1000])
def test_a_damaged_file_is_named(keep: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    error = load_error(folder)
    assert error.message.startswith(f"{path} is damaged: ")
    assert error.hint == "download the file again"


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    error = load_error(folder)
    assert error.message == f"{folder}: the model folder holds no .safetensors file"
    assert error.hint == "download the model's .safetensors files into it"
    (folder / "pytorch_model.bin").touch()
    hint = "pickled weights (.bin, .pt) are not read: save the model as safetensors"
    assert load_error(folder).hint == hint


def test_one_file_of_another_name_is_found_and_two_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    expected = logits_of(folder)
    renamed = (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert torch.equal(logits_of(folder), expected)
    (folder / "more.safetensors").write_bytes(renamed.read_bytes())
    assert load_error(folder).message == (
        f"{folder}: 2 .safetensors files, but no model.safetensors.index.json and no "
        "model.safetensors"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_converted_to_the_wanted_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model"), dtype=dtype)
    assert {weight.dtype for weight in model.parameters()} == {dtype}


def test_every_weight_is_overwritten(tmp_path: Path) -> None:
    source = resolve_model(str(write_checkpoint(tmp_path / "model", "llama_bias")))
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert before is True  # with deterministic algorithms, fresh memory is NaN
    torch.use_deterministic_algorithms(True)
    try:
        model = load_model(source, read_model_config(source), dtype=torch.float32, device=CPU)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())


def test_sizes_that_do_not_fit_the_weights_are_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 10**13
    (folder / "config.json").write_text(json.dumps(config))
    assert load_error(folder).message == (
        f"{folder}: tensor model.layers.0.mlp.gate_proj.weight has shape [80, 48]; config.json "
        "asks for [10000000000000, 48]"
    )


def test_progress_rises_to_one(tmp_path: Path) -> None:
    source = resolve_model(str(write_checkpoint(tmp_path / "model", max_shard_size="40KB")))
    seen: list[float] = []
    load_model(
        source,
        read_model_config(source),
        dtype=torch.float32,
        device=CPU,
        on_progress=seen.append,
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_named_dtype_is_taken() -> None:
    assert resolve_dtype("float64", CPU) == torch.float64
    assert resolve_dtype("bfloat16", CPU) == torch.bfloat16
    with pytest.raises(ConfigError) as caught:
        resolve_dtype("int8", CPU)  # type: ignore[arg-type]
    assert caught.value.message == (
        "dtype is 'int8'; it must be auto, bfloat16, float16, float32, float64"
    )


def test_auto_is_fp32_on_a_cpu_so_that_neighbours_change_nothing() -> None:
    assert resolve_dtype("auto", CPU) == torch.float32
