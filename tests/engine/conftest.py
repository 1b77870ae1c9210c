"""Fixtures of the engine tests."""

from pathlib import Path

import pytest

from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.models.source import resolve_model
from tests.null_model import write_null_model


@pytest.fixture(scope="session")
def null_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("null-model"), context=512)


@pytest.fixture(scope="session")
def tokenizer(null_model: Path) -> Tokenizer:
    return Tokenizer.load(resolve_model(str(null_model)))
