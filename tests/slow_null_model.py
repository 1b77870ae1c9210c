"""The null model with steps that take as long as `NULL_STEP_S` in the environment says."""

import os
import time

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.factory import LoadedRunner, OnProgress
from nanobatch.engine.step_batch import StepBatch
from nanobatch.models.source import ModelSource
from tests.null_model import NUM_KV_BLOCKS, NullModelRunner, PendingNull


class SlowNullModelRunner(NullModelRunner):
    """Answers as the null model does, so many seconds later."""

    def __init__(self, max_num_seqs: int, *, step_s: float) -> None:
        super().__init__(max_num_seqs)
        self._step_s = step_s

    def launch(self, batch: StepBatch) -> PendingNull:
        """Answer a step after the time that it takes."""
        time.sleep(self._step_s)
        return super().launch(batch)


def load_slow_null_runner(
    config: EngineConfig,
    _source: ModelSource,
    _model_config: ModelConfig,
    _on_progress: OnProgress | None,
) -> LoadedRunner:
    """Load nothing; a `LoadRunner`."""
    step_s = float(os.environ.get("NULL_STEP_S", "0"))
    runner = SlowNullModelRunner(config.step_sizes("cpu").max_num_seqs, step_s=step_s)
    return LoadedRunner(runner, config.num_kv_blocks or NUM_KV_BLOCKS, device_type="cpu")
