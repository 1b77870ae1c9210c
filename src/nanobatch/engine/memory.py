"""How large the KV pool is: arithmetic over bytes, no device.

The pool is what is left of the memory that nanobatch may use once weights and the worst step's
activations are paid for.
"""

from dataclasses import dataclass
from pathlib import Path

from nanobatch.config import GIB, KIB, MIB, EngineConfig, ModelConfig
from nanobatch.errors import EngineError

CPU_MEMORY_SHARE = 0.4
"""Share of the free main memory that the pool takes on CPU, where other processes live too."""

CPU_MAX_POOL_BYTES = 4 * GIB
"""More than this is never needed to keep a CPU busy."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
_CGROUP_STAT = Path("/sys/fs/cgroup/memory.stat")
_RECLAIMABLE = ("active_file", "inactive_file")


def available_main_memory_bytes() -> int:
    """Return the bytes of main memory that this process can still take (Linux).

    The smaller of what the kernel calls available and what the container's limit leaves.
    """
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    available = int(kilobytes) * KIB
    left = _container_memory_bytes()
    return available if left is None else min(available, left)


def _container_memory_bytes() -> int | None:
    """Return what the container's limit leaves (cgroup v2), None where there is no limit.

    Cached files count as used there, the weights just read among them, but the kernel gives them
    up when memory is asked for.
    """
    try:
        limit, used = _CGROUP_LIMIT.read_text().strip(), _CGROUP_USED.read_text().strip()
        stat = dict(line.split() for line in _CGROUP_STAT.read_text().splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    return int(limit) - int(used) + sum(int(stat.get(name, 0)) for name in _RECLAIMABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """What is known of a device's memory once the weights are loaded.

    Attributes:
        available_bytes: Bytes that the KV pool may take.
        weight_bytes: Bytes of weights, for messages.
        activation_bytes: Peak bytes of the worst step, for messages.
    """

    available_bytes: int
    weight_bytes: int
    activation_bytes: int


def resolve_num_kv_blocks(
    config: EngineConfig,
    model_config: ModelConfig,
    *,
    max_num_seqs: int,
    bytes_per_element: int,
    budget: MemoryBudget,
) -> int:
    """Return the number of KV blocks to allocate.

    An explicit `num_kv_blocks` wins over `kv_cache_memory_bytes`, which wins over the budget.
    A pool that every sequence together can never fill is cut to what they can fill.

    Raises:
        EngineError: There is not even memory for one block of tokens.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    block_bytes = model_config.kv_bytes_per_token(bytes_per_element) * config.block_size
    available = config.kv_cache_memory_bytes or budget.available_bytes
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    blocks_per_sequence = -(-max_model_len // config.block_size)
    num_blocks = min(available // block_bytes, blocks_per_sequence * max_num_seqs)
    if num_blocks < 1:
        raise EngineError(
            f"no memory for the KV cache: weights take {budget.weight_bytes / MIB:,.0f} MiB, the "
            f"largest step {budget.activation_bytes / MIB:,.0f} MiB, and one sequence of "
            f"{max_model_len:,} tokens needs {blocks_per_sequence * block_bytes / MIB:,.0f} MiB, "
            f"but {max(available, 0) / MIB:,.0f} MiB are left",
            hint="raise --kv-cache-memory"
            if config.kv_cache_memory_bytes is not None
            else "lower --max-num-batched-tokens or --max-model-len, "
            "or raise --gpu-memory-utilization",
        )
    return num_blocks
