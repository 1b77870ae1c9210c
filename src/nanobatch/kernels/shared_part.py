"""Attention over keys that rows share, kept apart until it is merged with that over their own.

Also how rows at some places of a tensor are read and written, here and by who merges.
"""

import torch

from nanobatch.kernels.attention_plan import Places


class SharedPart:
    """Attention of a step's tokens over the keys that they share, to be merged with the rest.

    The weight of a part is the sum of its exponentiated scores (Milakov and Gimelshein 2018). Sums
    are kept in fp32, or float64 for float64.

    Args:
        attended: [num_tokens, num_kv_heads, group, head_dim] attention over the shared keys alone.
        log_weights: [num_tokens, num_kv_heads, group] logarithm of the part's weight; -inf where a
            token shares nothing.
    """

    def __init__(self, attended: torch.Tensor, log_weights: torch.Tensor) -> None:
        self._attended = attended
        self._log_weights = log_weights

    @classmethod
    def nothing(cls, query: torch.Tensor, *, like: torch.Tensor) -> "SharedPart":
        """Return the part before any keys, for queries [num_tokens, num_heads, head_dim].

        Args:
            query: Of all tokens.
            like: [n, num_kv_heads, group, head_dim], a part of some of them.
        """
        shape = (len(query), *like.shape[1:])
        dtype = torch.promote_types(query.dtype, torch.float32)
        log_weights = query.new_full(shape[:3], -torch.inf, dtype=dtype)
        return cls(query.new_zeros(shape, dtype=dtype), log_weights)

    def add(self, tokens: Places, attended: torch.Tensor, log_weights: torch.Tensor) -> None:
        """Take in more keys of some tokens.

        Args:
            tokens: n tokens.
            attended: [n, num_kv_heads, group, head_dim] attention over these keys alone.
            log_weights: [n, num_kv_heads, group] logarithm of their weight.
        """
        before = select(self._log_weights, tokens)
        share = torch.sigmoid(log_weights - before).unsqueeze(-1)
        sums = select(self._attended, tokens).lerp(attended.to(self._attended.dtype), share)
        put(self._attended, tokens, sums)
        put(self._log_weights, tokens, torch.logaddexp(before, log_weights))

    def of_rows(self, tokens: Places) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the part of n tokens, contiguous and in fp32.

        Returns:
            [n, num_kv_heads, group, head_dim] attention over the shared keys alone, and
            [n, num_kv_heads, group] logarithm of their weight.
        """
        attended, log_weights = (
            select(tensor, tokens) for tensor in (self._attended, self._log_weights)
        )
        wide = torch.empty(attended.shape, dtype=torch.float32)
        return wide.copy_(attended), log_weights.float().contiguous()

    def merged(
        self, tokens: Places, attended: torch.Tensor, log_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the attention of tokens over what they share and over the rest.

        Args:
            tokens: n tokens.
            attended: [n, num_heads, head_dim] attention over the rest, in any grouping of the
                heads.
            log_weights: [n, num_heads] logarithm of its weight, likewise.

        Returns:
            [n, num_kv_heads, group, head_dim].
        """
        shared = select(self._attended, tokens)
        share = torch.sigmoid(
            select(self._log_weights, tokens) - log_weights.view(shared.shape[:3])
        )
        dtype = torch.promote_types(shared.dtype, torch.float32)
        rest = attended.view(shared.shape).to(dtype)
        return rest.lerp_(shared.to(dtype), share.unsqueeze(-1))


def select(rows: torch.Tensor, places: Places) -> torch.Tensor:
    """Return the rows at some places: a view where they follow one another."""
    return rows[places] if isinstance(places, slice) else rows.index_select(0, places)


def put(rows: torch.Tensor, places: Places, values: torch.Tensor) -> None:
    """Write values, in any shape of the same order and any data type, to rows at some places."""
    if isinstance(places, slice):
        target = rows[places]
        target.view(values.shape).copy_(values)
    else:
        rows.index_copy_(0, places, values.reshape(-1, *rows.shape[1:]).to(rows.dtype))
