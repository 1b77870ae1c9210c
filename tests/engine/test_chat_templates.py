"""Chat templates: which one applies, its variables and tools, and what hostile ones can do."""

import re
from pathlib import Path

import pytest

from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import ConfigError, ModelError
from nanobatch.request import ErrorCode, RowError
from tests.engine.written_tokenizers import (
    chat,
    error,
    ids,
    load,
    raw,
    write_model,
)
from tests.tiny_tokenizer import CHAT_TEMPLATE


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


BROKEN = "{{ messages[0].content }}\n{% for"


@pytest.mark.parametrize("template", [BROKEN, "\n{{ messages | nothing }}", "x\n{% unknown %}"])
def test_a_template_that_cannot_be_compiled_is_refused_once_with_its_line(
    template: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "broken", chat_template=template)
    with pytest.raises(ModelError, match=r"the chat template of .* has a syntax error in line 2"):
        load(folder)
    assert load(folder, chat_template=CHAT_TEMPLATE).has_chat_template
    assert not load(folder, chat_template="").has_chat_template
    sound = write_model(tmp_path / "sound")
    with pytest.raises(
        ConfigError, match="the chat template has a syntax error in line 2"
    ) as raised:
        load(sound, chat_template=template)
    assert raised.value.hint is not None


def test_each_of_several_named_templates_must_compile(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": CHAT_TEMPLATE},
        {"name": "tool_use", "template": BROKEN},
    ]
    with pytest.raises(ModelError, match="line 2"):
        load(write_model(tmp_path, chat_template=templates))


def test_transformers_own_tags_compile_and_a_template_may_refuse_the_first_probe(
    tmp_path: Path,
) -> None:
    template = "{% generation %}a{% endgeneration %}{% for m in messages %}{% break %}{% endfor %}"
    assert load(write_model(tmp_path), chat_template=template).render(chat()) == "a"
    picky = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}ok"
    tokenizer = load(write_model(tmp_path), chat_template=picky)
    assert tokenizer.render(chat({"role": "system", "content": "x"})) == "ok"


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
