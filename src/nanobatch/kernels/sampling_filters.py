"""Keep the likely tokens: min-p, top-k and top-p as thresholds on scaled logits.

Each function sets the logits it drops to -inf, in place, and keeps at least one token of every row.
Nothing sorts the vocabulary: a threshold comes from the few largest logits. Rows do not influence
each other. NaN rows stay as they are.
"""

from typing import Final

import torch

_FIRST_WIDTH: Final = 512
_WIDTH_GROWTH: Final = 8
_GROUP_SIZE: Final = 16


def apply_min_p(scaled_logits: torch.Tensor, min_p: torch.Tensor) -> None:
    """Drop tokens less likely than a share of the most likely one (Nguyen et al. 2024, section 3).

    Args:
        scaled_logits: [n, vocab] logits divided by temperature.
        min_p: [n] share in [0, 1], float64.
    """
    # p >= min_p * p_max, in logarithms; min_p = 1 keeps exactly the maxima.
    floors = scaled_logits.amax(dim=-1) + min_p.log().to(scaled_logits.dtype)
    scaled_logits.masked_fill_(scaled_logits < floors[:, None], -torch.inf)


def apply_top_k(scaled_logits: torch.Tensor, top_k: torch.Tensor) -> None:
    """Keep the k largest logits (Fan et al. 2018, section 5.4) and all that equal the k-th.

    Args:
        scaled_logits: [n, vocab].
        top_k: [n] int64, from 1 to vocab.
    """
    largest = _largest(scaled_logits, int(top_k.max()))
    floors = largest.gather(1, top_k[:, None] - 1)  # [n, 1]
    scaled_logits.masked_fill_(scaled_logits < floors, -torch.inf)


def apply_top_p(scaled_logits: torch.Tensor, top_p: torch.Tensor) -> None:
    """Keep the smallest set of likeliest tokens whose probability reaches p (Holtzman et al. 2020).

    Probabilities are those of the tokens still in the row, so that a top-k before it counts. Among
    tokens equal to the least likely one kept, lower ids are kept first. Sums are taken in float64
    and in order of size, so that a row's set does not depend on its neighbours.

    Args:
        scaled_logits: [n, vocab].
        top_p: [n] share in (0, 1], float64.
    """
    largest = _largest(scaled_logits, min(_FIRST_WIDTH, scaled_logits.shape[1]))
    # After a top-k the largest are often all there is.
    is_all = bool((largest[:, -1] == -torch.inf).all())
    weights = ((largest if is_all else scaled_logits) - largest[:, :1]).exp_()
    wanted = top_p * weights.sum(dim=-1, dtype=torch.float64)  # [n]
    cutoffs, num_kept, may_tie = _nucleus(scaled_logits, wanted, largest=largest)
    scaled_logits.masked_fill_(scaled_logits < cutoffs[:, None], -torch.inf)
    for row in may_tie.nonzero().squeeze(1).tolist():
        _drop_last_ties(scaled_logits[row], cutoffs[row], num_kept=int(num_kept[row]))


def _largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Find the `count` largest values of each row, in descending order: [n, count].

    The largest values lie in the groups with the largest maxima, so that only a sixteenth of a
    large row, and then those groups, are searched. Groups are strided to make their maxima one
    vectorised pass.
    """
    num_rows, vocab_size = logits.shape
    num_groups = vocab_size // _GROUP_SIZE
    if vocab_size % _GROUP_SIZE or count * 4 > num_groups:
        return logits.topk(count, dim=-1).values
    grouped = logits.reshape(num_rows, _GROUP_SIZE, num_groups)
    groups = grouped.amax(dim=1).topk(count, dim=-1).indices  # [n, count]
    candidates = grouped.gather(2, groups[:, None].expand(-1, _GROUP_SIZE, -1))
    return candidates.flatten(1).topk(count, dim=-1).values


def _nucleus(
    scaled_logits: torch.Tensor, wanted: torch.Tensor, *, largest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the least logit of each row's set and the set's size.

    Args:
        scaled_logits: [n, vocab].
        wanted: [n] sum of exp(logit - maximum) that the set must reach.
        largest: [n, width] the largest logits, descending; more are fetched where they fall short.

    Returns:
        [n] least logit kept, [n] number of tokens kept, [n] whether tokens beyond the set may equal
        the least one.
    """
    vocab_size, width = scaled_logits.shape[1], largest.shape[1]
    mass = (largest - largest[:, :1]).exp_().cumsum(dim=-1, dtype=torch.float64)
    num_kept = (mass < wanted[:, None]).sum(dim=-1) + 1
    is_short = num_kept > width
    num_kept.clamp_(max=width)  # at full width, rounding alone can leave the sum short
    cutoffs = largest.gather(1, num_kept[:, None] - 1).squeeze(1)
    following = largest.gather(1, num_kept.clamp(max=width - 1)[:, None]).squeeze(1)
    may_tie = (following == cutoffs) & (num_kept < vocab_size)
    if width < vocab_size and bool(is_short.any()):
        rows = is_short.nonzero().squeeze(1)
        short_logits = scaled_logits[rows]
        wider = _largest(short_logits, min(width * _WIDTH_GROWTH, vocab_size))
        cutoffs[rows], num_kept[rows], may_tie[rows] = _nucleus(
            short_logits, wanted[rows], largest=wider
        )
    return cutoffs, num_kept, may_tie


def _drop_last_ties(row: torch.Tensor, cutoff: torch.Tensor, *, num_kept: int) -> None:
    """Drop the last ids among the logits that equal the cutoff, until num_kept are left."""
    num_above = int((row > cutoff).sum())
    equal_ids = (row == cutoff).nonzero().squeeze(1)
    row[equal_ids[num_kept - num_above :]] = -torch.inf
