"""Fixtures of the job tests."""

from pathlib import Path

import pytest

from tests.null_model import write_null_model


@pytest.fixture(scope="session")
def null_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("null-model"))
