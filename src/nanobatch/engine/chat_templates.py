"""Whether chat templates can be compiled, asked once before any row is rendered.

Knows a Hugging Face tokenizer's templates, which are Jinja with transformers' own extensions, so
they are compiled by transformers. What a template does with a row is `tokenizer`'s part.
"""

from typing import Any

from nanobatch.errors import ConfigError, ModelError

_PROBE = [{"role": "user", "content": "hello"}]


def require_template_syntax(backend: Any, *, chat_template: str | None, model_name: str) -> None:
    """Refuse a chat template that no row could be rendered with.

    Args:
        backend: A `transformers` tokenizer.
        chat_template: Jinja text that replaces the tokenizer's own, or None.
        model_name: What messages call the model.

    Raises:
        ConfigError: The given template has a syntax error.
        ModelError: One of the model's own templates has.
    """
    if chat_template is not None:
        fault = _syntax_error(backend, chat_template)
        if fault is not None:
            raise ConfigError(f"the chat template {fault}", hint="mend it, or leave it out")
        return
    own = backend.chat_template or {}
    for template in own.values() if isinstance(own, dict) else [own]:
        fault = _syntax_error(backend, template)
        if fault is not None:
            raise ModelError(
                f"the chat template of {model_name} {fault}",
                hint="give another one by --chat-template",
            )


def _syntax_error(backend: Any, template: str) -> str | None:
    """Return what is wrong with a template, or None if it can be compiled."""
    from jinja2 import TemplateSyntaxError

    if not template:  # no template at all, for which transformers would take the tokenizer's own
        return None
    try:
        backend.apply_chat_template(
            _PROBE, chat_template=template, add_generation_prompt=True, tokenize=False
        )
    except TemplateSyntaxError as error:
        return f"has a syntax error in line {error.lineno}: {error.message}"
    # What it makes of this conversation says nothing about the rows': many want their own turns.
    except Exception:
        return None
    return None
