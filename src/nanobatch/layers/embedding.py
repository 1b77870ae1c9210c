"""Token embedding and output head, both split among ranks by vocabulary.

The vocabulary is padded to a multiple of the ranks; padding rows are zero, belong to no token
and are cut off the logits. The head multiplies by the rows in a form of its own where that is
faster.
"""

import torch
from torch import nn
from torch.nn.functional import embedding

from nanobatch.kernels.best_tokens import BestTokenSearch
from nanobatch.kernels.cpu_matrix import DenseHead, PrepackedHead
from nanobatch.kernels.kernel_set import HeadMatrix, KernelSet
from nanobatch.layers.weights import WeightSlot, empty_weight
from nanobatch.parallel.group import TensorParallelGroup


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
        self.num_rows = -(-vocab_size // group.size)
        self.first_token_id = group.rank * self.num_rows
        self.weight = empty_weight(self.num_rows, hidden_size, dtype=dtype, device=device)
        self.head: HeadMatrix = DenseHead(self.weight)
        self.search: BestTokenSearch | None = None

    def store(self, whole: torch.Tensor) -> None:
        """Copy this rank's rows of the whole matrix and zero the padding."""
        share = whole[self.first_token_id : self.first_token_id + len(self.weight)]
        self.weight[: len(share)].copy_(share)
        self.weight[len(share) :].zero_()

    def pack_head(self, kernels: KernelSet, *, keeps_rows: bool) -> None:
        """Prepare the loaded rows for `logits`; nothing is stored after.

        Args:
            kernels: What computes the logits.
            keeps_rows: `embed` is used too, so the rows stay even where the head copies them.
        """
        self.head = kernels.pack_head(self.weight.detach())
        if not keeps_rows:
            del self.weight
        elif isinstance(self.head, PrepackedHead) and self.group.size == 1:
            self.search = BestTokenSearch(self.head, self.weight.detach())

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

    def logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product with every row of the vocabulary.

        Half-precision inputs are multiplied and summed in fp32: rounded to bfloat16, the two
        best logits tie at about one position in fifty.

        Args:
            hidden: [n, hidden_size].
            out: [n, this rank's rows] to write its own logits to, or None for a new tensor.

        Returns:
            [n, vocab_size] fp32 (float64 for float64 weights), whole on every rank.
        """
        return self.group.all_gather(self.head.logits(hidden, out=out))[:, : self.vocab_size]
