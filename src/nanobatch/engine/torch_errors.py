"""What torch raises, as the error that a job reports."""

from collections.abc import Iterator
from contextlib import contextmanager

from nanobatch.errors import EngineError

LAUNCH_HINT = (
    "finished rows are kept; run the same line again, "
    "with a lower --max-num-batched-tokens if memory ran out"
)
LOAD_HINT = "if memory ran out, choose a smaller model, --dtype or --kv-cache-memory"
DEVICE_HINT = "finished rows are kept; run the same line again"


@contextmanager
def torch_errors(what: str, *, hint: str) -> Iterator[None]:
    """Turn what torch raises (running out of memory and CUDA errors too) into an EngineError.

    Args:
        what: What is being done; begins the message.
        hint: What to do about it.

    Raises:
        EngineError: The block raised a RuntimeError.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(f"{what} failed: {reason}", hint=hint) from error
