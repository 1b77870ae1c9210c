"""Builds an engine from its configuration: model, tokenizer, runner, pool, scheduler.

The runner is loaded through a function, so that an engine without torch (tests, a null model)
is put together by exactly the same code.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.core import EngineCore
from nanobatch.engine.deadlines import Clock, Deadlines
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.step_batch import ModelRunner, SizedModelRunner
from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import ConfigError
from nanobatch.models.source import (
    ModelSource,
    read_generation_defaults,
    read_model_config,
    resolve_model,
)

OnProgress = Callable[[float], None]


class LoadedRunner(NamedTuple):
    """A model runner that is ready.

    Attributes:
        runner: The runner.
        num_kv_blocks: Size of its KV pool in blocks.
        device_type: `cpu` or `cuda`, which decides the sizes of steps that are left open.
        max_num_seqs: Most sequences that it runs at once; None goes by the device's type.
    """

    runner: ModelRunner
    num_kv_blocks: int
    device_type: str
    max_num_seqs: int | None = None


LoadRunner = Callable[[EngineConfig, ModelSource, ModelConfig, OnProgress | None], LoadedRunner]


def build_engine(
    config: EngineConfig,
    *,
    source: ModelSource | None = None,
    tokenizer: Tokenizer | None = None,
    load_runner: LoadRunner | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock = time.monotonic,
) -> EngineCore:
    """Load a model and return an engine around it.

    Args:
        config: How to run the model.
        source: The model, when it was resolved before.
        tokenizer: The model's tokenizer, when it was loaded before.
        load_runner: Loads the runner; None loads the torch one.
        on_progress: Called with the share of weights loaded, 0 to 1.
        clock: Monotonic time in seconds, by which sequences are late.

    Raises:
        ConfigError: An option does not fit the model or the machine.
        ModelError: The model cannot be found, is not supported, or its files are damaged.
        EngineError: There is too little memory.
    """
    source = source or resolve_model(config.model)
    model_config = read_model_config(source)
    max_model_len = resolve_max_model_len(config, model_config)
    tokenizer = tokenizer or load_tokenizer(config, source)
    loaded = (load_runner or _load_torch_runner)(config, source, model_config, on_progress)
    step_sizes = config.step_sizes(loaded.device_type)
    scheduler = Scheduler(
        BlockManager(
            loaded.num_kv_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        ),
        max_num_seqs=loaded.max_num_seqs or step_sizes.max_num_seqs,
        max_num_batched_tokens=step_sizes.max_num_batched_tokens,
        prior_output_tokens=config.prior_output_tokens,
    )
    return EngineCore(
        tokenizer=tokenizer,
        scheduler=scheduler,
        runner=loaded.runner,
        limits=EngineLimits(
            max_model_len=max_model_len,
            kv_capacity_tokens=loaded.num_kv_blocks * config.block_size,
            vocab_size=model_config.vocab_size,
            eos_token_ids=eos_token_ids(source, tokenizer, vocab_size=model_config.vocab_size),
            long_prompts=config.long_prompts,
            bos_token_id=tokenizer.bos_token_id,
        ),
        run_seed=config.seed,
        run_ahead=step_sizes.run_ahead,
        num_decode_steps=config.num_decode_steps,
        deadlines=Deadlines(config.row_timeout_s, clock=clock),
    )


def load_tokenizer(config: EngineConfig, source: ModelSource) -> Tokenizer:
    """Load the tokenizer of a model as the configuration asks for it."""
    return Tokenizer.load(
        source,
        chat_template=config.chat_template,
        chat_template_kwargs=config.chat_template_kwargs,
        trust_remote_code=config.trust_remote_code,
    )


def resolve_max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    """Return the longest prompt plus output in tokens.

    Raises:
        ConfigError: More is asked for than the model's context.
    """
    context = model_config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > context:
        raise ConfigError(
            f"max_model_len is {config.max_model_len:,}; the model's context is {context:,}"
        )
    return config.max_model_len or context


def eos_token_ids(source: ModelSource, tokenizer: Tokenizer, *, vocab_size: int) -> tuple[int, ...]:
    """Return every end-of-sequence id: of the model's files and of its tokenizer.

    Ids outside the vocabulary, which some configurations hold, can never be sampled and are left
    out.
    """
    ids = read_generation_defaults(source).eos_token_ids
    if tokenizer.eos_token_id is not None:
        ids = (*ids, tokenizer.eos_token_id)
    return tuple(dict.fromkeys(token_id for token_id in ids if 0 <= token_id < vocab_size))


def _load_torch_runner(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    on_progress: OnProgress | None,
) -> LoadedRunner:
    from nanobatch.engine.model_runner import load_model_runner

    return loaded_runner(
        config, load_model_runner(config, source, model_config, on_progress=on_progress)
    )


def loaded_runner(config: EngineConfig, loaded: tuple[SizedModelRunner, int]) -> LoadedRunner:
    """Say of a torch runner and the size of its pool where they are."""
    from nanobatch.engine.model_runner import resolve_device

    runner, num_kv_blocks = loaded
    return LoadedRunner(
        runner,
        num_kv_blocks,
        device_type=resolve_device(config.device).type,
        max_num_seqs=runner.max_num_seqs,
    )
