"""Which module measures which engine."""

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.measured_engine import MeasuredEngine


def load_engine(settings: EngineSettings, *, is_profiled: bool) -> MeasuredEngine:
    """Load an engine with its model; its libraries are imported here and not before.

    Args:
        settings: Which engine, and how.
        is_profiled: The kernels of some of its runs will be watched.
    """
    if settings.engine == "vllm":
        from nanobatch.bench.engines.vllm_engine import VllmEngine

        return VllmEngine(settings, is_profiled=is_profiled)
    if settings.engine == "transformers":
        from nanobatch.bench.engines.transformers_engine import TransformersEngine

        return TransformersEngine(settings)
    from nanobatch.bench.engines.nanobatch_engine import NanobatchEngine

    return NanobatchEngine(settings)
