"""What an engine's process tells the one that started it, a JSON object a line.

Plain values only: both sides are nanobatch, but nothing heavier has to be loaded to read them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from nanobatch.bench.hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where an engine runs.

    Attributes:
        hardware: The device.
        dtype: Data type that the run has there, never `auto`.
        versions: Of the libraries that matter, by name; those that are installed.
    """

    hardware: Hardware
    dtype: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine is ready."""

    engine_version: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One measured run of a workload.

    Attributes:
        seconds: From handing over the prompts to having the last token on the host.
        num_output_tokens: Tokens generated.
        num_prefill_tokens: Prompt tokens computed, what preemption recomputed included.
        num_cached_tokens: Prompt tokens taken from the prefix cache.
    """

    workload: str
    seconds: float
    num_output_tokens: int
    num_prefill_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """All runs of one kernel, or of one operation on a CPU, in a profile."""

    name: str
    num_calls: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a device did in a window of a run.

    Attributes:
        trace: File that Chrome's tracing and Perfetto show.
        window_s: Length of the window.
        idle_share: Share of it in which the GPU ran nothing; None on a CPU.
        host_gap_share: The part of that in gaps so long that the GPU waited for the host.
        kernels: Those that took longest, with their shares of all kernels' time.
    """

    workload: str
    trace: str
    window_s: float
    idle_share: float | None
    host_gap_share: float | None
    kernels: tuple[KernelTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """How many tokens had been generated when, in a run of its own."""

    workload: str
    seconds: Sequence[float]
    num_tokens: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An error that nanobatch raised on purpose; `error` is the name of its class."""

    error: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Everything was done."""


Event = Machine | Loaded | Repeat | Profile | Timeline | Failed | Finished
OnEvent = Callable[[Event], None]

_FLAT_KINDS = {kind.__name__: kind for kind in (Loaded, Repeat, Timeline, Failed, Finished)}


def encode_event(event: Event) -> str:
    """Return an event as one line of JSON, without its end."""
    return json.dumps({"kind": type(event).__name__, **asdict(event)})


def decode_event(line: str) -> Event:
    """Return the event that a line holds."""
    values = json.loads(line)
    kind = values.pop("kind")
    if kind == "Machine":
        return Machine(**{**values, "hardware": Hardware(**values["hardware"])})
    if kind == "Profile":
        kernels = tuple(KernelTime(**kernel) for kernel in values["kernels"])
        return Profile(**{**values, "kernels": kernels})
    event: Event = _FLAT_KINDS[kind](**values)
    return event
