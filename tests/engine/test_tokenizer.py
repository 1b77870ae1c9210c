"""Text to ids and back, compared with transformers' own answers; hostile templates and texts."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import processors
from transformers import AutoTokenizer

from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import ModelError
from nanobatch.models.source import resolve_model
from nanobatch.request import ErrorCode, Request, RowError, RowIndex
from tests.tiny_tokenizer import BOS, CHAT_TEMPLATE, write_tokenizer

BOS_TOKEN_ID = 0
TURN = {"role": "user", "content": "what is the capital"}
TEMPLATE_WITH_BOS = "{{ bos_token }}" + CHAT_TEMPLATE


def write_model(
    folder: Path,
    *,
    chat_template: object = CHAT_TEMPLATE,
    adds_bos: bool = False,
    **settings: object,
) -> Path:
    """Write a tokenizer, one that puts BOS before every raw text if asked to."""
    write_tokenizer(folder)
    if adds_bos:
        path = str(folder / "tokenizer.json")
        backend = BackendTokenizer.from_file(path)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, BOS_TOKEN_ID)]
        )
        backend.save(path)
    config = folder / "tokenizer_config.json"
    values = {**json.loads(config.read_text()), "chat_template": chat_template, **settings}
    config.write_text(
        json.dumps({name: value for name, value in values.items() if value is not None})
    )
    return folder


def load(folder: Path, **options: Any) -> Tokenizer:
    return Tokenizer.load(resolve_model(str(folder)), **options)


def chat(*messages: Mapping[str, object], **fields: Any) -> Request:
    return Request(row_index=RowIndex(0), messages=messages or (TURN,), **fields)


def raw(prompt: str, **fields: Any) -> Request:
    return Request(row_index=RowIndex(0), prompt=prompt, **fields)


def ids(tokenizer: Tokenizer, request: Request) -> list[int]:
    encoded = tokenizer.encode_requests([request])[0]
    assert isinstance(encoded, np.ndarray), encoded
    assert encoded.dtype == np.int32
    return [int(token_id) for token_id in encoded]


def error(tokenizer: Tokenizer, request: Request) -> RowError:
    encoded = tokenizer.encode_requests([request])[0]
    assert isinstance(encoded, RowError)
    return encoded


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
    together = tokenizer.encode_requests(requests)
    alone = [tokenizer.encode_requests([request])[0] for request in requests]
    for one, other in zip(together, alone, strict=True):
        assert type(one) is type(other)
        assert np.all(np.asarray(one) == np.asarray(other))
    assert [type(one).__name__ for one in together].count("RowError") == 2
    assert tokenizer.encode_requests([]) == []


def test_a_user_turn_is_rendered_with_its_system_turn(tokenizer: Tokenizer) -> None:
    request = raw("hello", is_user_turn=True, system="be brief")
    messages = (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    )
    assert ids(tokenizer, request) == ids(tokenizer, chat(*messages))
    assert tokenizer.render(request) == tokenizer.render(chat(*messages))


def test_without_a_chat_template_messages_fail_and_prompts_stay_raw(tmp_path: Path) -> None:
    tokenizer = load(write_model(tmp_path, chat_template=None))
    assert not tokenizer.has_chat_template
    assert error(tokenizer, chat()) == RowError(
        code=ErrorCode.TEMPLATE_ERROR,
        message="the model has no chat template for messages; give one by --chat-template",
    )
    assert ids(tokenizer, raw("hello", is_user_turn=True)) == ids(tokenizer, raw("hello"))


def test_a_system_turn_is_never_dropped_silently(tmp_path: Path) -> None:
    tokenizer = load(write_model(tmp_path, chat_template=None))
    assert error(tokenizer, raw("hello", is_user_turn=True, system="be brief")) == RowError(
        code=ErrorCode.TEMPLATE_ERROR,
        message="the model has no chat template for a system turn; give one by --chat-template",
    )


@pytest.mark.parametrize("own_template", [CHAT_TEMPLATE, None])
def test_a_given_chat_template_replaces_the_models_own(
    own_template: str | None, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, chat_template=own_template)
    tokenizer = load(folder, chat_template="Q: {{ messages[0].content }} A:")
    assert tokenizer.render(chat()) == "Q: what is the capital A:"


def test_an_empty_chat_template_is_not_the_models_own(tmp_path: Path) -> None:
    assert not load(write_model(tmp_path), chat_template="").has_chat_template


def test_a_rows_template_variables_win_over_the_runs(tmp_path: Path) -> None:
    template = "{{ enable_thinking }} {{ style | default('none') }}"
    tokenizer = load(
        write_model(tmp_path, chat_template=template),
        chat_template_kwargs={"enable_thinking": True, "style": "dry"},
    )
    assert tokenizer.render(chat()) == "True dry"
    row = chat(chat_template_kwargs={"enable_thinking": False})
    assert tokenizer.render(row) == "False dry"
    assert tokenizer.render(chat()) == "True dry"


def test_tools_reach_the_template(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools[0].function.name }}{% else %}none{% endif %}"
    tokenizer = load(write_model(tmp_path, chat_template=template))
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {}}}
    assert tokenizer.render(chat(tools=(tool,))) == "lookup"
    assert tokenizer.render(chat()) == "none"


def test_of_several_named_templates_transformers_chooses(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "plain {{ messages[0].content }}"},
        {"name": "tool_use", "template": "tools {{ messages[0].content }}"},
    ]
    tokenizer = load(write_model(tmp_path, chat_template=templates))
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {}}}
    assert tokenizer.render(chat()) == "plain what is the capital"
    assert tokenizer.render(chat(tools=(tool,))) == "tools what is the capital"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "'__class__'"),
        ("{{ messages.append.__globals__ }}{{ messages.append(1) }}", "unsafe|not safely"),
        ("{{ cycler.__init__.__globals__ }}", "'__init__'"),
        ("{% for", "unexpected"),
        ("{{ raise_exception('roles must\nalternate') }}", "roles must$"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ messages[7].content }}", "undefined|no element 7"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{% include 'secret' %}", "no loader"),
    ],
)
def test_a_template_that_fails_is_the_rows_error_in_one_line(
    template: str, message: str, tmp_path: Path
) -> None:
    tokenizer = load(write_model(tmp_path), chat_template=template)
    fault = error(tokenizer, chat())
    assert fault.code is ErrorCode.TEMPLATE_ERROR
    assert fault.message.startswith("chat template: ")
    assert "\n" not in fault.message
    assert re.search(message, fault.message), fault.message


@pytest.mark.parametrize("template", ["{# nothing #}", "{{ messages.__class__ }}", "{{ nothing }}"])
def test_a_prompt_rendered_to_nothing_is_an_empty_prompt(template: str, tmp_path: Path) -> None:
    tokenizer = load(write_model(tmp_path), chat_template=template)
    assert error(tokenizer, chat()) == RowError(
        code=ErrorCode.EMPTY_PROMPT, message="the prompt has no tokens"
    )


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "conversation", "tools"])
def test_template_variables_cannot_change_how_a_row_is_rendered(
    name: str, tokenizer: Tokenizer
) -> None:
    fault = error(tokenizer, chat(chat_template_kwargs={name: True}))
    assert fault.code is ErrorCode.TEMPLATE_ERROR
    assert name in fault.message


@pytest.mark.parametrize(
    "kwargs",
    [
        {"padding": "max_length", "max_length": 99},
        {"truncation": True, "max_length": 2},
        {"return_tensors": "pt"},
        {"return_dict": True},
        {"tokenizer_kwargs": {"truncation": True}},
    ],
)
def test_template_variables_do_not_touch_the_encoding(
    kwargs: dict[str, object], tokenizer: Tokenizer
) -> None:
    assert ids(tokenizer, chat(chat_template_kwargs=kwargs)) == ids(tokenizer, chat())


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    requests = [raw("a\ud800b"), raw("the answer"), raw("\ufeffa\udc00"), raw("👍\ud83d")]
    encoded = tokenizer.encode_requests(requests)
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
