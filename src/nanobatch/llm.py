"""The Python API: `LLM(model).generate(prompts, sampling_params)`, over the same engine.

from nanobatch import LLM, SamplingParams

with LLM("Qwen/Qwen3-0.6B") as llm:
    for output in llm.generate(["Hello, my name is"], SamplingParams(max_tokens=16)):
        print(output.text)
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from numbers import Integral
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from nanobatch.config import EngineConfig
from nanobatch.engine.factory import build_engine
from nanobatch.engine.run_requests import run_requests
from nanobatch.errors import ConfigError
from nanobatch.io.parameter_names import TEMPLATE_ARGUMENT_NAMES
from nanobatch.request import Request, RequestOutput, RowIndex, SamplingParams

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, object]]


class LLM:
    """A loaded model that answers lists of prompts.

    Args:
        model: Folder, Hugging Face id or `.gguf` file; None takes the embedded demo model.
        **options: Fields of `EngineConfig`.

    Raises:
        ConfigError: An option does not exist or is out of bounds, or a chat template cannot be
            compiled.
        ModelError: The model cannot be loaded.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        _require_known_options(options)
        _require_template_variables(options.get("chat_template_kwargs", {}))
        name = None if model is None else str(model)
        self._engine = build_engine(EngineConfig(model=name, **options))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue raw texts or lists of token ids.

        Args:
            prompts: One prompt, or a list of them.
            sampling_params: One for all, one for each, or None for the defaults.

        Returns:
            The outputs of the prompts, in order: one of each, or n where its parameters ask for
            n samples, with `sample_index` from 0. A prompt that cannot run has a single output
            with `error` set, whatever its n. `row_index` is the prompt's place.

        Raises:
            ConfigError: There are not as many sampling parameters as prompts.
        """
        inputs = [
            {"prompt": prompt} if isinstance(prompt, str) else {"input_ids": _token_ids(prompt)}
            for prompt in _list_of_prompts(prompts)
        ]
        return self._run(inputs, sampling_params)

    def chat(
        self,
        conversations: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template.

        Args:
            conversations: One list of role/content messages, or a list of such lists.
            sampling_params: One for all, one for each, or None for the defaults.

        Returns:
            The outputs of the conversations, in order, as those of `generate`.

        Raises:
            ConfigError: There are not as many sampling parameters as conversations.
        """
        inputs = [
            {"messages": tuple(messages)} for messages in _list_of_conversations(conversations)
        ]
        return self._run(inputs, sampling_params)

    def close(self) -> None:
        """Release the device. Safe to call twice."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        inputs: list[dict[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[RequestOutput]:
        params = _params_for_each(sampling_params, len(inputs))
        requests = [
            Request(row_index=RowIndex(place), params=each, **prompt)
            for place, (prompt, each) in enumerate(zip(inputs, params, strict=True))
        ]
        try:
            samples = {
                each[0].row_index: each
                for finished in run_requests(self._engine, requests)
                for each in finished
            }
        finally:
            # After Ctrl-C in a notebook the next call must find an engine without old requests.
            self._engine.abort(request.row_index for request in requests)
        return [output for request in requests for output in samples[request.row_index]]


def _list_of_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return prompts as a list; a string and a list of token ids are one prompt each."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts)
    if listed and isinstance(listed[0], Integral):
        return [cast(Sequence[int], listed)]
    return cast(list[Prompt], listed)


def _token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """Return token ids, which may be numpy's integers, as Python's; floats raise TypeError."""
    return tuple(index(token_id) for token_id in prompt)


def _list_of_conversations(conversations: Messages | Sequence[Messages]) -> list[Messages]:
    if conversations and isinstance(conversations[0], Mapping):
        return [cast(Messages, conversations)]
    return list(cast(Sequence[Messages], conversations))


def _params_for_each(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * num_prompts
    if len(sampling_params) != num_prompts:
        raise ConfigError(
            f"there are {len(sampling_params)} sampling parameters for {num_prompts} prompts",
            hint="give one for all, or one for each",
        )
    return sampling_params


def _require_known_options(options: Mapping[str, object]) -> None:
    known = [field.name for field in fields(EngineConfig)]
    for name in options:
        if name not in known:
            closest = get_close_matches(name, known, n=1)
            hint = f"did you mean {closest[0]}?" if closest else f"known are {', '.join(known)}"
            raise ConfigError(f"LLM has no option {name!r}", hint=hint)


def _require_template_variables(variables: Mapping[str, object]) -> None:
    for name in variables:
        if name in TEMPLATE_ARGUMENT_NAMES:
            raise ConfigError(
                f"chat_template_kwargs has {name!r}, which no template variable can be",
                hint="use the option chat_template for another template"
                if name == "chat_template"
                else "leave it out",
            )
