"""Text to ids and back, compared with transformers' own answers; odd texts, damaged files."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import ModelError
from nanobatch.request import ErrorCode, Request, RowError, RowIndex
from tests.engine.written_tokenizers import (
    BOS_TOKEN_ID,
    TEMPLATE_WITH_BOS,
    TURN,
    chat,
    error,
    ids,
    load,
    raw,
    write_model,
)
from tests.tiny_tokenizer import BOS, CHAT_TEMPLATE


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("chat_template", [CHAT_TEMPLATE, TEMPLATE_WITH_BOS])
def test_chats_and_raw_prompts_are_encoded_as_transformers_does(
    adds_bos: bool, chat_template: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, chat_template=chat_template, adds_bos=adds_bos)
    tokenizer = load(folder)
    reference = AutoTokenizer.from_pretrained(str(folder))
    conversations: list[list[dict[str, str]]] = [
        [TURN],
        [{"role": "system", "content": "be brief"}, TURN],
        [
            TURN,
            {"role": "assistant", "content": "good"},
            {"role": "user", "content": "日本 é 👍"},
        ],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": f"{BOS} spelled <|turn|> out"}],
    ]
    for messages in conversations:
        expected = reference.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        assert ids(tokenizer, chat(*messages)) == expected
    for text in ("the answer", " the", "\n", "日本 é 👍", "a<|eos|>b"):
        assert ids(tokenizer, raw(text)) == reference(text)["input_ids"]


def test_a_raw_prompt_has_bos_once_also_when_it_spells_it_out(tmp_path: Path) -> None:
    tokenizer = load(write_model(tmp_path, adds_bos=True, chat_template=TEMPLATE_WITH_BOS))
    plain = ids(tokenizer, raw("the answer"))
    assert plain[0] == BOS_TOKEN_ID
    assert ids(tokenizer, raw(f"{BOS}the answer")) == plain
    assert ids(tokenizer, raw("")) == [BOS_TOKEN_ID]
    assert ids(tokenizer, raw(BOS)) == [BOS_TOKEN_ID]
    assert ids(tokenizer, raw(f"a{BOS}{BOS}")).count(BOS_TOKEN_ID) == 3
    assert ids(tokenizer, chat()).count(BOS_TOKEN_ID) == 1


def test_a_tokenizer_without_bos_adds_none(tmp_path: Path) -> None:
    tokenizer = load(write_model(tmp_path, bos_token=None))
    assert ids(tokenizer, raw("answer"))[0] != BOS_TOKEN_ID
    assert error(tokenizer, raw("")).code is ErrorCode.EMPTY_PROMPT


def test_token_ids_go_through_as_they_are(tokenizer: Tokenizer) -> None:
    request = Request(row_index=RowIndex(0), input_ids=(0, 0, 319, 7))
    assert ids(tokenizer, request) == [0, 0, 319, 7]
    assert error(tokenizer, Request(row_index=RowIndex(0), input_ids=())).code is (
        ErrorCode.EMPTY_PROMPT
    )
    too_large = error(tokenizer, Request(row_index=RowIndex(0), input_ids=(5, 2**31)))
    assert too_large.code is ErrorCode.BAD_PARAMS
    assert "2147483648" in too_large.message


def test_a_portion_keeps_its_order_whatever_kinds_it_holds(tokenizer: Tokenizer) -> None:
    requests = [
        raw("the answer"),
        chat(),
        Request(row_index=RowIndex(0), input_ids=(9,)),
        raw(""),
        chat({"role": "user"}),
        raw("question", is_user_turn=True),
        raw("the good"),
    ]
    together = tokenizer.encode_requests(requests, max_num_tokens=10_000)
    alone = [tokenizer.encode_requests([request], max_num_tokens=10_000)[0] for request in requests]
    for one, other in zip(together, alone, strict=True):
        assert type(one) is type(other)
        assert np.all(np.asarray(one) == np.asarray(other))
    assert [type(one).__name__ for one in together].count("RowError") == 2
    assert tokenizer.encode_requests([], max_num_tokens=10_000) == []


@pytest.mark.parametrize("template", ["{# nothing #}", "{{ messages.__class__ }}", "{{ nothing }}"])
def test_a_prompt_rendered_to_nothing_is_an_empty_prompt(template: str, tmp_path: Path) -> None:
    tokenizer = load(write_model(tmp_path), chat_template=template)
    assert error(tokenizer, chat()) == RowError(
        code=ErrorCode.EMPTY_PROMPT, message="the prompt has no tokens"
    )


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    requests = [raw("a\ud800b"), raw("the answer"), raw("\ufeffa\udc00"), raw("👍\ud83d")]
    encoded = tokenizer.encode_requests(requests, max_num_tokens=10_000)
    texts = [tokenizer.decode(one.tolist()) for one in encoded if isinstance(one, np.ndarray)]
    assert texts == ["a\ufffdb", "the answer", "\ufeffa\ufffd", "👍\ufffd"]


def test_decoding_gives_the_text_back_without_special_tokens(tokenizer: Tokenizer) -> None:
    texts = ["the answer", " leading", "trailing ", "日本 é 👍🏽", "a\n\n\tb", "", "x" * 1000]
    encoded = [ids(tokenizer, raw(text)) if text else [] for text in texts]
    with_specials = [[0, *one, 1, 2] for one in encoded]
    assert tokenizer.decode_all(with_specials) == texts
    assert [tokenizer.decode(one) for one in with_specials] == texts
    assert tokenizer.decode_all([]) == []


def test_ids_beyond_the_tokenizers_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    """A model's vocabulary is often padded: its last ids mean nothing to the tokenizer."""
    assert tokenizer.decode([*ids(tokenizer, raw("ok")), 5000]) == "ok"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"version": "1.0"}'),
        ("tokenizer.json", '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE"}}'),
        ("tokenizer_config.json", "{"),
    ],
)
def test_a_damaged_tokenizer_is_a_model_error(
    file: str, content: str | None, tmp_path: Path
) -> None:
    folder = write_model(tmp_path)
    path = folder / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ModelError, match="cannot load the tokenizer of") as raised:
        load(folder)
    assert "\n" not in raised.value.message
    assert raised.value.hint is not None


def test_a_tokenizer_with_code_of_its_own_is_not_run_but_said_how(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(ModelError) as raised:
        load(folder)
    assert raised.value.hint == "it has code of its own; --trust-remote-code runs it"
    assert not (tmp_path / "ran").exists()
