"""Tokens of launched steps on their way from the device to the host.

Knows tensors and events, not what computed them. Asking for the result waits for the device.
"""

import torch

from nanobatch.engine.step_batch import SampledTokens
from nanobatch.engine.torch_errors import DEVICE_HINT, torch_errors


class PendingResults:
    """Results of one batch: the copy to the host is queued when this is made.

    Args:
        token_ids: [num_steps, >= num_rows] int32 on the device; `no_token` where there is none.
        logprobs: Likewise in float32, or None.
        num_rows: Rows that are wanted.
        no_token: Stands in `token_ids` for NaN or +inf logits.
        started: Recorded before the batch's work; None where nobody wants its time.
        num_saved_kv_tokens: Keys that rows attended to and that were read for other rows.
    """

    def __init__(
        self,
        token_ids: torch.Tensor,
        logprobs: torch.Tensor | None,
        *,
        num_rows: int,
        no_token: int,
        started: torch.cuda.Event | None = None,
        num_saved_kv_tokens: int = 0,
    ) -> None:
        self._num_rows, self._no_token = num_rows, no_token
        # torch makes the host's side of such a copy pinned, so it does not wait.
        self._token_ids = token_ids.to("cpu", non_blocking=True)
        self._logprobs = None if logprobs is None else logprobs.to("cpu", non_blocking=True)
        self._started = started
        self._num_saved_kv_tokens = num_saved_kv_tokens
        self._is_done = timed_event() if token_ids.is_cuda else None

    def result(self) -> SampledTokens:
        """Wait for the batch and return what it sampled.

        Raises:
            EngineError: It failed on the device.
        """
        if self._is_done is not None:
            with torch_errors("the device", hint=DEVICE_HINT):
                self._is_done.synchronize()
        token_ids = self._token_ids.numpy()[:, : self._num_rows]
        logprobs = self._logprobs
        return SampledTokens(
            token_ids=token_ids,
            is_nan=token_ids == self._no_token,
            logprobs=None if logprobs is None else logprobs.numpy()[:, : self._num_rows],
            device_seconds=self._device_seconds(),
            num_saved_kv_tokens=self._num_saved_kv_tokens,
        )

    def _device_seconds(self) -> float | None:
        if self._started is None or self._is_done is None:
            return None
        milliseconds: float = self._started.elapsed_time(self._is_done)
        return milliseconds / 1000


def timed_event() -> torch.cuda.Event:
    """Record an event on the current stream whose time can be read."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
