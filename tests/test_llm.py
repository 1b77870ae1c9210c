"""The Python API: prompts in, outputs in order, refusals in plain words."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nanobatch
from nanobatch import LLM, SamplingParams
from nanobatch.errors import ConfigError, EngineError, ModelError, NanobatchError
from nanobatch.llm import Prompt
from nanobatch.request import ErrorCode, FinishReason
from tests.checkpoints import write_checkpoint
from tests.tiny_tokenizer import CHAT_TEMPLATE

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
USER = {"role": "user", "content": "what is the capital"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint), device="cpu", dtype="float64", num_kv_blocks=128) as opened:
        yield opened


def test_the_public_surface() -> None:
    assert nanobatch.__all__ == ["LLM", "SamplingParams", "__version__"]
    assert all(hasattr(nanobatch, name) for name in nanobatch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        nanobatch.Engine  # noqa: B018


def test_outputs_come_in_the_order_of_their_prompts(llm: LLM) -> None:
    prompts = [f"the answer of {number} is" for number in range(20)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=1 + (7 * number) % 12, ignore_eos=True)
        for number in range(20)
    ]
    together = llm.generate(prompts, params)
    assert [output.row_index for output in together] == list(range(20))
    assert [output.num_completion_tokens for output in together] == [
        one.max_tokens for one in params
    ]
    alone = [llm.generate(prompt, one)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert [output.token_ids for output in alone] == [output.token_ids for output in together]
    assert len({output.token_ids for output in together}) > 10


def test_text_and_its_token_ids_are_one_prompt_each(llm: LLM) -> None:
    from_text = llm.generate("the capital", GREEDY)
    assert len(from_text) == 1
    listed = llm.generate(["the capital", "a question"], GREEDY)
    assert listed[0].token_ids == from_text[0].token_ids
    prompt_ids = [36, 37, 38]
    from_ids = llm.generate(prompt_ids, GREEDY)
    assert [output.num_prompt_tokens for output in from_ids] == [3]
    of_ids = llm.generate([prompt_ids, [36, 37]], GREEDY)
    assert [output.num_prompt_tokens for output in of_ids] == [3, 2]
    assert of_ids[0].token_ids == from_ids[0].token_ids
    prompts: list[Prompt] = ["the capital", prompt_ids]
    mixed = llm.generate(prompts, GREEDY)
    assert [output.token_ids for output in mixed] == [
        from_text[0].token_ids,
        from_ids[0].token_ids,
    ]


def test_arrays_and_tuples_are_token_ids_too(llm: LLM) -> None:
    expected = llm.generate([[36, 37, 38]], GREEDY)[0].token_ids
    flat, nested = (36, 37, 38), ((36, 37, 38),)
    kinds: list[Any] = [flat, nested, np.array(flat), np.array(nested)]
    for prompts in kinds:
        outputs = llm.generate(prompts, GREEDY)
        assert [output.token_ids for output in outputs] == [expected]
    with pytest.raises(TypeError, match="integer"):
        llm.generate([[1.5, 2.0]], GREEDY)  # type: ignore[arg-type]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    assert llm.chat([], GREEDY) == []


def test_chat_answers_one_conversation_or_a_list_of_them(llm: LLM) -> None:
    one = llm.chat([USER], GREEDY)
    several = llm.chat([[USER], [{"role": "system", "content": "be brief"}, USER]], GREEDY)
    assert len(one) == 1
    assert [output.token_ids for output in several[:1]] == [one[0].token_ids]
    assert several[1].num_prompt_tokens > several[0].num_prompt_tokens
    rendered = "<|turn|>user\nwhat is the capital<|eos|><|turn|>assistant\n"
    assert llm.generate(rendered, GREEDY)[0].token_ids == one[0].token_ids


def test_a_conversation_that_cannot_be_rendered_is_an_error_output(llm: LLM) -> None:
    outputs = llm.chat([[USER], [{"role": "user"}], []], GREEDY)
    errors = [None if output.error is None else output.error.code for output in outputs]
    assert errors == [None, ErrorCode.TEMPLATE_ERROR, ErrorCode.TEMPLATE_ERROR]


def test_a_prompt_that_cannot_run_is_an_error_output_and_raises_nothing(llm: LLM) -> None:
    prompts: list[Prompt] = ["the capital", [36] * 600, [999_999], [], [36] * 511]
    outputs = llm.generate(prompts, GREEDY)
    codes = [None if output.error is None else output.error.code for output in outputs]
    assert codes == [
        None,
        ErrorCode.PROMPT_TOO_LONG,
        ErrorCode.BAD_PARAMS,
        ErrorCode.EMPTY_PROMPT,
        None,
    ]
    assert outputs[1].error is not None
    assert outputs[1].error.message == "prompt has 600 tokens; the model's context is 512"
    assert outputs[4].num_completion_tokens == 1
    assert outputs[4].finish_reason is FinishReason.LENGTH


def test_defaults_run_to_the_end_of_sequence_or_the_room_left(llm: LLM) -> None:
    output = llm.generate([[36] * 500])[0]
    assert 1 <= output.num_completion_tokens <= 12


def test_as_many_parameters_as_prompts_or_one(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="there are 1 sampling parameters for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(ConfigError, match="there are 2 sampling parameters for 1 prompts"):
        llm.chat([USER], [GREEDY, GREEDY])


def test_seeds_repeat_and_rows_differ(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    first, again = (llm.generate(["the"] * 3, params) for _ in range(2))
    assert [output.token_ids for output in first] == [output.token_ids for output in again]
    assert len({output.token_ids for output in first}) == 3
    seeded = SamplingParams(max_tokens=12, ignore_eos=True, seed=5)
    assert len({output.token_ids for output in llm.generate(["the"] * 3, seeded)}) == 1


def test_samples_of_a_prompt_stand_together_in_order(llm: LLM) -> None:
    sampled = SamplingParams(max_tokens=12, ignore_eos=True, seed=5)
    three = SamplingParams(max_tokens=12, ignore_eos=True, seed=5, n=3)
    prompts: list[Prompt] = ["the capital", [36] * 600, "a question"]
    outputs = llm.generate(prompts, [three, three, sampled])
    places = [(output.row_index, output.sample_index) for output in outputs]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    assert [output.error is None for output in outputs] == [True, True, True, False, True]
    assert len({output.token_ids for output in outputs[:3]}) == 3
    one = llm.generate(["the capital", "a question"], sampled)
    assert [output.token_ids for output in one] == [outputs[0].token_ids, outputs[4].token_ids]
    chats = llm.chat([USER], three)
    assert [output.sample_index for output in chats] == [0, 1, 2]


def test_an_interrupted_call_leaves_the_next_one_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"the answer of {number} is" for number in range(8)]
    expected = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    complete_step, num_steps = llm._engine.step, 0

    def interrupted_step() -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            raise KeyboardInterrupt
        return complete_step()

    monkeypatch.setattr(llm._engine, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, GREEDY)
    monkeypatch.undo()
    assert [output.token_ids for output in llm.generate(prompts, GREEDY)] == expected


def test_unknown_options_are_refused_with_the_closest_match(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="no option 'max_num_seq'") as raised:
        LLM(str(checkpoint), max_num_seq=3)
    assert raised.value.hint == "did you mean max_num_seqs?"
    with pytest.raises(ConfigError) as raised:
        LLM(str(checkpoint), tensor_parallel_size=8)
    assert raised.value.hint is not None
    with pytest.raises(ConfigError, match="dtype is 'int3'"):
        LLM(str(checkpoint), dtype="int3")
    with pytest.raises(ConfigError, match="max_num_seqs is 0; it must be at least 1"):
        LLM(str(checkpoint), max_num_seqs=0)
    with pytest.raises(ConfigError, match="the model's context is 512"):
        LLM(checkpoint, max_model_len=513)


def test_a_missing_model_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        LLM(tmp_path / "nowhere")


def test_two_engines_live_in_one_process_and_close_one_by_one(llm: LLM, checkpoint: Path) -> None:
    expected = llm.generate("the capital", GREEDY)[0].token_ids
    options = {"device": "cpu", "dtype": "float64", "num_kv_blocks": 32}
    second = LLM(checkpoint, chat_template="{{ messages[0].content }}", **options)
    assert second.generate("the capital", GREEDY)[0].token_ids == expected
    assert second.chat([USER], GREEDY)[0].num_prompt_tokens < (
        llm.chat([USER], GREEDY)[0].num_prompt_tokens
    )
    second.close()
    second.close()
    with pytest.raises(EngineError, match="closed"):
        second.generate("the capital", GREEDY)
    assert llm.generate("the capital", GREEDY)[0].token_ids == expected
    with LLM(checkpoint, **options) as third:
        assert third.generate("the capital", GREEDY)[0].token_ids == expected


def test_the_block_closes_the_engine_also_after_an_error(checkpoint: Path) -> None:
    with pytest.raises(ZeroDivisionError), LLM(checkpoint, num_kv_blocks=32) as opened:
        raise ZeroDivisionError
    with pytest.raises(NanobatchError):
        opened.generate("the", GREEDY)


def test_run_template_variables_reach_every_rendering(checkpoint: Path) -> None:
    options = {"device": "cpu", "num_kv_blocks": 32, "chat_template": "{{ tone }}" + CHAT_TEMPLATE}
    with (
        LLM(checkpoint, chat_template_kwargs={"tone": "xxxxx"}, **options) as toned,
        LLM(checkpoint, **options) as plain,
    ):
        lengths = [one.chat([USER], GREEDY)[0].num_prompt_tokens for one in (toned, plain)]
    assert lengths[0] - lengths[1] == 5


def test_names_that_rendering_takes_for_itself_are_no_template_variables(
    checkpoint: Path,
) -> None:
    with pytest.raises(ConfigError, match="chat_template_kwargs has 'tokenize'"):
        LLM(checkpoint, chat_template_kwargs={"tone": "dry", "tokenize": False})
    with pytest.raises(ConfigError) as raised:
        LLM(checkpoint, chat_template_kwargs={"chat_template": "x"})
    assert raised.value.hint == "use the option chat_template for another template"
    with pytest.raises(ConfigError, match="syntax error in line 1"):
        LLM(checkpoint, chat_template="{% for")


def test_a_script_prints_what_it_prints_itself(checkpoint: Path) -> None:
    """Neither we nor a library speaks up, not even of a prompt that is too long."""
    script = (
        "import sys\n"
        "from nanobatch import LLM, SamplingParams\n"
        "with LLM(sys.argv[1], device='cpu', num_kv_blocks=32) as llm:\n"
        "    params = SamplingParams(max_tokens=2)\n"
        "    outputs = llm.generate(['the capital', 'the ' * 2000, ''], params)\n"
        "    outputs += llm.chat([{'role': 'user', 'content': 'the capital'}], params)\n"
        "print([output.error is None for output in outputs])\n"
    )
    command = [sys.executable, "-c", script, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[True, False, False, True]\n", "")
