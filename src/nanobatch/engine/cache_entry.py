"""What the prefix cache says of published blocks. Plain values."""

from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple

ROOT_ENTRY_ID: Final = 0
"""Parent of every first block."""


class CacheEntry(NamedTuple):
    """Content of one published block.

    Attributes:
        entry_id: Identity of this content in this block, never reused.
        block_id: Block that holds it.
        block_hash: Hash of the tokens up to and including this block.
        parent_id: Entry of the block before it, or ROOT_ENTRY_ID.
        token_bytes: The block's tokens as int32 bytes.
    """

    entry_id: int
    block_id: int
    block_hash: bytes
    parent_id: int
    token_bytes: bytes


@dataclass(slots=True)
class PrefixHits:
    """Consecutive published blocks with which a sequence begins or goes on.

    In columns, so that what two sequences share passes from one to the other in one piece.

    Attributes:
        block_ids: The blocks.
        entry_ids: Their entries.
        num_held: Of the blocks, how many leading ones a sequence is known to hold.
    """

    block_ids: "array[int]" = field(default_factory=lambda: array("i"))
    entry_ids: list[int] = field(default_factory=list)
    num_held: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return len(self.entry_ids)
