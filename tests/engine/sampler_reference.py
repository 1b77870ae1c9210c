"""Random sampling requests, and what they sample, in plain Python one token at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nanobatch.engine.sequence import SlotAssignment
from nanobatch.request import SamplingParams

VOCAB_SIZE = 61
EOS = 2


def assignment(
    slot: int,
    params: SamplingParams,
    *,
    seed: int = 0,
    sample: int = 0,
    prompt: Sequence[int] = (5, 6, 7),
    output: Sequence[int] = (),
    eos: tuple[int, ...] = (EOS,),
) -> SlotAssignment:
    return SlotAssignment(
        slot=slot,
        params=params,
        noise_seed=seed,
        sample_index=sample,
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        output_token_ids=np.array(output, dtype=np.int32),
        eos_token_ids=eos,
    )


def random_params(random: np.random.Generator) -> SamplingParams:
    """Parameters of which each is on in a part of the draws."""

    def maybe(value: Any, default: Any) -> Any:
        return value if random.random() < 0.4 else default

    return SamplingParams(
        temperature=maybe(0.0, float(random.uniform(0.3, 2.0))),
        top_p=maybe(float(random.uniform(0.1, 1.0)), 1.0),
        top_k=maybe(int(random.integers(1, 20)), None),
        min_p=maybe(float(random.uniform(0.0, 0.3)), 0.0),
        repetition_penalty=maybe(float(random.uniform(0.5, 2.0)), 1.0),
        presence_penalty=maybe(float(random.uniform(-2.0, 2.0)), 0.0),
        frequency_penalty=maybe(float(random.uniform(-1.0, 1.0)), 0.0),
        min_tokens=maybe(int(random.integers(1, 6)), 0),
        logit_bias=maybe(((4, 3.5), (EOS, 2.0), (9, -100.0), (4, 1.0)), ()),
    )


def random_assignment(slot: int, random: np.random.Generator) -> SlotAssignment:
    return assignment(
        slot,
        random_params(random),
        seed=int(random.integers(0, 2**64, dtype=np.uint64)),
        sample=int(random.integers(0, 4)),
        prompt=random.integers(0, VOCAB_SIZE, random.integers(1, 9)).tolist(),
        output=random.integers(0, VOCAB_SIZE, random.integers(0, 9)).tolist(),
    )


def reference_noise(seed: int, sample_index: int, position: int, token_id: int) -> float:
    """Philox4x32-10 on Python integers, from the paper."""
    c = [token_id // 4, position, sample_index, 0]
    k = [seed % 2**32, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 % 2**32, (p0 >> 32) ^ c[3] ^ k[1], p0 % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return -math.log(-math.log1p(-(c[token_id % 4] + 0.5) * 2.0**-32))


def reference_logits(given: SlotAssignment, logits: list[float]) -> list[float]:
    """Logits after bias, bans, penalties, temperature and filters, one token at a time."""
    params, output = given.params, given.output_token_ids.tolist()
    for token_id, bias in params.logit_bias:
        logits[token_id] += bias
    if len(output) < params.min_tokens:
        for token_id in given.eos_token_ids:
            logits[token_id] = -math.inf
    for token_id in set(given.prompt_token_ids.tolist() + output):
        penalty = params.repetition_penalty
        logits[token_id] *= 1 / penalty if logits[token_id] > 0 else penalty
    for token_id in set(output):
        logits[token_id] -= params.presence_penalty
        logits[token_id] -= params.frequency_penalty * output.count(token_id)
    if params.is_greedy:
        return logits
    logits = [logit / params.temperature for logit in logits]
    floor = max(logits) + math.log(params.min_p or 1e-300)
    logits = [logit if logit >= floor else -math.inf for logit in logits]
    floor = sorted(logits)[-(params.top_k or VOCAB_SIZE)]
    logits = [logit if logit >= floor else -math.inf for logit in logits]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    mass = 0.0
    for token_id in sorted(range(VOCAB_SIZE), key=lambda i: (-logits[i], i)):
        if mass >= params.top_p * sum(weights):
            logits[token_id] = -math.inf
        mass += weights[token_id]
    return logits


def reference_token(given: SlotAssignment, logits: list[float]) -> int:
    scores = reference_logits(given, list(logits))
    if not given.params.is_greedy:
        position = len(given.prompt_token_ids) + len(given.output_token_ids)
        for token_id in range(VOCAB_SIZE):
            scores[token_id] += reference_noise(
                given.noise_seed, given.sample_index, position, token_id
            )
    return scores.index(max(scores))
