"""What torch raises, as the error that a job reports."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nanobatch.errors import EngineError

LAUNCH_HINT = (
    "finished rows are kept; run the same line again, "
    "with a lower --max-num-batched-tokens if memory ran out"
)
LOAD_HINT = "if memory ran out, choose a smaller model, --dtype or --kv-cache-memory"
DEVICE_HINT = "finished rows are kept; run the same line again"


@contextmanager
def torch_errors(what: str, *, hint: str) -> Iterator[None]:
    """Turn what torch, CUDA and Triton raise (running out of memory too) into an EngineError.

    Args:
        what: What is being done; begins the message.
        hint: What to do about it.

    Raises:
        EngineError: The block failed so.
    """
    try:
        yield
    except Exception as error:
        if not _is_device_error(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(f"{what} failed: {reason}", hint=hint) from error


def release_cached_memory() -> None:
    """Give back what torch keeps of a GPU's memory.

    After a CUDA error every call fails, this one too. It says nothing then: engines are closed
    while the error that ended the run is on its way to the user.
    """
    import torch

    with suppress(RuntimeError):
        torch.cuda.empty_cache()


def _is_device_error(error: Exception) -> bool:
    """Say whether torch or CUDA failed (RuntimeError), or Triton, whose errors are its own."""
    return isinstance(error, RuntimeError) or type(error).__module__.startswith("triton.")
