"""Which module measures which engine."""

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.measured_engine import MeasuredEngine


def load_engine(settings: EngineSettings, *, is_observed: bool) -> MeasuredEngine:
    """Load an engine with its model; its libraries are imported here and not before.

    Args:
        settings: Which engine, and how.
        is_observed: Some of its runs will be watched.
    """
    if settings.engine == "vllm":
        from nanobatch.bench.engines.vllm_engine import VllmEngine

        return VllmEngine(settings, is_observed=is_observed)
    if settings.engine == "transformers":
        from nanobatch.bench.engines.transformers_engine import TransformersEngine

        return TransformersEngine(settings)
    from nanobatch.bench.engines.nanobatch_engine import NanobatchEngine

    return NanobatchEngine(settings)
