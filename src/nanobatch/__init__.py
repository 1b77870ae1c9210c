"""nanobatch: generate text for every row of a file, on your own hardware, losing none.

`LLM` and `SamplingParams` are the Python API; `nanobatch run` is the command. Importing this
package loads no torch: `LLM` is resolved on first use.
"""

from typing import TYPE_CHECKING, Any

from nanobatch.request import SamplingParams

if TYPE_CHECKING:
    from nanobatch.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from nanobatch.llm import LLM

        return LLM
    raise AttributeError(f"module 'nanobatch' has no attribute {name!r}")
