"""Counts what prompts share, one prompt after the other, in bounded memory.

Knows how far a run looks ahead and how the numbers of `SharingReport` come of the blocks that rows
went through; `KnownBlocks` keeps these. When too many are known, those that went unused for longest
are counted and forgotten, but none within the look-ahead: what a run can reuse is exact, however
large the file.
"""

from collections import Counter, deque
from typing import Final

import numpy as np

from nanobatch.engine.block_manager import MIN_COPIED_TOKENS
from nanobatch.engine.tokenizer import TokenIds
from nanobatch.job.known_blocks import ForgottenBlocks, KnownBlocks
from nanobatch.job.sharing_report import Beginning, SharingReport, levels_of

MIN_KEPT_BLOCKS: Final = 300_000
"""Blocks that are kept at least when others are forgotten, however short the look-ahead is."""

MAX_GROWTH: Final = 1.25
"""How many times as many may be known before some are forgotten. A block takes about 340 bytes:
with the default look-ahead of a million blocks that is 450 MB, once a file has as many different
ones."""


class SharingCounter:
    """Takes prompts in the order of their rows.

    Args:
        block_size: Tokens of a KV block.
        window_rows: Most rows that a run looks ahead.
        window_tokens: Most prompt tokens that a run looks ahead.
        num_running_seqs: Sequences that are taken to run at once.
        num_output_tokens: Tokens that answers are taken to have; said in the report only.
        min_kept_blocks: Blocks that are kept at least when others are forgotten.
    """

    def __init__(
        self,
        *,
        block_size: int,
        window_rows: int,
        window_tokens: int,
        num_running_seqs: int,
        num_output_tokens: int,
        min_kept_blocks: int = MIN_KEPT_BLOCKS,
    ) -> None:
        self._block_size = block_size
        self._window_rows = window_rows
        self._window_tokens = window_tokens
        self._num_running_seqs = num_running_seqs
        self._num_output_tokens = num_output_tokens
        self._num_kept_blocks = max(min_kept_blocks, window_tokens // block_size)
        self._blocks = KnownBlocks(block_size)
        self._window: deque[int] = deque()
        self._num_tokens_in_window = 0
        self._num_rows = 0
        self._num_prompt_tokens = 0
        self._num_reused_tokens = 0
        self._num_near_tokens = 0
        self._num_prefill_tokens = 0
        self._num_attended_tokens = 0
        self._num_shared_tokens = 0
        self._num_saved_kv_tokens = 0.0
        self._beginnings: Counter[Beginning] = Counter()
        self._has_forgotten = False

    def add(self, token_ids: TokenIds, *, num_samples: int, num_decode_steps: int) -> None:
        """Count a prompt.

        Args:
            token_ids: [num_tokens] int32, at least one.
            num_samples: Answers that it gets.
            num_decode_steps: Decode steps that each of them is taken to need.
        """
        row, num_tokens = self._num_rows, len(token_ids)
        self._num_rows += 1
        self._num_prompt_tokens += num_tokens
        # Decode step j attends to the prompt and to j generated tokens.
        num_keys = num_decode_steps * num_tokens + num_decode_steps * (num_decode_steps + 1) // 2
        self._num_attended_tokens += num_samples * num_keys
        reuse = self._blocks.use(
            token_ids,
            row=row,
            oldest_near_row=self._oldest_near_row(num_tokens),
            num_seqs=num_samples,
            num_decode_steps=num_samples * num_decode_steps,
        )
        self._num_reused_tokens += reuse.num_known * self._block_size
        self._num_near_tokens += reuse.num_near * self._block_size
        num_cached = reuse.num_near * self._block_size
        if reuse.num_common_tokens >= MIN_COPIED_TOKENS:
            num_cached += reuse.num_common_tokens
        self._num_prefill_tokens += max(1, num_tokens - num_cached)
        if len(self._blocks) > MAX_GROWTH * self._num_kept_blocks:
            self._has_forgotten = True
            self._count(self._blocks.forget(len(self._blocks) - self._num_kept_blocks))

    def report(self) -> SharingReport:
        """Return the numbers; the counter takes no prompts after that."""
        self._count(self._blocks.forget(len(self._blocks)))
        return SharingReport(
            block_size=self._block_size,
            num_prompt_tokens=self._num_prompt_tokens,
            num_shared_tokens=self._num_shared_tokens,
            num_reused_tokens=self._num_reused_tokens,
            num_near_tokens=self._num_near_tokens,
            num_prefill_tokens=self._num_prefill_tokens,
            num_attended_tokens=self._num_attended_tokens,
            num_saved_kv_tokens=round(self._num_saved_kv_tokens),
            num_running_seqs=self._num_running_seqs,
            num_output_tokens=self._num_output_tokens,
            window_rows=self._window_rows,
            window_tokens=self._window_tokens,
            levels=levels_of(self._beginnings),
            is_lower_bound=self._has_forgotten,
        )

    def _oldest_near_row(self, num_tokens: int) -> int:
        """Take the next row into the window; return the first row that is in it."""
        self._window.append(num_tokens)
        self._num_tokens_in_window += num_tokens
        while len(self._window) > 1 and (
            len(self._window) > self._window_rows
            or self._num_tokens_in_window > self._window_tokens
        ):
            self._num_tokens_in_window -= self._window.popleft()
        return self._num_rows - len(self._window)

    def _count(self, forgotten: ForgottenBlocks) -> None:
        """Add blocks that no further row is compared with."""
        is_shared = forgotten.num_rows >= 2
        self._num_shared_tokens += int(forgotten.num_rows[is_shared].sum()) * self._block_size
        # Those that run together are as many as a group of near rows has on average.
        together = np.minimum(forgotten.num_seqs / forgotten.num_groups, self._num_running_seqs)
        saved = forgotten.num_decode_steps * (1.0 - 1.0 / together)
        self._num_saved_kv_tokens += float(saved.sum()) * self._block_size
        for level, num_rows, num_blocks in forgotten.beginnings.tolist():
            self._beginnings[Beginning(level, num_rows, num_blocks * self._block_size)] += 1
