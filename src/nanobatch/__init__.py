"""nanobatch: generate text for every row of a file, on your own hardware, losing none.

`LLM` and `SamplingParams` are the Python API; `nanobatch run` is the command. Importing this
package loads nothing: both are resolved on first use, because the program must handle signals
(`cli.early_signals`) before anything that takes time.
"""

TYPE_CHECKING = False  # as `typing` has it, without importing typing
if TYPE_CHECKING:
    from nanobatch.llm import LLM
    from nanobatch.request import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from nanobatch.llm import LLM

        return LLM
    if name == "SamplingParams":
        from nanobatch.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'nanobatch' has no attribute {name!r}")
