"""One continuation of a request while it is in the engine: tokens, progress, blocks.

Holds state only; the scheduler moves it through its life, the block manager owns its blocks.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nanobatch.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAssignment:
    """A sequence enters a slot: everything the sampler must know of it from now on.

    Attributes:
        slot: Index of the slot.
        params: How to sample.
        noise_seed: 64-bit key of the sampling noise, already derived where params.seed is None.
        sample_index: Second half of the noise key.
        prompt_token_ids: [num_prompt_tokens] int32.
        output_token_ids: [num_output_tokens] int32, not empty when a preempted sequence returns.
        eos_token_ids: Tokens banned until min_tokens are generated (the model's end-of-sequence
            ids unless ignore_eos, and params.stop_token_ids).
    """

    slot: int
    params: SamplingParams
    noise_seed: int
    sample_index: int
    prompt_token_ids: npt.NDArray[np.int32]
    output_token_ids: npt.NDArray[np.int32]
    eos_token_ids: tuple[int, ...]
