"""Text to token ids and back: chat templates, encoding, decoding.

Wraps a Hugging Face tokenizer. Knows nothing of sequences or files; a row that cannot be
rendered comes back as a `RowError`. Encoding and decoding go in batches straight to the Rust
backend, which is an order of magnitude cheaper than one call a row.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nanobatch.engine.chat_templates import require_template_syntax
from nanobatch.errors import ModelError
from nanobatch.models.source import ModelSource
from nanobatch.request import ErrorCode, Request, RowError

TokenIds = npt.NDArray[np.int32]

PORTION_CHARS = 1 << 19


class Tokenizer:
    """Renders, encodes and decodes for one model.

    Args:
        backend: A `transformers` fast tokenizer.
        chat_template: Jinja text that replaces the tokenizer's own template.
        chat_template_kwargs: Variables given to every rendering; a request's own win.
    """

    def __init__(
        self,
        backend: Any,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        self._hf_tokenizer = backend
        self._tokenizer = backend.backend_tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._chat_template = chat_template
        self._chat_template_kwargs = dict(chat_template_kwargs or {})
        self._bos_token_id: int | None = backend.bos_token_id

    @classmethod
    def load(
        cls,
        source: ModelSource,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        trust_remote_code: bool = False,
    ) -> Self:
        """Load the tokenizer that ships with a model.

        Raises:
            ModelError: The model ships no tokenizer that can be used, or a chat template that
                cannot be compiled.
            ConfigError: The given chat template cannot be compiled.
        """
        from transformers import AutoTokenizer

        is_gguf = source.kind == "gguf"
        folder = source.path.parent if is_gguf else source.path
        extra = {"gguf_file": source.path.name} if is_gguf else {}
        try:
            backend = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code, **extra
            )
        # Damaged files raise what the parser happened to stumble over, from Rust a bare Exception.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            is_code = "trust_remote_code" in str(error)
            raise ModelError(
                f"cannot load the tokenizer of {source.name}: {reason}",
                hint="it has code of its own; --trust-remote-code runs it"
                if is_code
                else "the model folder needs tokenizer.json and tokenizer_config.json",
            ) from error
        if getattr(backend, "backend_tokenizer", None) is None:
            raise ModelError(
                f"the tokenizer of {source.name} ({type(backend).__name__}) has no fast version",
                hint="convert it to tokenizer.json with transformers",
            )
        require_template_syntax(backend, chat_template=chat_template, model_name=source.name)
        return cls(backend, chat_template=chat_template, chat_template_kwargs=chat_template_kwargs)

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered."""
        template = self._chat_template
        return bool(self._hf_tokenizer.chat_template if template is None else template)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-sequence id."""
        token_id: int | None = self._hf_tokenizer.eos_token_id
        return token_id

    @property
    def bos_token_id(self) -> int | None:
        """The tokenizer's own beginning-of-sequence id."""
        return self._bos_token_id

    def render(self, request: Request) -> str | RowError:
        """Return the text that the model continues, special tokens written out where templated.

        A prompt that is a user turn becomes one when there is a chat template.
        """
        needs_template = request.messages is not None or request.system is not None
        if needs_template and not self.has_chat_template:
            part = "a system turn" if request.messages is None else "messages"
            return RowError(
                code=ErrorCode.TEMPLATE_ERROR,
                message=f"the model has no chat template for {part}; give one by --chat-template",
            )
        if not self._is_chat(request):
            assert request.prompt is not None, "token ids are not rendered"
            return request.prompt
        kwargs = {**self._chat_template_kwargs, **(request.chat_template_kwargs or {})}
        try:
            text: str = self._hf_tokenizer.apply_chat_template(
                _messages_of(request),
                tools=list(request.tools) if request.tools else None,
                chat_template=self._chat_template,
                add_generation_prompt=True,
                tokenize=False,
                **kwargs,
            )
        # A chat template is a program that runs on the row's values: it can raise anything.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            return RowError(code=ErrorCode.TEMPLATE_ERROR, message=f"chat template: {reason}")
        return text

    def encode_requests(
        self, requests: Sequence[Request], *, max_num_tokens: int | None
    ) -> list[TokenIds | RowError]:
        """Render and encode requests, in their order.

        Templated text gets no added special tokens; a raw prompt gets the tokenizer's own
        (its BOS once, also when the text spells it out).

        Args:
            requests: What to encode.
            max_num_tokens: The context. A text that must have more tokens, because it is longer
                than so many of the longest tokens, is refused without encoding it: that would
                take 250 bytes a token, and a bad row must not cost its neighbours the memory.
                None encodes every text, as prompts that are cut need: which tokens a beginning
                or an end keeps is known only once the whole is encoded, since a tokenizer may
                join characters across any place where one could cut the text.
        """
        results: list[TokenIds | RowError | None] = [None] * len(requests)
        chat: list[tuple[int, str]] = []
        raw: list[tuple[int, str]] = []
        for place, request in enumerate(requests):
            if request.input_ids is not None:
                results[place] = _int32_token_ids(request.input_ids)
                continue
            rendered = self.render(request)
            if isinstance(rendered, RowError):
                results[place] = rendered
            elif max_num_tokens and len(rendered) > max_num_tokens * self._max_token_chars:
                results[place] = _too_long(rendered, self._max_token_chars, max_num_tokens)
            else:
                (chat if self._is_chat(request) else raw).append((place, rendered))
        for group, add_special_tokens in ((chat, False), (raw, True)):
            texts = [text for _, text in group]
            encoded = self._encode(texts, add_special_tokens=add_special_tokens)
            for (place, _), token_ids in zip(group, encoded, strict=True):
                results[place] = token_ids
        return [_nonempty(result) for result in results]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def decode_all(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of token ids, special tokens left out."""
        texts: list[str] = self._tokenizer.decode_batch(
            [list(ids) for ids in token_ids], skip_special_tokens=True
        )
        return texts

    def _is_chat(self, request: Request) -> bool:
        if request.messages is not None:
            return True
        return request.is_user_turn and self.has_chat_template

    @cached_property
    def _max_token_chars(self) -> int:
        """Most characters of text that one token can stand for.

        A normalizer can shorten text before it is cut into tokens (Unicode composition makes
        one character of up to three), so its tokens count for more.
        """
        longest = max(map(len, self._tokenizer.get_vocab()))
        return longest if self._tokenizer.normalizer is None else 4 * longest

    def _encode(self, texts: list[str], *, add_special_tokens: bool) -> list[TokenIds]:
        encoded: list[TokenIds] = []
        for portion in _portions(texts):
            encoded += self._encode_portion(portion, add_special_tokens=add_special_tokens)
        return encoded

    def _encode_portion(self, texts: list[str], *, add_special_tokens: bool) -> list[TokenIds]:
        try:
            encodings = self._tokenizer.encode_batch_fast(
                texts, add_special_tokens=add_special_tokens
            )
        except TypeError:  # a lone surrogate, which is no Unicode and would cost every text
            encodings = self._tokenizer.encode_batch_fast(
                [_without_surrogates(text) for text in texts],
                add_special_tokens=add_special_tokens,
            )
        encoded = [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
        if not add_special_tokens or self._bos_token_id is None:
            return encoded
        return [_single_bos(token_ids, self._bos_token_id) for token_ids in encoded]


def _messages_of(request: Request) -> list[Mapping[str, object]]:
    if request.messages is not None:
        return list(request.messages)
    turns: list[Mapping[str, object]] = []
    if request.system is not None:
        turns.append({"role": "system", "content": request.system})
    turns.append({"role": "user", "content": request.prompt})
    return turns


def _portions(texts: list[str]) -> Iterator[list[str]]:
    """Cut texts into portions of about PORTION_CHARS; the backend's encodings are large."""
    portion: list[str] = []
    num_chars = 0
    for text in texts:
        portion.append(text)
        num_chars += len(text)
        if num_chars >= PORTION_CHARS:
            yield portion
            portion, num_chars = [], 0
    if portion:
        yield portion


def _too_long(text: str, max_token_chars: int, max_num_tokens: int) -> RowError:
    num_tokens = -(-len(text) // max_token_chars)
    return RowError(
        code=ErrorCode.PROMPT_TOO_LONG,
        message=(
            f"prompt has at least {num_tokens:,} tokens; the model's context is {max_num_tokens:,}"
        ),
    )


def _int32_token_ids(token_ids: Sequence[int]) -> TokenIds | RowError:
    try:
        if isinstance(token_ids, np.ndarray):
            return token_ids.astype(np.int32, copy=False)
        # Takes two thirds of the time of numpy's own way from Python's integers.
        packed = struct.pack(f"{len(token_ids)}i", *token_ids)
        return np.frombuffer(packed, dtype=np.int32)
    except (OverflowError, struct.error):
        wrong = next(token_id for token_id in token_ids if not -(2**31) <= token_id < 2**31)
        return RowError(
            code=ErrorCode.BAD_PARAMS,
            message=f"input_ids holds token id {wrong}; no vocabulary reaches 2,147,483,648",
        )


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _single_bos(token_ids: TokenIds, bos_token_id: int) -> TokenIds:
    doubled = len(token_ids) > 1 and token_ids[0] == bos_token_id == token_ids[1]
    return token_ids[1:] if doubled else token_ids


def _nonempty(result: TokenIds | RowError | None) -> TokenIds | RowError:
    assert result is not None, "every request was encoded or refused"
    if isinstance(result, RowError) or len(result):
        return result
    return RowError(code=ErrorCode.EMPTY_PROMPT, message="the prompt has no tokens")
