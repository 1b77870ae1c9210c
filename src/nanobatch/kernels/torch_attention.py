"""A step's attention in plain torch: a `StepAttention` over an `AttentionPlan`.

Knows how metadata becomes plans, one for each distinct window; how a plan is computed is the
business of `paged_attention`.
"""

from collections.abc import Iterable

import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.attention_plan import AttentionPlan, plan_paged_attention
from nanobatch.kernels.paged_attention import paged_attention
from nanobatch.kernels.step_attention import ModelAttention


class PagedTorchAttention:
    """Reads every key and value back from the pool, as the plan says.

    Attributes:
        plan: Who attends to what.
    """

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan = plan

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attend to every key that each query sees (see `StepAttention.attend`)."""
        del key, value  # the pool holds them
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        return paged_attention(query, key_cache, value_cache, plan=self.plan, scale=scale, out=out)


def plan_model_attention(
    metadata: AttentionMetadata,
    *,
    block_size: int,
    windows: Iterable[int | None],
    shares_keys: bool = True,
) -> ModelAttention:
    """Plan one step for all layers of a model.

    Args:
        metadata: Whose tokens these are and where their past is.
        block_size: Tokens per block of the pool.
        windows: The window of each layer; a plan is made for each distinct one.
        shares_keys: Read keys that sequences share once, where that is possible and pays.
    """
    return ModelAttention(
        slot_mapping=metadata.slot_mapping,
        by_window={
            window: PagedTorchAttention(
                plan_paged_attention(
                    metadata, block_size=block_size, window=window, shares_keys=shares_keys
                )
            )
            for window in dict.fromkeys(windows)
        },
    )
