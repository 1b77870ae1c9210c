"""What the prefix cache says of one published block. Plain values."""

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
