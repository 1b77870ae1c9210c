"""What the fake model says: the next token is a function of the prefix's hash."""

from dataclasses import dataclass

ROOT_HASH = 0x5EED
POISON_TOKEN = 0x7FFFFFFE
"""A token whose keys and values are not numbers, nor is what follows; never generated."""
POISONED = -2
"""The hash of every prefix with POISON_TOKEN in it."""


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """Return the hash of a prefix that is one token longer."""
    if token_id == POISON_TOKEN or prefix_hash == POISONED:
        return POISONED
    return hash((prefix_hash, token_id))


@dataclass(frozen=True)
class FakeLanguage:
    """What the fake model says.

    Sequences that it may end need `eos_token_ids` of `(0,)`.

    Attributes:
        vocab_size: Token ids it uses.
        eos_one_in: One prefix in this many is followed by the end-of-sequence token 0.
        nan_one_in: One prefix in this many has logits that are not numbers, None for none.
    """

    vocab_size: int = 50
    eos_one_in: int | None = 12
    nan_one_in: int | None = None

    def next_token(self, prefix_hash: int) -> int | None:
        """Return the token that follows, None where there is none."""
        if prefix_hash == POISONED:
            return None
        draw = hash((prefix_hash, 7)) & 0x7FFFFFFFFFFF
        if self.nan_one_in is not None and draw % self.nan_one_in == 1:
            return None
        if self.eos_one_in is not None and (draw >> 8) % self.eos_one_in == 0:
            return 0
        return 1 + (draw >> 16) % (self.vocab_size - 1)

    def continue_alone(
        self, prompt: list[int], max_tokens: int, *, ignore_eos: bool = False
    ) -> list[int | None]:
        """Generate what a lone sequence gets, None at its end where its logits fail."""
        prefix_hash = ROOT_HASH
        for token_id in prompt:
            prefix_hash = extend_hash(prefix_hash, token_id)
        output: list[int | None] = []
        while len(output) < max_tokens:
            next_token = self.next_token(prefix_hash)
            output.append(next_token)
            if next_token is None or (next_token == 0 and not ignore_eos):
                break
            prefix_hash = extend_hash(prefix_hash, next_token)
        return output
