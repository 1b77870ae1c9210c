"""Continuous batching without mistakes and without a host: what each step of a workload computes.

The engine that the roofline is the time of. Counts tokens and pairs of tokens; knows no model, no
device and no time.
"""

from dataclasses import dataclass, field

import numpy as np

from nanobatch.bench.shared_rows import Int64Array, SharedRows

MAX_NUM_SEQS = 1024
TOKEN_BUDGET = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step computes.

    Attributes:
        num_prefill_tokens: Prompt tokens.
        num_prefill_pairs: Pairs of a prompt token and a token that it attends to.
        num_decoding: Rows that get their next token.
        num_logits: Rows whose logits are wanted.
        num_private_tokens: Tokens in the cache that one decoding row alone attends to.
        num_shared_tokens: Different tokens that several decoding rows attend to.
        num_shared_pairs: Pairs of a decoding row and a shared token.
        num_sharing: Decoding rows that share anything.
    """

    num_prefill_tokens: int
    num_prefill_pairs: int
    num_decoding: int
    num_logits: int
    num_private_tokens: int
    num_shared_tokens: int
    num_shared_pairs: int
    num_sharing: int


@dataclass(slots=True)
class PerfectEngine:
    """Continuous batching without mistakes: which rows are where, a step at a time.

    Rows are admitted and prefilled in their order, so that `num_admitted` and `num_prefilled` say
    all of it; `num_chunked` tokens of the row that is next are computed.
    """

    rows: SharedRows
    kv_capacity_tokens: int
    num_admitted: int = 0
    num_prefilled: int = 0
    num_chunked: int = 0
    num_reserved: int = 0
    running: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    num_generated: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    sharing: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_done(self) -> bool:
        """Whether every row has all its tokens."""
        return self.num_prefilled == self.rows.num_rows and len(self.running) == 0

    def step(self) -> Step:
        """Give every running row a token and fill the budget with prompts."""
        self._admit()
        decoding, generated = self.running, self.num_generated
        num_tokens, num_pairs, first_done = self._prefill(TOKEN_BUDGET - len(decoding))
        num_distinct, num_shared_pairs, num_sharing = self.sharing
        num_context = int(self.rows.prompt_lens[decoding].sum() + generated.sum())
        step = Step(
            num_prefill_tokens=num_tokens,
            num_prefill_pairs=num_pairs,
            num_decoding=len(decoding),
            num_logits=len(decoding) + self.num_prefilled - first_done,
            num_private_tokens=num_context - num_shared_pairs,
            num_shared_tokens=num_distinct,
            num_shared_pairs=num_shared_pairs,
            num_sharing=num_sharing,
        )
        self._advance(first_done)
        return step

    def _admit(self) -> None:
        rows = self.rows
        while self.num_admitted < rows.num_rows:
            num_active = len(self.running) + self.num_admitted - self.num_prefilled
            num_needed = self._num_reserved_by(self.num_admitted)
            is_full = self.num_reserved + num_needed > self.kv_capacity_tokens
            if num_active >= MAX_NUM_SEQS or (is_full and num_active > 0):
                break
            self.num_reserved += num_needed
            self.num_admitted += 1

    def _prefill(self, num_left: int) -> tuple[int, int, int]:
        """Compute prompts; return tokens, attention pairs and the first row that was finished."""
        rows, num_tokens, num_pairs, first_done = self.rows, 0, 0, self.num_prefilled
        while self.num_prefilled < self.num_admitted and num_left > 0:
            row = self.num_prefilled
            start = int(rows.num_cached_tokens[row]) + self.num_chunked
            num_chunk = min(num_left, int(rows.prompt_lens[row]) - start)
            num_pairs += num_chunk * start + num_chunk * num_chunk // 2
            num_tokens += num_chunk
            num_left -= num_chunk
            self.num_chunked += num_chunk
            if start + num_chunk == rows.prompt_lens[row]:
                self.num_prefilled, self.num_chunked = row + 1, 0
        return num_tokens, num_pairs, first_done

    def _advance(self, first_done: int) -> None:
        """Let rows go that have all tokens, and those decode whose prompt is done."""
        new = np.arange(first_done, self.num_prefilled, dtype=np.int64)
        rows = np.concatenate([self.running, new])
        num_generated = np.concatenate([self.num_generated + 1, np.ones_like(new)])
        is_running = num_generated < self.rows.output_lens[rows]
        if len(new) or not is_running.all():
            self.num_reserved -= sum(map(self._num_reserved_by, rows[~is_running].tolist()))
            self.sharing = self.rows.sharing_of(rows[is_running])
        self.running, self.num_generated = rows[is_running], num_generated[is_running]

    def _num_reserved_by(self, row: int) -> int:
        rows = self.rows
        num_new = rows.prompt_lens[row] - rows.num_cached_tokens[row]
        return int(num_new + rows.output_lens[row])
