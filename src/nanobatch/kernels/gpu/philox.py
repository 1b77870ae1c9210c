"""The noise of `kernels.philox` inside Triton kernels: exact, and a fast approximation of it.

Knows how a counter becomes Gumbel noise; does not know logits, rows or memory. Keys, counters and
every bit of the exact noise are those of the torch and numpy versions. A kernel that calls
`exact_gumbel` must be launched with `enable_fp_fusion=False`: a fused multiply-add rounds once
where the reference rounds twice.

Float64 logarithms of a whole vocabulary would cost ten times what reading its logits does. So the
draw ranks ids by `approximate_gumbel`, a few float32 instructions and two hardware logarithms
within `NOISE_ERROR` of the exact noise, skips what `gumbel_bound` rules out before that, and asks
for exact noise only where the approximation cannot tell two ids apart.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

MAX_NOISE = tl.constexpr(22.875)
"""Above any noise; see `kernels.philox.MAX_GUMBEL_NOISE`."""

NOISE_ERROR = tl.constexpr(1e-5)
"""Bound of |approximate - exact noise|, twice the worst found over edges and random words.

The hardware's lg2 is within 2**-22 (relative outside (0.5, 2)); noise is at most 33 log(2), which
makes 5.5e-6 of it, and the error of the exponential number below adds less than 1e-6.
"""

_IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

_MULTIPLIER_0 = tl.constexpr(0xD2511F53)
_MULTIPLIER_1 = tl.constexpr(0xCD9E8D57)
_KEY_STEP_0 = tl.constexpr(0x9E3779B9)
_KEY_STEP_1 = tl.constexpr(0xBB67AE85)
_NUM_ROUNDS = tl.constexpr(10)

_UNIT = tl.constexpr(2.0**-32)
_EIGHTH = tl.constexpr(2**29)
_LOG_2 = tl.constexpr(0.6931471805599453)
_MANTISSA_BITS = tl.constexpr(52)
_SQRT_HALF_BITS = tl.constexpr(0x3FE6A09E667F3BCD)


@triton.jit
def _wide_product(word, multiplier):
    """Multiply 32-bit words into their high and low half.

    In assembly because the compiler, left to itself, often multiplies twice: once for each half.
    """
    if _IS_INTERPRETED:
        product = word.to(tl.uint64) * multiplier
        return (product >> 32).to(tl.uint32), product.to(tl.uint32)
    else:  # noqa: RET505 - Triton compiles what follows a return
        return tl.inline_asm_elementwise(
            "{.reg .u64 p; mul.wide.u32 p, $2, $3; mov.b64 {$1, $0}, p;}",
            "=r,=r,r,r",
            [word, tl.full([], multiplier, tl.uint32)],
            dtype=(tl.uint32, tl.uint32),
            is_pure=True,
            pack=1,
        )


@triton.jit
def philox_words(groups, position, sample, seed_low, seed_high):
    """Run Philox4x32-10 for some groups of four vocabulary ids of one row.

    What depends on the row alone stays scalar: of the first two rounds' four multiplications the
    compiler repeats two for each group.

    Args:
        groups: Tensor of uint32 vocabulary ids // 4.
        position: Scalar uint32, as are all that follow.
        sample: Sample index.
        seed_low: Low word of the seed.
        seed_high: High word of the seed.

    Returns:
        Four uint32 tensors shaped like `groups`; word j is that of id 4 * group + j.
    """
    c0, c1, c2, c3 = groups, position, sample, position ^ position
    k0, k1 = seed_low, seed_high
    for _ in tl.static_range(_NUM_ROUNDS):
        high0, low0 = _wide_product(c0, _MULTIPLIER_0)
        high1, low1 = _wide_product(c2, _MULTIPLIER_1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + _KEY_STEP_0).to(tl.uint32)
        k1 = (k1 + _KEY_STEP_1).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def gumbel_bound(words):
    """Bound noise from above in float32: it is at most -log(u), as -log(1 - u) is at least u."""
    return (32.0 - _fast_log2(words.to(tl.float32) + 0.5)) * _LOG_2 + NOISE_ERROR


@triton.jit
def approximate_gumbel(words):
    """Compute -log(-log(1 - u)), u = (word + 1/2) * 2**-32, in float32 within `NOISE_ERROR`.

    Below u = 1/8, where 1 - u would lose what matters, -log(1 - u) is a series, u + u**2 / 2 + ...;
    above, 1 - u comes from the word's complement, which is exact.
    """
    uniform = (words.to(tl.float32) + 0.5) * _UNIT
    series = tl.full(uniform.shape, 1 / 7, tl.float32)
    for power in tl.static_range(6, 0, -1):
        series = series * uniform + 1 / power
    complement = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * _UNIT
    exponential = tl.where(words < _EIGHTH, series * uniform, _fast_log2(complement) * -_LOG_2)
    return _fast_log2(exponential) * -_LOG_2


@triton.jit
def exact_gumbel(words):
    """Compute the noise of `kernels.philox`, bit for bit: float64, rounded to float32."""
    uniform = (words.to(tl.float64) + 0.5) * _UNIT
    return (-_log(-_log(1.0 - uniform))).to(tl.float32)


@triton.jit
def _fast_log2(values):
    """Take the hardware's logarithm, which the interpreter has none of."""
    if _IS_INTERPRETED:
        return tl.log2(values)
    else:  # noqa: RET505 - Triton compiles what follows a return
        return libdevice.fast_log2f(values)


@triton.jit
def _log(values):
    """Take the float64 logarithm with the operations of `kernels.philox._log`, in their order."""
    bits = values.to(tl.int64, bitcast=True)
    exponents = (bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
    mantissas = (bits - (exponents << _MANTISSA_BITS)).to(tl.float64, bitcast=True)
    ratios = (mantissas - 1.0) / (mantissas + 1.0)
    squares = ratios * ratios
    series = tl.full(squares.shape, 1.0 / 19, tl.float64)
    for power in tl.static_range(17, 0, -2):
        series = series * squares + (1.0 / power)
    return exponents.to(tl.float64) * _LOG_2 + 2.0 * ratios * series
