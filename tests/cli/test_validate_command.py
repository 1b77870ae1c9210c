"""`nanobatch validate`: every bad row with its place, counts, the first prompt, and no weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import ROOT, Program, start, wait
from tests.null_model import write_null_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("null-model"))


def test_every_bad_row_is_printed_with_its_place(
    model: Path, program: Program, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "good"}\n\n{"prompt": ""}\n[1]\n{"prompt": "x", "best_of": 3}\n')
    ended = program("validate", source, "-m", model)
    assert ended.code == 3
    lines = ended.out.decode().splitlines()
    assert [line.partition(": ")[0] for line in lines[:3]] == [
        f"{source}:{number}" for number in (3, 4, 5)
    ]
    assert [line.split(": ")[1] for line in lines[:3]] == [
        "empty_prompt",
        "not_an_object",
        "unsupported",
    ]
    assert lines[3] == "4 rows: 1 good, 3 bad"
    assert sorted(tmp_path.iterdir()) == [source]


def test_good_rows_end_with_0_counts_and_the_first_prompt(
    model: Path, program: Program, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    messages = [{"role": "user", "content": "line one\nline two"}]
    rows = [{"messages": messages}, *({"prompt": "x" * length} for length in (1, 2, 3, 8, 100))]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = program("validate", source, "-m", model)
    assert (ended.code, ended.err) == (0, "")
    text = ended.out.decode()
    assert text.startswith("6 rows: 6 good, 0 bad\n")
    assert "prompt tokens: 1 to 100, median " in text
    assert "            1-1          1  " in text
    assert "            2-3          2  " in text
    assert "first prompt, as the model sees it:" in text
    assert "  | <|turn|>user\n  | line one\n  | line two<|eos|><|turn|>assistant\n" in text


def test_shared_beginnings_are_counted_in_full_blocks(
    model: Path, program: Program, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"input_ids": [*range(40, 75), 100 + number]} for number in range(5)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = program("validate", source, "-m", model)
    # Two full blocks of 35 common tokens; 52 = 32 + 4 + 4 * 4; each of 255 steps reads the 32
    # once for five rows that attend to 36 + 1 to 36 + 255 keys: 4 * 32 * 255 of 5 * 41,820.
    assert ended.out.decode().partition("\n\nsharing: ")[2].partition("\n\n")[0] == (
        "88.8 % of prompt tokens are beginnings that other rows have too\n"
        "  level  beginnings  rows each   at most  tokens each    reused\n"
        "      1           1          5         5           32    71.1 %\n"
        "  prefill: 52 of 180 prompt tokens are computed, 71.1 % are reused\n"
        "  decode: about 15.6 % of KV reads are saved, "
        "with up to 256 answers at once, of 256 tokens or max_tokens if less"
    )


def test_rows_that_share_nothing_are_told_so(model: Path, program: Program, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(
        "".join(json.dumps({"input_ids": [40 + row] * 20}) + "\n" for row in range(5))
    )
    ended = program("validate", source, "-m", model)
    assert "\n\nsharing: no two rows begin with the same 16 tokens\n\n" in ended.out.decode()


def test_a_better_order_of_the_template_is_a_hint(
    model: Path, program: Program, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"question": chr(48 + row) * 20, "document": "a" * 100} for row in range(10)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Of 120 characters, 64 are a full block that nine of ten rows reuse: 48 %.
    ended = program("validate", source, "-m", model, "--template", "{{ question }}{{ document }}")
    assert (
        "\n\nhint: with {{ document }} before {{ question }}, rows would share about 48 % of the "
        "template's text\n  instead of 0 % (first 10 rows, in characters): put what repeats most "
        "first\n\n" in ended.out.decode()
    )
    good = program("validate", source, "-m", model, "--template", "{{ document }}{{ question }}")
    assert b"hint" not in good.out


def test_no_rows_are_fine(model: Path, program: Program, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n \n")
    ended = program("validate", source, "-m", model)
    assert (ended.code, ended.out, ended.err) == (0, b"0 rows: 0 good, 0 bad\n", "")


def test_unknown_parameters_are_named(model: Path, program: Program, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a", "body": {"prompt": "x", "mood": "dry"}}\n')
    ended = program("validate", source, "-m", model)
    assert ended.code == 0
    assert "unknown parameters, ignored: mood" in ended.out.decode()
    strict = program("validate", source, "-m", model, "--strict")
    assert strict.code == 3
    assert b"bad_params" in strict.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing.jsonl"], "missing.jsonl does not exist"),
        (["in.jsonl", "--max-model-len", "9999"], "the model's context is 2,048"),
        (["in.jsonl", "--max-tokens", "3"], "no such option: --max-tokens"),
        (["in.jsonl", "-m", "./nowhere"], "no such model folder: ./nowhere"),
    ],
)
def test_a_refusal_is_two_lines_and_2(
    arguments: list[str],
    error: str,
    model: Path,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"prompt": "x"}\n')
    flags = [] if "-m" in arguments else ["-m", str(model)]
    ended = program("validate", *flags, *arguments)
    assert ended.code == 2
    assert error in ended.error_and_hint[0]


def test_a_terminal_that_cannot_show_a_prompt_gets_it_escaped(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "caf\\u00e9 \\u65e5"}\n')
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = wait(start("validate", source, "-m", model))
    assert ended.code == 0, ended.err
    assert b"  | caf\\xe9 \\u65e5\n" in ended.out


def test_control_characters_of_a_prompt_do_not_reach_the_terminal(
    model: Path, program: Program, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "a\x1b[2J\tb\r\nc\x9bd\n"}))
    ended = program("validate", source, "-m", model)
    assert ended.out.decode().splitlines()[-2:] == ["  | a\\x1b[2J\tb\\r", "  | c\\x9bd"]


def test_nothing_of_the_torch_side_is_loaded(model: Path, tmp_path: Path) -> None:
    """The null model has no weights at all; the tokenizer's library may still look for torch."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    program = (
        "import sys\n"
        "from nanobatch.cli.app import main\n"
        f"try:\n    main(['validate', {str(source)!r}, '-m', {str(model)!r}])\n"
        "except SystemExit as ended:\n    assert ended.code == 0, ended.code\n"
        "assert 'nanobatch.models.loader' not in sys.modules\n"
        "assert 'nanobatch.engine.model_runner' not in sys.modules\n"
        "assert 'nanobatch.layers.linear' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
