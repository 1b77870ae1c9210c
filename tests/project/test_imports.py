"""Imports point down: who may know whom, and where the heavy libraries may be imported."""

from graphlib import TopologicalSorter

import pytest

from tests.project.source_tree import (
    import_graph,
    imported_names,
    module_level_imports,
    parse,
    source_files,
)

LAYERS = (
    ("__main__",),
    ("cli",),
    ("dashboard", "bench"),
    ("job", "llm"),
    ("io", "engine"),
    ("models",),
    ("layers",),
    ("kernels", "parallel"),
    ("job_config",),
    ("config",),
    ("request",),
    ("errors",),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

ENGINE_LAYERS = (
    ("core",),
    ("model_runner",),
    ("torch_runner", "gpu_loading"),
    ("gpu_memory",),
    ("gpu_runner",),
    ("decode_loop",),
    ("device_memory",),
    ("batch", "sampler", "gpu_sampler"),
    ("scheduler",),
    ("block_manager", "prefix_forest"),
    ("forest_node",),
    ("sequence", "tokenizer"),
)
ENGINE_RANKS = {
    f"nanobatch.engine.{name}": rank for rank, names in enumerate(ENGINE_LAYERS) for name in names
}

HEAVY_LIBRARIES = {"torch", "triton", "transformers"}
MODEL_SIDE = (
    "nanobatch.models",
    "nanobatch.layers",
    "nanobatch.kernels",
    "nanobatch.parallel",
    "nanobatch.engine.model_runner",
    "nanobatch.engine.torch_runner",
    "nanobatch.engine.device_memory",
    "nanobatch.engine.sampler",
    "nanobatch.engine.gpu_runner",
    "nanobatch.engine.gpu_memory",
    "nanobatch.engine.gpu_sampler",
    "nanobatch.engine.decode_loop",
    "nanobatch.engine.decode_plans",
    "nanobatch.engine.pending_results",
)
TORCH_FREE = (
    "nanobatch.io",
    "nanobatch.engine.scheduler",
    "nanobatch.engine.block_manager",
    "nanobatch.engine.batch",
    "nanobatch.engine.sequence",
)

MODULES = sorted(source_files())


def layer_of(module: str) -> str:
    return module.split(".")[1]


def is_within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer_of(module) for module in MODULES if module != "nanobatch"} <= RANKS.keys()


@pytest.mark.parametrize("module", [module for module in MODULES if module != "nanobatch"])
def test_module_imports_only_what_lies_below_it(module: str) -> None:
    wrong = {
        target
        for target in import_graph()[module]
        if target == "nanobatch"
        or (
            layer_of(target) != layer_of(module)
            and RANKS[layer_of(target)] <= RANKS[layer_of(module)]
        )
    }
    assert wrong == set()


def test_no_import_cycle_exists_even_through_imports_inside_functions() -> None:
    # A package and its own modules know each other by nature, so packages' own files are left out.
    graph = {
        module: targets
        for module, targets in import_graph().items()
        if source_files()[module].name != "__init__.py"
    }
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) >= set(graph)


def engine_modules_reachable_from(module: str) -> set[str]:
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for target in import_graph()[waiting.pop()]:
            if target.startswith("nanobatch.engine.") and target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


@pytest.mark.parametrize("module", sorted(ENGINE_RANKS.keys() & source_files().keys()))
def test_engine_stage_reaches_only_the_stages_below_it(module: str) -> None:
    wrong = {
        target
        for target in engine_modules_reachable_from(module) & ENGINE_RANKS.keys()
        if ENGINE_RANKS[target] <= ENGINE_RANKS[module]
    }
    assert wrong == set()


@pytest.mark.parametrize("module", [name for name in MODULES if not is_within(name, MODEL_SIDE)])
def test_heavy_libraries_are_not_imported_with_module(module: str) -> None:
    imports = module_level_imports(parse(source_files()[module]))
    assert HEAVY_LIBRARIES & {name.split(".")[0] for name in imports} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if is_within(name, TORCH_FREE)])
def test_files_and_scheduling_know_no_torch_at_all(module: str) -> None:
    imports = imported_names(parse(source_files()[module]))
    assert "torch" not in {name.split(".")[0] for name in imports}
