"""Writes tokenizers with chat templates, and asks `Tokenizer` for single requests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import processors

from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.models.source import resolve_model
from nanobatch.request import Request, RowError, RowIndex
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
    """Load a written tokenizer."""
    return Tokenizer.load(resolve_model(str(folder)), **options)


def chat(*messages: Mapping[str, object], **fields: Any) -> Request:
    """Return a request of messages, one user turn if none are given."""
    return Request(row_index=RowIndex(0), messages=messages or (TURN,), **fields)


def raw(prompt: str, **fields: Any) -> Request:
    """Return a request of text."""
    return Request(row_index=RowIndex(0), prompt=prompt, **fields)


def ids(tokenizer: Tokenizer, request: Request) -> list[int]:
    """Return the ids of a request that must be good."""
    encoded = tokenizer.encode_requests([request], max_num_tokens=10_000)[0]
    assert isinstance(encoded, np.ndarray), encoded
    assert encoded.dtype == np.int32
    return [int(token_id) for token_id in encoded]


def error(tokenizer: Tokenizer, request: Request) -> RowError:
    """Return the error of a request that must be bad."""
    encoded = tokenizer.encode_requests([request], max_num_tokens=10_000)[0]
    assert isinstance(encoded, RowError)
    return encoded
