"""Sequences that run, in the order of their admission, and the slots they sit in."""

from collections.abc import Collection, Iterator

from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.sharing_order import SharingOrder


class RunningSet(Collection[Sequence]):
    """Running sequences, oldest admission first, each in a slot of its own.

    A dict by seq_id, since it keeps its order and gives up any entry in O(1).

    Args:
        max_num_seqs: Number of slots.

    Attributes:
        max_num_tokens: Most tokens that the running sequences may come to have together.
        sharing_order: The running sequences in the order in which they share blocks.
    """

    __slots__ = ("_by_id", "_free_slots", "_max_num_seqs", "max_num_tokens", "sharing_order")

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self.max_num_tokens = 0
        self.sharing_order = SharingOrder()
        self._by_id: dict[int, Sequence] = {}
        self._free_slots = list(reversed(range(max_num_seqs)))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, Sequence) and seq.seq_id in self._by_id

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_id.values())

    @property
    def is_full(self) -> bool:
        """Whether every slot is taken."""
        return not self._free_slots

    @property
    def newest(self) -> Sequence:
        """The sequence that was admitted last; there must be one."""
        return next(reversed(self._by_id.values()))

    def enter(self, seq: Sequence) -> None:
        """Make a sequence with its blocks the newest one and give it a slot; there must be one."""
        seq.status = SequenceStatus.RUNNING
        seq.slot = self._free_slots.pop()
        self._by_id[seq.seq_id] = seq
        self.max_num_tokens += seq.max_num_tokens
        self.sharing_order.enter(seq)

    def leave(self, seq: Sequence, status: SequenceStatus) -> None:
        """Take a sequence and its slot out; it then has another status."""
        assert seq.slot is not None, "a running sequence has a slot"
        del self._by_id[seq.seq_id]
        self.max_num_tokens -= seq.max_num_tokens
        self.sharing_order.leave(seq)
        self._free_slots.append(seq.slot)
        seq.slot = None
        seq.status = status

    def check_integrity(self, unfinished_prompt: Sequence | None, *, block_size: int) -> None:
        """Check slots, and that every sequence is as far as its blocks and tokens allow.

        Args:
            unfinished_prompt: The one sequence that may lack more than its newest token.
            block_size: Tokens per KV block.

        Raises:
            AssertionError: An invariant does not hold.
        """
        slots = [seq.slot for seq in self if seq.slot is not None]
        assert len(slots) == len(self), "a running sequence has no slot"
        assert sorted([*self._free_slots, *slots]) == list(range(self._max_num_seqs))
        assert self.max_num_tokens == sum(seq.max_num_tokens for seq in self)
        for seq_id, seq in self._by_id.items():
            assert seq.seq_id == seq_id, f"{seq} stands in another's place"
            assert seq.status is SequenceStatus.RUNNING, f"{seq} is among the running"
            num_places = len(seq.block_table) * block_size
            assert seq.num_computed_tokens <= num_places, f"{seq} has too few blocks"
            num_missing = seq.num_tokens + seq.num_in_flight - seq.num_computed_tokens
            if seq is unfinished_prompt:
                assert num_missing > 0, f"{seq} has nothing left to compute"
                assert seq.num_in_flight == 0, f"{seq} is owed a token before its prompt ends"
            else:
                assert num_missing == 1, f"{seq} is neither decoding nor the unfinished prompt"
