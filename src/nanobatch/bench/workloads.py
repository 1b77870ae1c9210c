"""The token-id workloads that every engine is measured on.

A workload is prompts of token ids and exact output lengths (end-of-sequence tokens are ignored), so
that every engine does the same work. The named ones are drawn from fixed seeds: the same name means
the same ids on every machine. Knows no model and no engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from random import Random

from nanobatch.errors import ConfigError

TokenIds = tuple[int, ...]

MAX_TOKEN_ID = 10_000
"""Prompts are drawn from the ids 0 to this, which every real vocabulary has."""
DEFAULT_TEMPERATURE = 0.6
CUSTOM_NAME = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts, and how many tokens each is to be continued by.

    Attributes:
        name: What results call it.
        prompts: Token ids of each prompt.
        output_lens: Tokens to generate for each prompt.
        temperature: At which tokens are drawn; 0 takes the most likely one.
    """

    name: str
    prompts: tuple[TokenIds, ...]
    output_lens: tuple[int, ...]
    temperature: float = DEFAULT_TEMPERATURE

    def __post_init__(self) -> None:
        assert len(self.prompts) == len(self.output_lens), "one output length per prompt"

    @property
    def num_prompts(self) -> int:
        """Number of rows."""
        return len(self.prompts)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """Tokens that are generated."""
        return sum(self.output_lens)

    @property
    def max_sequence_len(self) -> int:
        """Tokens of the longest prompt with its output."""
        lens = zip(self.prompts, self.output_lens, strict=True)
        return max(len(prompt) + output_len for prompt, output_len in lens)

    def within_vocabulary(self, vocab_size: int) -> "Workload":
        """Return the workload with ids that a small vocabulary has; what was equal stays equal."""
        if all(max(prompt) < vocab_size for prompt in self.prompts):
            return self
        prompts = tuple(tuple(i % vocab_size for i in prompt) for prompt in self.prompts)
        return replace(self, prompts=prompts)


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths drawn uniformly from both bounds and what lies between."""

    low: int
    high: int

    @classmethod
    def parse(cls, flag: str, text: str) -> "LengthRange":
        """Read a fixed length such as `512`, or a range such as `100:1024`.

        Raises:
            ConfigError: It is neither.
        """
        low, is_range, high = text.partition(":")
        bounds = [part.replace("_", "") for part in (low, high if is_range else low)]
        if not all(part.isascii() and part.isdecimal() for part in bounds):
            raise ConfigError(
                f"{flag} is {text!r}", hint=f"give a length or a range: {flag} 512, {flag} 100:1024"
            )
        lengths = cls(*map(int, bounds))
        if not 1 <= lengths.low <= lengths.high:
            raise ConfigError(f"{flag} is {text}; lengths go upwards from 1")
        return lengths

    def draw(self, random: Random) -> int:
        """Return a length."""
        return random.randint(self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomShape:
    """A workload of one's own.

    Attributes:
        num_prompts: Rows.
        input_lens: Tokens of a prompt after its prefix.
        output_lens: Tokens generated.
        prefix_len: Tokens of each shared beginning; 0 shares nothing.
        num_prefixes: Different beginnings, dealt out in turn.
        seed: Of ids and lengths.
    """

    num_prompts: int = 256
    input_lens: LengthRange = LengthRange(512, 512)
    output_lens: LengthRange = LengthRange(128, 128)
    prefix_len: int = 0
    num_prefixes: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--num-prompts", self.num_prompts, 1),
            ("--prefix-len", self.prefix_len, 0),
            ("--num-prefixes", self.num_prefixes, 1),
        ):
            if value < least:
                raise ConfigError(f"{flag} is {value}; it must be at least {least}")


def custom_workload(shape: CustomShape) -> Workload:
    """Draw a workload of a given shape."""
    random = Random(shape.seed)
    prefixes = [_ids(random, shape.prefix_len) for _ in range(shape.num_prefixes)]
    prompts = tuple(
        prefixes[row % shape.num_prefixes] + _ids(random, shape.input_lens.draw(random))
        for row in range(shape.num_prompts)
    )
    output_lens = tuple(shape.output_lens.draw(random) for _ in prompts)
    return Workload(name=CUSTOM_NAME, prompts=prompts, output_lens=output_lens)


def named_workload(name: str) -> Workload:
    """Return one of `WORKLOADS`.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in WORKLOADS:
        closest = get_close_matches(name, WORKLOADS, n=1)
        known = f"workloads are {', '.join(WORKLOADS)}, or a file of prompts"
        raise ConfigError(
            f"no such workload: {name}", hint=f"did you mean {closest[0]}?" if closest else known
        )
    return WORKLOADS[name]()


def _nano(name: str = "nano", num_prompts: int = 256) -> Workload:
    """Return nano-vLLM's benchmark: lengths in and out uniform from 100 to 1,024."""
    random = Random(0)
    prompts = tuple(_ids(random, random.randint(100, 1024)) for _ in range(num_prompts))
    output_lens = tuple(random.randint(100, 1024) for _ in prompts)
    return Workload(name=name, prompts=prompts, output_lens=output_lens)


def _nano4() -> Workload:
    """Return nano with four times the rows: a queue that is longer than the batch."""
    return _nano("nano4", 1024)


def _shared_prefix() -> Workload:
    """Return one system prompt of 2,048 tokens before 1,000 tails; short answers."""
    random = Random(1)
    head = _ids(random, 2048)
    prompts = tuple(head + _ids(random, 100) for _ in range(1000))
    return Workload(name="shared_prefix", prompts=prompts, output_lens=(128,) * len(prompts))


def _many_prefixes() -> Workload:
    """Return 50 system prompts before 40 tails each, shuffled: sharing needs another order."""
    random = Random(2)
    heads = [_ids(random, 1024) for _ in range(50)]
    prompts = [head + _ids(random, 64) for head in heads for _ in range(40)]
    random.shuffle(prompts)
    return Workload(name="many_prefixes", prompts=tuple(prompts), output_lens=(64,) * len(prompts))


def _three_level() -> Workload:
    """Return a tree: a system prompt, 20 sets of examples, 50 documents each, 4 questions each."""
    random = Random(5)
    system = _ids(random, 1000)
    prompts = [
        examples + document + _ids(random, 50)
        for examples in [system + _ids(random, 500) for _ in range(20)]
        for document in [_ids(random, 300) for _ in range(50)]
        for _ in range(4)
    ]
    random.shuffle(prompts)
    return Workload(name="three_level", prompts=tuple(prompts), output_lens=(64,) * len(prompts))


def _short_prefixes() -> Workload:
    """Return 50 beginnings of 64 tokens before 20 rows each, shuffled: too short to gain much."""
    random = Random(6)
    heads = [_ids(random, 64) for _ in range(50)]
    prompts = [head + _ids(random, 200) for head in heads for _ in range(20)]
    random.shuffle(prompts)
    return Workload(
        name="short_prefixes", prompts=tuple(prompts), output_lens=(128,) * len(prompts)
    )


def _prefill() -> Workload:
    """Return classification: 1,000 prompts of 900 to 1,100 tokens, one token out."""
    random = Random(3)
    prompts = tuple(_ids(random, random.randint(900, 1100)) for _ in range(1000))
    return Workload(name="prefill", prompts=prompts, output_lens=(1,) * len(prompts))


def _cpu() -> Workload:
    """Return what a laptop can do: 64 prompts of 145 tokens, the first 110 shared; greedy."""
    random = Random(4)
    head = _ids(random, 110)
    prompts = tuple(head + _ids(random, 35) for _ in range(64))
    return Workload(name="cpu", prompts=prompts, output_lens=(64,) * len(prompts), temperature=0.0)


def _ids(random: Random, num_tokens: int) -> TokenIds:
    return tuple(random.randint(0, MAX_TOKEN_ID) for _ in range(num_tokens))


WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "nano": _nano,
    "nano4": _nano4,
    "shared_prefix": _shared_prefix,
    "many_prefixes": _many_prefixes,
    "three_level": _three_level,
    "short_prefixes": _short_prefixes,
    "prefill": _prefill,
    "cpu": _cpu,
}
"""How each named workload is made."""
