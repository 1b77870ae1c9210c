"""Token embedding and output head, both split among ranks by vocabulary.

The vocabulary is padded to a multiple of the ranks; padding rows are zero, belong to no token
and are cut off the logits.
"""

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from nanobatch.layers.weights import WeightSlot, empty_weight
from nanobatch.parallel.group import TensorParallelGroup

HEAD_CHUNK = 1024
"""Vocabulary rows that are widened to fp32 at once where a CPU multiplies half precision: few
enough for the wide copy to stay in the processor's cache (2.5 times faster than 16,384)."""


class VocabMatrix(nn.Module):
    """This rank's rows of a [vocab_size, hidden_size] matrix."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup,
    ) -> None:
        """Reserve this rank's rows, padding included."""
        super().__init__()
        self.vocab_size = vocab_size
        self.group = group
        num_rows = -(-vocab_size // group.size)
        self.first_token_id = group.rank * num_rows
        self.weight = empty_weight(num_rows, hidden_size, dtype=dtype, device=device)

    def store(self, whole: torch.Tensor) -> None:
        """Copy this rank's rows of the whole matrix and zero the padding."""
        share = whole[self.first_token_id : self.first_token_id + len(self.weight)]
        self.weight[: len(share)].copy_(share)
        self.weight[len(share) :].zero_()

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slot of the matrix."""
        shape = (self.vocab_size, self.weight.shape[1])
        return {"weight": WeightSlot(shape=shape, store=self.store)}

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of token ids [num_tokens], as [num_tokens, hidden_size]."""
        if self.group.size == 1:
            return embedding(input_ids, self.weight)
        local_ids = input_ids - self.first_token_id
        is_elsewhere = (local_ids < 0) | (local_ids >= len(self.weight))
        rows = embedding(local_ids.masked_fill(is_elsewhere, 0), self.weight)
        return self.group.all_reduce(rows.masked_fill(is_elsewhere[:, None], 0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product with every row of the vocabulary.

        Half-precision inputs are multiplied and summed in fp32: rounded to bfloat16, the two
        best logits tie at about one position in fifty.

        Args:
            hidden: [n, hidden_size].

        Returns:
            [n, vocab_size] fp32 (float64 for float64 weights), whole on every rank.
        """
        local = self._local_logits(hidden)
        return self.group.all_gather(local)[:, : self.vocab_size]

    def _local_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype in (torch.float32, torch.float64):
            return linear(hidden, self.weight)
        if hidden.is_cuda:
            return torch.mm(hidden, self.weight.t(), out_dtype=torch.float32)
        # A CPU's bf16 product comes back rounded; an fp32 copy of the head would double it.
        local = hidden.new_empty(len(hidden), len(self.weight), dtype=torch.float32)
        wide = hidden.float()
        for start in range(0, len(self.weight), HEAD_CHUNK):
            rows = slice(start, start + HEAD_CHUNK)
            local[:, rows] = linear(wide, self.weight[rows].float())
        return local
