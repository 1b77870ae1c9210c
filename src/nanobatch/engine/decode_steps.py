"""Steps that generate: the next few tokens of every running sequence, one after the other.

A sequence whose newest token is unread is scheduled all the same: the token is on the device, in
the sequence's slot. It is never scheduled past max_tokens, whose step is known without tokens.
"""

from array import array

import numpy as np

from nanobatch.engine.lifecycle import Lifecycle
from nanobatch.engine.scheduler_output import ScheduledDecode
from nanobatch.engine.sequence import Sequence


class DecodeSteps:
    """Makes steps of new tokens; no sequence may be in the middle of its prompt.

    Args:
        lifecycle: Gives blocks, and preempts where none is free.
    """

    __slots__ = ("_lifecycle",)

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def make_step(self, num_steps: int) -> ScheduledDecode | None:
        """Schedule up to num_steps tokens of each running sequence, the oldest first.

        The blocks of all of them are allocated now, and where none is free the newest sequence
        is preempted: it is later recomputed from its prompt and what it generated.

        Returns:
            The step, or None if no sequence has tokens left to schedule.
        """
        block_size = self._lifecycle.block_manager.block_size
        sampled: list[Sequence] = []
        row_ids, positions = array("i"), array("i")
        last_rows: dict[int, int] = {}
        # The hot loop of the host: once per sequence and launch.
        for seq in list(self._lifecycle.running):
            slot = seq.slot
            if slot is None:
                break  # preempted for an older one, and so are all that follow
            position = seq.num_computed_tokens
            num_left = seq.max_num_tokens - 1 - position
            if num_left == 0:
                continue
            end = position + (num_left if num_left < num_steps else num_steps)
            if end > len(seq.block_table) * block_size and not self._lifecycle.append_blocks(
                seq, end
            ):
                break
            if num_left <= num_steps:
                last_rows[len(sampled)] = num_left
            seq.num_computed_tokens = end
            seq.num_in_flight += end - position
            sampled.append(seq)
            row_ids.append(slot)
            positions.append(position)
        if not sampled:
            return None
        order = self._lifecycle.running.sharing_order.arrange(sampled)
        place_of = np.argsort(order.rows)
        return ScheduledDecode(
            sampled=[sampled[row] for row in order.rows.tolist()],
            row_ids=np.frombuffer(row_ids, dtype=np.intc)[order.rows],
            positions=np.frombuffer(positions, dtype=np.intc)[order.rows],
            num_steps=num_steps if len(last_rows) < len(sampled) else max(last_rows.values()),
            last_rows={int(place_of[row]): num_left for row, num_left in last_rows.items()},
            num_shared_blocks=order.num_shared_blocks,
        )
