"""How the sampling kernels are told about the rows of a batch: one record of 64 bytes a row.

Knows the layout of a record on both sides, numpy's and Triton's. Does not know where its values
come from.
"""

from typing import Final

import numpy as np
import triton
import triton.language as tl

ROW_RECORD: Final = np.dtype(
    [
        ("flags", np.int32),  # IS_ROW, IS_FILTERED, IS_PENALIZED
        ("slot", np.int32),
        ("temperature", np.float32),  # 0 takes the largest logit
        ("sample_index", np.uint32),
        ("noise_seed", np.uint64),
        ("top_p", np.float64),  # 1 keeps all
        ("top_k", np.int32),  # the vocabulary's size keeps all
        ("log_min_p", np.float32),  # -inf keeps all
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("padding", np.int32, 3),
    ]
)
"""What a kernel reads of a row. A record of zeros is a row of padding, which kernels skip."""

IS_ROW: Final = 1
"""Flag of a real row; one without it is padding."""

IS_FILTERED: Final = 2
"""Flag of a row with top-k, top-p or min-p."""

IS_PENALIZED: Final = 4
"""Flag of a row with repetition, presence or frequency penalty."""

RECORD_WORDS: Final = ROW_RECORD.itemsize // 4
"""Words of 32 bits in a record."""


def _word_of(field: str) -> tl.constexpr:
    assert ROW_RECORD.fields is not None, "a record has fields"
    return tl.constexpr(ROW_RECORD.fields[field][1] // 4)


FLAGS = _word_of("flags")
SLOT = _word_of("slot")
TEMPERATURE = _word_of("temperature")
SAMPLE_INDEX = _word_of("sample_index")
NOISE_SEED = _word_of("noise_seed")
TOP_P = _word_of("top_p")
TOP_K = _word_of("top_k")
LOG_MIN_P = _word_of("log_min_p")
REPETITION_PENALTY = _word_of("repetition_penalty")
PRESENCE_PENALTY = _word_of("presence_penalty")
FREQUENCY_PENALTY = _word_of("frequency_penalty")
_WORDS = tl.constexpr(RECORD_WORDS)


@triton.jit
def record_of(records_ptr, row):
    """Return the pointer to a row's record, of int32 words."""
    return records_ptr + row * _WORDS


@triton.jit
def load_int(record_ptr, word: tl.constexpr):
    """Load an int32 field of a record."""
    return tl.load(record_ptr + word)


@triton.jit
def load_float(record_ptr, word: tl.constexpr):
    """Load a float32 field of a record."""
    return tl.load(record_ptr + word).to(tl.float32, bitcast=True)


@triton.jit
def load_word(record_ptr, word: tl.constexpr):
    """Load a uint32 field of a record."""
    return tl.load(record_ptr + word).to(tl.uint32, bitcast=True)


@triton.jit
def load_double(record_ptr, word: tl.constexpr):
    """Load a float64 field of a record, low word first."""
    low = load_word(record_ptr, word).to(tl.uint64)
    high = load_word(record_ptr, word + 1).to(tl.uint64)
    return (low | (high << 32)).to(tl.float64, bitcast=True)


@triton.jit
def is_wanted(record_ptr, is_active_ptr, row, flag: tl.constexpr):
    """Say whether a row has a flag and is active; without `is_active_ptr` every row is."""
    wanted = (load_int(record_ptr, FLAGS) & flag) != 0
    if is_active_ptr is not None:
        wanted = wanted & (tl.load(is_active_ptr + row) != 0)
    return wanted
