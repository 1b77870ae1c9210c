"""What torch attention must know of a step: which tokens belong to whom, where their past is.

The host plans with plain numpy arrays, so that planning never waits for the device; only what
layers read is uploaded.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """One step's sequences, in the order of their tokens.

    Attributes:
        query_start_loc: [num_seqs + 1] first token of each sequence, and the end, on the host.
        seq_lens: [num_seqs] tokens of each sequence including this step's, on the host.
        block_tables: [num_seqs, max_blocks_per_seq] on the host; entries past a sequence's end are
            never read.
        slot_mapping: [num_tokens] int64 on the device, where each token's key and value are stored.
    """

    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    slot_mapping: torch.Tensor

    @classmethod
    def from_arrays(
        cls,
        *,
        query_start_loc: Int32Array,
        seq_lens: Int32Array,
        block_tables: Int32Array,
        slot_mapping: npt.NDArray[np.int64],
        device: torch.device,
    ) -> "AttentionMetadata":
        """Take a step's arrays and upload what its layers read."""
        return cls(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_tables=block_tables,
            slot_mapping=torch.from_numpy(slot_mapping).to(device),
        )

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        return self.slot_mapping.device

    @property
    def num_seqs(self) -> int:
        """Sequences in this step."""
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.query_start_loc[-1])
