"""Options from a file and from the environment: flag > environment > file > default."""

import json
from pathlib import Path

import pytest

from tests.cli.configured import Configured
from tests.cli.program import Program
from tests.null_model import write_null_model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(text: str) -> Path:
    path = Path("job.toml")
    path.write_text(text, encoding="utf-8")
    return path


EVERY_KIND = """
inputs = ["a.jsonl", "b.jsonl"]
output = "out.jsonl"
model = "some/model"
max-tokens = 7
temperature = 0
top_p = 0.5
stop = ["END", "a b"]
n = 2
raw = true
no-prefix-caching = true
columns = ["a", "b"]
param-columns = "c,d"
prompt-column = "text"
max-errors = "any"
stop-after = "1h"
row-timeout = 90
log-interval = 2.5
chat-template-kwargs = { enable_thinking = false }
shard = "1/4"
"""


def test_a_file_holds_any_option(configured: Configured) -> None:
    job = configured("--config", write_config(EVERY_KIND))
    assert job.inputs == ("a.jsonl", "b.jsonl")
    assert job.output == "out-00001-of-00004.jsonl"
    assert job.engine.model == "some/model"
    assert job.sampling == {
        **{"max_tokens": 7, "temperature": 0.0, "top_p": 0.5},
        **{"stop": ["END", "a b"], "n": 2},
    }
    assert (job.rows.raw, job.rows.prompt_column) == (True, "text")
    assert (job.columns, job.rows.param_columns) == (("a", "b"), ("c", "d"))
    assert not job.engine.enable_prefix_caching
    assert job.max_errors is None
    assert (job.stop_after_s, job.engine.row_timeout_s, job.log_interval_s) == (3600.0, 90.0, 2.5)
    assert job.engine.chat_template_kwargs == {"enable_thinking": False}


def test_flag_beats_environment_beats_file_beats_default(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config("max-tokens = 1\ntop-k = 1\nseed = 1\nstop = 'file'\n")
    for name, value in (("MAX_TOKENS", "2"), ("TOP_K", "2"), ("STOP", "environment")):
        monkeypatch.setenv(f"NANOBATCH_{name}", value)
    job = configured("a.jsonl", "-o", "b.jsonl", "--config", path, "--max-tokens", "3")
    assert job.sampling == {"max_tokens": 3, "top_k": 2, "stop": ["environment"]}
    assert job.engine.seed == 1
    assert job.engine.block_size == 16
    assert configured("a.jsonl", "-o", "b.jsonl", "--stop", "flag").sampling["stop"] == ["flag"]


def test_what_applies_is_printed_at_start(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("a.jsonl", "-o", "b.jsonl")
    path = write_config("seed = 1\n")
    assert configured.ended(*line).err == ""
    assert configured.ended(*line, "--config", path).err == "config: job.toml\n"
    monkeypatch.setenv("NANOBATCH_MODEL", "m")
    monkeypatch.setenv("NANOBATCH_TOP_K", "4")
    assert configured.ended(*line, "--config", path).err == (
        "config: job.toml; NANOBATCH_MODEL, NANOBATCH_TOP_K from the environment\n"
    )
    assert configured.ended(*line, "--top-k", "5").err == (
        "config: NANOBATCH_MODEL from the environment\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "flags"),
    [
        ("RAW", "1", ["--raw"]),
        ("RAW", "no", []),
        ("PROGRESS", "off", ["--no-progress"]),
        ("NO_PROGRESS", "true", ["--no-progress"]),
        ("MAX_TOKENS", "7", ["--max-tokens", "7"]),
        ("TEMPERATURE", "0.5", ["--temperature", "0.5"]),
        ("STOP", "a b", ["--stop", "a b"]),
        ("STOP", "[INST]", ["--stop", "[INST]"]),
        ("STOP", '["a", "b"]', ["--stop", "a", "--stop", "b"]),
        ("COLUMNS", "a,b", ["--columns", "a,b"]),
        ("STOP_AFTER", "7h30m", ["--stop-after", "7h30m"]),
        ("MAX_ERRORS", "any", ["--max-errors", "any"]),
        ("CHAT_TEMPLATE_KWARGS", '{"a": 1}', ["--chat-template-kwargs", '{"a": 1}']),
        ("SEED", "", []),
        ("OVERWRITE", "1", ["--overwrite"]),
    ],
)
def test_a_variable_is_what_the_flag_would_be(
    name: str,
    value: str,
    flags: list[str],
    configured: Configured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ("a.jsonl", "-o", "b.jsonl")
    wanted = configured(*line, *flags)
    monkeypatch.setenv(f"NANOBATCH_{name}", value)
    assert configured(*line) == wanted


def test_inputs_output_and_the_file_itself_can_be_variables(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOBATCH_CONFIG", str(write_config("seed = 3\n")))
    monkeypatch.setenv("NANOBATCH_INPUTS", '["a b.jsonl", "c.jsonl"]')
    monkeypatch.setenv("NANOBATCH_OUTPUT", "out.jsonl")
    job = configured()
    assert (job.inputs, job.output) == (("a b.jsonl", "c.jsonl"), "out.jsonl")
    assert job.engine.seed == 3
    assert configured("d.jsonl", "-o", "e.jsonl").inputs == ("d.jsonl",)


IN_FILE = "change it in the file"


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("temprature = 1", "job.toml: temprature is no option", "did you mean temperature?"),
        ("max-token = 1", "job.toml: max-token is no option", "did you mean max-tokens?"),
        ("config = 'a'", "job.toml: config is no option", None),
        (
            "[run]\nseed = 1",
            "job.toml: run is no option",
            "options stand at the top level, without tables",
        ),
        ("zzz = 1", "job.toml: zzz is no option", "see `nanobatch run --help` for the options"),
        ("seed = '1'", "job.toml: seed is '1'; it must be an integer", IN_FILE),
        ("seed = true", "job.toml: seed is True; it must be an integer", IN_FILE),
        ("seed = 1.0", "job.toml: seed is 1.0; it must be an integer", IN_FILE),
        ("top-p = 'a'", "job.toml: top-p is 'a'; it must be a number", IN_FILE),
        ("raw = 1", "job.toml: raw is 1; it must be true or false", IN_FILE),
        ("model = 1", "job.toml: model is 1; it must be a string", IN_FILE),
        (
            "stop = [1]",
            "job.toml: stop is [1]; it must be a string or an array of strings",
            IN_FILE,
        ),
        (
            "columns = 1",
            "job.toml: columns is 1; it must be a string or an array of strings",
            IN_FILE,
        ),
        (
            "max-errors = 1.5",
            "job.toml: max-errors is 1.5; it must be an integer or 'any'",
            IN_FILE,
        ),
        (
            "stop-after = true",
            "job.toml: stop-after is True; it must be a number of seconds or a string "
            "such as '7h30m'",
            IN_FILE,
        ),
        (
            "chat-template-kwargs = 1",
            "job.toml: chat-template-kwargs is 1; it must be a table or a string of JSON",
            IN_FILE,
        ),
        (
            "max-tokens = 1\nmax_tokens = 2",
            "job.toml: max-tokens and max_tokens say the same option",
            "keep one",
        ),
        (
            "progress = true\nno-progress = true",
            "job.toml: progress and no-progress say the same option",
            "keep one",
        ),
        ("seed 1", "--config job.toml is no TOML: ", "write lines such as max-tokens = 256"),
    ],
)
@pytest.mark.parametrize("command", [("run", "a.jsonl", "-o", "b.jsonl"), ("validate", "a.jsonl")])
def test_a_wrong_file_is_refused(
    text: str, error: str, hint: str | None, command: tuple[str, ...], program: Program
) -> None:
    ended = program(*command, "--config", write_config(text))
    assert ended.code == 2
    assert ended.error_and_hint[0].startswith(error)
    assert hint is None or ended.error_and_hint[1] == hint


def test_a_file_that_is_not_there_is_refused(program: Program) -> None:
    Path("latin.toml").write_bytes(b"system = '\xe9'")
    missing = program("run", "a.jsonl", "-o", "b.jsonl", "--config", "nowhere.toml")
    assert (missing.code, missing.error_and_hint) == (
        2,
        ("--config nowhere.toml: No such file or directory", "give a TOML file"),
    )
    latin = program("run", "a.jsonl", "-o", "b.jsonl", "--config", "latin.toml")
    assert latin.error_and_hint[0].startswith("--config latin.toml is no TOML: 'utf-8' codec")


@pytest.mark.parametrize(
    ("name", "value", "error", "hint"),
    [
        (
            "NANOBATCH_TEMPRATURE",
            "1",
            "the environment has NANOBATCH_TEMPRATURE, which is no option",
            "did you mean NANOBATCH_TEMPERATURE?",
        ),
        (
            "NANOBATCH_CONFG",
            "1",
            "the environment has NANOBATCH_CONFG, which is no option",
            "did you mean NANOBATCH_CONFIG?",
        ),
        (
            "NANOBATCH_SEED",
            "one",
            "NANOBATCH_SEED is 'one'; it must be an integer",
            "the variable is in the environment",
        ),
        (
            "NANOBATCH_RAW",
            "maybe",
            "NANOBATCH_RAW is 'maybe'; it must be true or false",
            "the variable is in the environment",
        ),
    ],
)
def test_a_wrong_variable_is_refused(
    name: str,
    value: str,
    error: str,
    hint: str,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    ended = program("run", "a.jsonl", "-o", "b.jsonl")
    assert (ended.code, ended.error_and_hint) == (2, (error, hint))
    assert program("run", "--help").code == 0


def test_a_variable_of_somebody_else_breaks_nothing(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOBATCH_DEBUG_SOMETHING", "1")
    monkeypatch.setenv("MAX_TOKENS", "5")
    ended = configured.ended("a.jsonl", "-o", "b.jsonl")
    assert (ended.code, ended.err) == (0, "config: NANOBATCH_DEBUG_SOMETHING is no option\n")


def test_debug_from_the_environment_shows_tracebacks(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOBATCH_DEBUG", "1")
    ended = program("run", "missing.jsonl", "-o", "out.jsonl")
    assert ended.code == 2
    assert "Traceback" in ended.err


def test_validate_takes_a_run_s_file(program: Program, folder: Path) -> None:
    model = write_null_model(folder / "model")
    Path("in.jsonl").write_text(json.dumps({"text": "x" * 5000 + "a"}) + "\n")
    path = write_config(
        f"model = '{model}'\ninputs = 'in.jsonl'\noutput = 'out.jsonl'\nmax-tokens = 5\n"
        "template = 'about {{ text }}'\nlong-prompts = 'truncate-left'\n"
    )
    ended = program("validate", "--config", path)
    assert (ended.code, ended.err) == (0, "config: job.toml\n")
    assert "1 good, 0 bad" in ended.out.decode()
