"""Finds each row's most likely token on a CPU without computing its logits to the last bit.

One bfloat16 product of the head says which tokens can be the best: those that its rounding cannot
tell from the largest. They are a handful; their logits are computed again in fp32. That costs a
third of fp32 logits for the whole vocabulary. Knows nothing of sampling parameters.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.cpu_matrix import PrepackedHead

NUM_GROUP_TOKENS: Final = 32
"""Tokens whose maximum is taken first, a column apart, so that vectors hold many groups."""

ROUNDING_MARGIN: Final = 2.0**-7
"""Share of the largest rounded logit by which another may lie below it and still be the best: one
step of bfloat16. Rounding keeps the order, so the best are among those that were rounded to the
largest; the step is for sums that fp32 gives on the other side of a border between two."""

MAX_CANDIDATES: Final = 256
"""Candidates of a row above which all of its logits are computed instead."""

RowIndices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestTokens:
    """The most likely token of each row.

    Attributes:
        token_ids: [n] int64, the lowest id among equals; undefined where is_nan.
        is_nan: [n] bool: the logits hold NaN, or their maximum is infinite.
    """

    token_ids: torch.Tensor
    is_nan: torch.Tensor


class BestTokenSearch:
    """Searches a vocabulary whose head is prepacked.

    Args:
        head: Its products.
        rows: [vocab_size, hidden_size] bfloat16, the weight that the head was made from.
    """

    def __init__(self, head: PrepackedHead, rows: torch.Tensor) -> None:
        self._head = head
        self._rows = rows

    def best_tokens(self, hidden: torch.Tensor) -> BestTokens:
        """Return the tokens with the largest fp32 logits, for hidden [n, hidden_size].

        What a row gets depends on that row alone.
        """
        chunks = self._head.rounded_logits(hidden)
        group_maxima = [_group_maxima(chunk) for chunk in chunks]
        maxima = torch.stack([group.amax(dim=1) for group in group_maxima]).amax(dim=0).float()
        is_nan = ~maxima.isfinite()
        thresholds = (maxima - maxima.abs() * ROUNDING_MARGIN).masked_fill_(is_nan, torch.inf)
        rows, tokens = _candidates(chunks, group_maxima, thresholds)
        is_crowded = np.bincount(rows, minlength=len(hidden)) > MAX_CANDIDATES
        is_few = ~is_crowded[rows]
        token_ids = self._best_of(hidden, rows[is_few], tokens[is_few])
        if is_crowded.any():
            crowded = torch.from_numpy(np.flatnonzero(is_crowded))
            token_ids[crowded] = self._head.logits(hidden[crowded]).argmax(dim=1)
        return BestTokens(token_ids=token_ids, is_nan=is_nan)

    def _best_of(self, hidden: torch.Tensor, rows: RowIndices, tokens: RowIndices) -> torch.Tensor:
        """Return each row's best among its candidates, [n] int64; 0 for a row without any."""
        features = hidden[torch.from_numpy(rows)].float()  # [num_candidates, hidden_size]
        weights = self._rows[torch.from_numpy(tokens)].float()
        logits = torch.linalg.vecdot(features, weights).numpy()
        order = np.lexsort((tokens, -logits, rows))
        ordered_rows, firsts = np.unique(rows[order], return_index=True)
        token_ids = np.zeros(len(hidden), dtype=np.int64)
        token_ids[ordered_rows] = tokens[order][firsts]
        return torch.from_numpy(token_ids)


def _num_grouped(num_tokens: int) -> int:
    return num_tokens - num_tokens % NUM_GROUP_TOKENS


def _group_maxima(chunk: torch.Tensor) -> torch.Tensor:
    """Return the maxima of a chunk's groups; tokens that fill no group are groups of their own.

    Args:
        chunk: [n, num_tokens]. With g = num_tokens // NUM_GROUP_TOKENS, group i < g holds the
            tokens i, i + g, i + 2 g and so on.

    Returns:
        [n, g + num_tokens % NUM_GROUP_TOKENS].
    """
    num_grouped = _num_grouped(chunk.shape[1])
    grouped = chunk[:, :num_grouped].view(
        len(chunk), NUM_GROUP_TOKENS, num_grouped // NUM_GROUP_TOKENS
    )
    return torch.cat((grouped.amax(dim=1), chunk[:, num_grouped:]), dim=1)


def _candidates(
    chunks: list[torch.Tensor], group_maxima: list[torch.Tensor], thresholds: torch.Tensor
) -> tuple[RowIndices, RowIndices]:
    """Return rows and token ids of the logits that reach their row's threshold."""
    all_rows, all_tokens, first_token = [], [], 0
    for chunk, maxima in zip(chunks, group_maxima, strict=True):
        num_groups = chunk.shape[1] // NUM_GROUP_TOKENS
        rows, groups = (maxima >= thresholds[:, None]).nonzero(as_tuple=True)
        # A group's tokens; a token on its own is repeated, and found once.
        offsets = torch.arange(NUM_GROUP_TOKENS) * num_groups
        is_single = groups >= num_groups
        singles = groups - num_groups + _num_grouped(chunk.shape[1])
        tokens = torch.where(
            is_single[:, None], singles[:, None], groups[:, None] + offsets
        )  # [num_found, NUM_GROUP_TOKENS]
        is_likely = chunk[rows[:, None], tokens] >= thresholds[rows, None]
        is_likely[:, 1:] &= ~is_single[:, None]
        found = is_likely.nonzero(as_tuple=True)
        all_rows.append(rows[found[0]].numpy())
        all_tokens.append(tokens[found].numpy() + first_token)
        first_token += chunk.shape[1]
    return np.concatenate(all_rows), np.concatenate(all_tokens)
