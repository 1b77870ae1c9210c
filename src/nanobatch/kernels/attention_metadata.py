"""What attention must know of a step: which tokens belong to whom and where their past is.

The same numbers stand on the device (for kernels) and, where the host plans with them, as
plain integers, so that planning never waits for the device.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """One step's sequences, in the order of their tokens.

    Attributes:
        query_start_loc: [num_seqs + 1] int32, first token of each sequence, and the end.
        seq_lens: [num_seqs] int32, tokens of each sequence including this step's.
        block_tables: [num_seqs, max_blocks_per_seq] int32; entries past a sequence's end are
            never read.
        slot_mapping: [num_tokens] int64, where each token's key and value are stored.
        host_query_lens: Tokens of each sequence in this step.
        host_seq_lens: `seq_lens` on the host.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    host_query_lens: tuple[int, ...]
    host_seq_lens: tuple[int, ...]

    @classmethod
    def from_arrays(
        cls,
        *,
        query_start_loc: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        block_tables: npt.NDArray[np.int32],
        slot_mapping: npt.NDArray[np.int64],
        device: torch.device,
    ) -> "AttentionMetadata":
        """Upload a step's arrays (see `ForwardBatch` for their meaning)."""
        return cls(
            query_start_loc=torch.from_numpy(query_start_loc).to(device),
            seq_lens=torch.from_numpy(seq_lens).to(device),
            block_tables=torch.from_numpy(block_tables).to(device),
            slot_mapping=torch.from_numpy(slot_mapping).to(device),
            host_query_lens=tuple(np.diff(query_start_loc).tolist()),
            host_seq_lens=tuple(seq_lens.tolist()),
        )

    @property
    def num_seqs(self) -> int:
        """Sequences in this step."""
        return len(self.host_seq_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(self.host_query_lens)

    @property
    def max_query_len(self) -> int:
        """Most tokens that one sequence has in this step."""
        return max(self.host_query_lens, default=0)

    @property
    def max_seq_len(self) -> int:
        """Length of the longest sequence."""
        return max(self.host_seq_lens, default=0)
