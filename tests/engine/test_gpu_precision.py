"""What only a GPU can show: bfloat16 against transformers, and graphs against eager steps."""

from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.engine.precision import SIZES, answers, errors_of_bfloat16

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["llama3", "qwen3", "mistral"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, **SIZES)


def test_bfloat16_errs_no_more_than_transformers(checkpoint: Path) -> None:
    error, their_error = errors_of_bfloat16(checkpoint, "cuda")
    print(f"\nroot mean square error of log-probabilities: {error:.5f}, theirs {their_error:.5f}")
    assert 0 < error <= 1.5 * their_error


@pytest.mark.parametrize("num_decode_steps", [1, 3])
def test_graphs_give_what_eager_steps_give(checkpoint: Path, num_decode_steps: int) -> None:
    graphs = answers(checkpoint, "cuda", num_decode_steps=num_decode_steps)
    eager = answers(checkpoint, "cuda", num_decode_steps=num_decode_steps, enforce_eager=True)
    assert {row: (output.token_ids, output.logprobs) for row, output in graphs.items()} == {
        row: (output.token_ids, output.logprobs) for row, output in eager.items()
    }
