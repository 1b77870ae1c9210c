"""The program as a whole: help, version, refusals in two lines, errors without tracebacks."""

import re
from pathlib import Path

import pytest

import nanobatch
from nanobatch.cli import app
from nanobatch.errors import EngineError, StorageError
from tests.cli.program import Program


def test_version(program: Program) -> None:
    ended = program("--version")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.decode() == f"nanobatch {nanobatch.__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("run", "-h"), ("validate", "--help")])
def test_help_is_data(arguments: tuple[str, ...], program: Program) -> None:
    ended = program(*arguments)
    assert (ended.code, ended.err) == (0, "")
    assert b"Usage: nanobatch" in ended.out


def test_no_command_shows_the_help(program: Program) -> None:
    ended = program()
    assert ended.code == 2
    assert "Usage: nanobatch" in ended.out.decode() + ended.err
    assert "error" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["rnu"], "no such command 'rnu'", "did you mean 'run'?"),
        (["frobnicate"], "no such command 'frobnicate'", "see `nanobatch -h`"),
        (["run"], "missing argument 'INPUT...'", "see `nanobatch run --help`"),
        (["run", "a.jsonl"], "missing option '--output' / '-o'", "see `nanobatch run --help`"),
        (["validate"], "missing argument 'INPUT...'", "see `nanobatch validate --help`"),
        (["--frobnicate"], "no such option: --frobnicate", "see `nanobatch -h`"),
        (
            ["run", "a.jsonl", "-o", "b.jsonl", "-m"],
            "option '-m' requires an argument",
            "see `nanobatch run --help`",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_two_lines(
    arguments: list[str], error: str, hint: str, program: Program
) -> None:
    ended = program(*arguments)
    assert ended.code == 2
    assert ended.error_and_hint == (error, hint)


@pytest.mark.parametrize(
    ("wrong", "closest"),
    [
        ("--max-tokenz", "--max-tokens"),
        ("--temprature", "--temperature"),
        ("--max-num-sequences", "--max-num-seqs"),
        ("--no-progres", "--no-progress"),
        ("--chat-templat", "--chat-template"),
    ],
)
def test_a_wrong_flag_is_refused_with_the_closest_one(
    wrong: str, closest: str, program: Program
) -> None:
    ended = program("run", "a.jsonl", "-o", "b.jsonl", wrong, "1")
    assert ended.code == 2
    assert ended.error_and_hint == (f"no such option: {wrong}", f"did you mean {closest}?")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--max-tokens", "many"], r"invalid value for '--max-tokens'.*integer"),
        (["--temperature", "hot"], r"invalid value for '--temperature'"),
        (["--temperature", "-1"], r"temperature is -1\.0; it must be between 0 and 100"),
        (["--temperature", "nan"], r"temperature is nan; it must be between 0 and 100"),
        (["--top-p", "1.5"], r"top_p is 1\.5; it must be between 0 and 1"),
        (["--top-k", "-5"], r"top_k is -5; it must be at least 1"),
        (["--min-p", "2"], r"min_p is 2\.0; it must be between 0 and 1"),
        (["--max-tokens", "-1"], r"max_tokens is -1; it must be at least 0"),
        (["--stop", ""], r"stop holds an empty string"),
        (["--device", "tpu"], r"--device is 'tpu'"),
        (["--dtype", "int8"], r"--dtype is 'int8'"),
        (["--block-size", "0"], r"block_size is 0; it must be at least 1"),
        (["--max-num-seqs", "0"], r"max_num_seqs is 0; it must be at least 1"),
        (["--max-num-batched-tokens", "0"], r"max_num_batched_tokens is 0"),
        (["--kv-cache-memory", "0"], r"kv_cache_memory_bytes is 0"),
        (["--gpu-memory-utilization", "1.2"], r"gpu_memory_utilization is 1\.2"),
        (["--max-model-len", "0"], r"max_model_len is 0; it must be at least 1"),
        (["--max-model-len", "513"], r"max_model_len is 513; the model's context is 512"),
        (["--window-rows", "0"], r"--window-rows is 0; it must be at least 1"),
        (["--log-interval", "0"], r"--log-interval is 0; it must be above 0 seconds"),
        (["--log-interval", "nan"], r"--log-interval is 'nan', which is no duration"),
        (["--max-errors", "-1"], r"--max-errors is '-1'"),
        (["--max-errors", "some"], r"--max-errors is 'some'"),
        (["--input-format", "xml"], r"--input-format is 'xml'"),
        (["--delimiter", "::", "--input-format", "csv"], r"delimiter"),
        (["--template", "{{ a }}", "--prompt-column", "b"], r"exclude each other"),
        (["--template", "{{ a"], r"template"),
        (["--template", ""], r"the prompt template is empty"),
        (["--param-columns", "temperature"], r"--param-columns needs a table"),
        (["--chat-template", "nowhere.jinja"], r"--chat-template nowhere\.jinja: "),
        (["--chat-template-kwargs", "{"], r"--chat-template-kwargs is not valid JSON"),
        (["--chat-template-kwargs", '{"a": NaN}'], r"--chat-template-kwargs: a holds NaN"),
        (["--chat-template-kwargs", "[1]"], r"--chat-template-kwargs is \[1\]; it must be"),
        (["--chat-template-kwargs", '{"a": 1, "tokenize": true}'], r"kwargs has 'tokenize', which"),
        (["--chat-template-kwargs", '{"tools": []}'], r"kwargs has 'tools', which no template"),
        (["--chat-template-kwargs", '{"chat_template": ""}'], r"kwargs has 'chat_template', which"),
        (["--chat-template-kwargs", '{"messages": []}'], r"kwargs has 'messages', which"),
        (["--model", "./nowhere"], r"no such model folder: \./nowhere"),
        (["--model", "./nowhere.gguf"], r"no such model file: \./nowhere\.gguf"),
        (["--model", "nobody/nothing"], r"nobody/nothing"),
    ],
)
def test_a_bad_value_is_refused_in_two_lines_before_anything_is_written(
    flags: list[str], error: str, program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    model = [] if "--model" in flags else ["--model", str(checkpoint)]
    ended = program("run", source, "-o", tmp_path / "out.jsonl", *model, *flags)
    assert ended.code == 2, ended.err
    message, hint = ended.error_and_hint
    assert re.search(error, message), message
    assert hint
    assert sorted(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("name", "output", "error"),
    [
        ("missing.jsonl", "out.jsonl", r"missing\.jsonl does not exist"),
        ("in.docx", "out.jsonl", r"has no known suffix"),
        ("in.jsonl", "out.docx", r"out\.docx"),
        ("in.jsonl", "in.jsonl", r"is an input"),
        ("in.jsonl", "", r"."),
        ("in.jsonl", "folder", r"folder"),
        ("empty.parquet", "out.jsonl", r"empty\.parquet"),
        ("folder", "out.jsonl", r"is a folder"),
        ("utf16.jsonl", "out.jsonl", r"UTF-16"),
    ],
)
def test_a_bad_path_is_refused_in_two_lines(
    name: str, output: str, error: str, program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "in.docx").write_text("x")
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "utf16.jsonl").write_bytes('{"prompt": "a"}\n'.encode("utf-16"))
    before = sorted(tmp_path.iterdir())
    target = f"{tmp_path}/{output}" if output else ""
    ended = program("run", tmp_path / name, "-o", target, "--model", checkpoint)
    assert ended.code == 2
    message, hint = ended.error_and_hint
    assert re.search(error, message), message
    assert hint
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("output", "error", "hint"),
    [
        (
            "a" * 237 + ".jsonl",
            "the output's name is 243 bytes long; at most 242 fit beside its journal and summary",
            "choose a shorter name",
        ),
        (
            "é" * 120 + ".parquet",
            "the output's name is 248 bytes long; at most 242 fit beside its journal and summary",
            "choose a shorter name",
        ),
        (f"{'a' * 300}.jsonl", "the output's name is 306 bytes long", "choose a shorter name"),
        (f"{'a' * 300}/out.jsonl", "File name too long", "shorten the path"),
    ],
)
def test_an_output_that_no_file_system_can_name_is_refused(
    output: str, error: str, hint: str, program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    ended = program("run", source, "-o", tmp_path / output, "--model", checkpoint)
    assert ended.code == 2
    assert error in ended.error_and_hint[0]
    assert ended.error_and_hint[1] == hint
    assert sorted(tmp_path.iterdir()) == [source]


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the program fail with this, whatever it is asked to do."""

    def fail(**_options: object) -> int:
        raise error

    monkeypatch.setattr(app, "app", fail)


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (StorageError("disk\nis full", hint="free\nspace"), 1, ["disk is full", "free space"]),
        (EngineError("broke"), 1, ["broke", "add --debug to see where it comes from"]),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            ["ZeroDivisionError: division by zero", "add --debug to see where it comes from"],
        ),
    ],
)
def test_a_failure_is_two_lines_and_a_traceback_only_with_debug(
    error: Exception,
    code: int,
    lines: list[str],
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_with(monkeypatch, error)
    ended = program("run")
    assert ended.code == code
    assert list(ended.error_and_hint) == lines
    debugged = program("run", "--debug")
    assert debugged.code == code
    assert "Traceback" in debugged.err
    assert debugged.err.splitlines()[-2:] == [f"error: {lines[0]}", f"hint: {lines[1]}"]


def test_a_broken_pipe_is_no_error_to_speak_of(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(monkeypatch, BrokenPipeError())
    ended = program("run")
    assert (ended.code, ended.out, ended.err) == (1, b"", "")
