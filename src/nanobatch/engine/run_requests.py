"""Runs a list of requests: the first of them while the others are still being tokenized.

For callers who have all requests at hand; a job reads its own as it goes (`job.generation`). Knows
the engine's interface only.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from nanobatch.engine.core import EngineCore
from nanobatch.request import Request, RequestOutputs

PORTION_ROWS: Final = 1024
"""Requests that are added between two steps: enough to see what they share."""


def run_requests(engine: EngineCore, requests: Sequence[Request]) -> Iterator[list[RequestOutputs]]:
    """Add requests and run the engine until all of its requests have finished.

    Args:
        engine: Where they run; other requests in it run on.
        requests: With row indices that are unique in the engine.

    Yields:
        What finished since, a list after each step and each portion added; it may be empty.

    Raises:
        EngineError: The model runner failed, or nothing can make progress.
    """
    engine.expect_more(is_more=True)
    try:
        for first in range(0, len(requests), PORTION_ROWS):
            if first > 0:
                yield engine.step()
            yield engine.add_requests(requests[first : first + PORTION_ROWS])
    finally:
        engine.expect_more(is_more=False)
    yield from engine.run()
