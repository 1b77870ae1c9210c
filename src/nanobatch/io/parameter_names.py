"""Which names mean something to a request, and which are refused because they would.

Knows names and harmless values, not how values are read. Sources: OpenAI's API reference for
chat completions and completions; vLLM's protocol and transformers' GenerationConfig for the rest.
"""

from collections.abc import Mapping

PROMPT_NAMES = frozenset({"prompt", "messages", "input_ids"})
"""The three ways in which a row says what to answer."""

BATCH_LINE_NAMES = frozenset({"custom_id", "method", "url", "body"})
"""Top-level keys of an OpenAI batch line."""

CHAT_NAMES = frozenset({"tools", "tool_choice", "chat_template_kwargs", "priority"})
"""What a request takes beside its prompt and its sampling parameters."""

TEMPLATE_ARGUMENT_NAMES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What a rendering of a chat template takes for itself, so that no template variable of a row can
have its name: it would change how the row is rendered, or nothing at all."""

HARMLESS_NAMES = frozenset(
    {
        "metadata",
        "model",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
"""Body keys that change nothing about the text, so that nobody needs a warning."""

LATER_NAMES: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "continue_final_message": (False,),
    "do_sample": (True,),
    "echo": (False,),
    "extra_body": ({},),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprobs": (False,),
    "max_new_tokens": (),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "prompt_logprobs": (0, False),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
}
"""OpenAI's, vLLM's and transformers' parameters that would change the result and that we lack, with
the values of each that change nothing. They are parameters in flat rows too, never columns."""

LATER_BODY_NAMES: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "ebnf": (),
    "grammar": ("",),
    "json_schema": (),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "regex": (),
    "return_token_ids": (False,),
    "thinking_token_budget": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""The same for names that are parameters in a body only: as data columns are called so too, they
are columns in a flat row."""

_GUIDED_PREFIX = "guided_"

_HINTS: Mapping[str, str] = {
    "logprobs": "leave it out and give --logprobs to the run",
    "top_logprobs": "leave it out; --logprobs gives those of the chosen tokens",
    "do_sample": "temperature 0 is greedy",
    "extra_body": "its members belong beside it",
    "max_new_tokens": "its OpenAI name is max_tokens",
    "best_of": "only 1 is",
}


def is_later_name(name: str, *, in_body: bool) -> bool:
    """Return whether a name is a parameter that we lack and that could change the result."""
    if name in LATER_NAMES or name.startswith(_GUIDED_PREFIX):
        return True
    return in_body and name in LATER_BODY_NAMES


def is_neutral(name: str, value: object) -> bool:
    """Return whether a later parameter's value changes nothing.

    Integral floats are integers (pandas' `1.0`), booleans are no numbers.
    """
    harmless = LATER_NAMES.get(name) or LATER_BODY_NAMES.get(name) or ()
    is_switch = isinstance(value, bool)
    return any(value == known and isinstance(known, bool) is is_switch for known in harmless)


def unsupported_message(name: str, value_shown: str) -> str:
    """Return the message for a parameter that we lack, with what to do where there is something."""
    hint = f"; {_HINTS[name]}" if name in _HINTS else ""
    return f"{name} is {value_shown}, which is not supported{hint}"


def flat_consumed_names() -> frozenset[str]:
    """Return the names that a flat row cannot use for columns, sampling parameters not counted."""
    return PROMPT_NAMES | CHAT_NAMES | LATER_NAMES.keys()
