"""What is kept of a prompt that is too long for the context. Pure functions over token ids."""

import numpy as np

from nanobatch.config import LongPrompts
from nanobatch.engine.tokenizer import TokenIds


def cut_prompt(
    token_ids: TokenIds, num_kept: int, *, policy: LongPrompts, bos_token_id: int | None
) -> TokenIds:
    """Return num_kept of a longer prompt's tokens, in their order.

    Args:
        token_ids: [num_tokens] the prompt.
        num_kept: Tokens to keep, at least 1 and fewer than there are.
        policy: `truncate-left` keeps the last ones, and a beginning-of-sequence token in front;
            `truncate-middle` keeps the first and the last half, the odd one at the end.
        bos_token_id: The beginning-of-sequence token, if the model has one.

    Returns:
        [num_kept] int32, a copy that does not hold on to the long prompt.
    """
    if policy == "truncate-middle":
        num_first = num_kept // 2
    else:
        num_first = int(bos_token_id is not None and int(token_ids[0]) == bos_token_id)
    num_last = num_kept - num_first
    return np.concatenate([token_ids[:num_first], token_ids[len(token_ids) - num_last :]])
