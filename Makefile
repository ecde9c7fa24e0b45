# Every target does its own set-up. `make` alone lists them.

PY ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
ARGS ?=
# One worker for each core; what shares a fixture stays with one of them.
WORKERS ?= auto
# A worker that was lost is not replaced, for xdist then waits for ever.
SPREAD := -n $(WORKERS) --maxprocesses 8 --max-worker-restart 0 --no-loadscope-reorder
UNIT := -m "not gpu and not slow and not e2e"
# A machine whose python already has torch needs no set-up: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
GPU_READY := $(if $(filter $(BIN)/python,$(GPU_PYTHON)),.venv/dev-ready)
GPU_TESTS ?= tests/kernels $(wildcard tests/gpu)
CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/loratorio
COMPAT ?= $(CACHE)/compat
CLIENTS ?= $(CACHE)/clients
WHEEL ?= $(CACHE)/wheel
FOCUS ?= $(CACHE)/focus
FOCUS_PYTHON ?= python3.12
DEMO := .data/demo/smollm2-135m-instruct
# Tests start hundreds of processes: without kept bytecode each compiles all our modules anew.
export PYTHONDONTWRITEBYTECODE :=

# What these run takes as long as it is told to.
test-soak test-chaos test-compat test-clients test-wheel test-ray test-focus: export PYTEST_TIMEOUT = 0

.DEFAULT_GOAL := help
.PHONY: help setup serve demo-speculators test check lint test-gpu fuzz test-soak test-chaos soak-gateway test-compat test-clients test-ray test-focus test-wheel bench-cpu bench-dashboard bench-gpu report clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[36m%-17s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  Arguments are passed with ARGS, e.g. make serve ARGS="--port 9000 --open"'

setup: .venv/dev-ready ## make .venv with everything development needs

serve: .venv/run-ready ## serve the demo model and its adapters (Ctrl-C stops)
	@$(BIN)/loratorio serve --demo $(ARGS)

demo-speculators: .venv/dev-ready ## train what drafts for the demo base, into .data/demo/speculators (a quarter of an hour)
	test -f $(DEMO)/build_report.json || $(BIN)/python -m engine demo $(DEMO)
	$(BIN)/python -m engine.demo.speculators $(DEMO) .data/demo/speculators \
		--leave-out tests/e2e/json_prompts.txt $(ARGS)

test: .venv/dev-ready ## run every test that needs no GPU
	@status=0; \
	$(BIN)/python -m pytest $(SPREAD) -m "not gpu and not e2e" $(ARGS) || status=$$?; \
	$(BIN)/python -m pytest $(SPREAD) tests/e2e $(ARGS) || status=$$?; \
	TRITON_INTERPRET=1 $(BIN)/python -m pytest $(SPREAD) tests/kernels -m "not gpu" || status=$$?; \
	exit $$status

check: lint ## format, lint, types, imports and unit tests: before every commit
	$(BIN)/python -m pytest -q $(SPREAD) $(UNIT) tests/architecture tests/gateway tests/adapters tests/engine tests/billing tests/deploy

lint: .venv/dev-ready ## format, lint, types and imports, without tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-soak: .venv/dev-ready ## kill gateway and engine 400 times under load and batches, checking the books (KILLS, SEED)
	KILLS=$(or $(KILLS),100) $(BIN)/python -m pytest tests/faults/test_kills.py tests/faults/test_batches.py \
		tests/faults/test_handoff_kills.py $(ARGS)

test-chaos: .venv/dev-ready ## kill and hang gateways, engines, Redis and Postgres under load, replace each (ROUNDS, SEED, ROLLS)
	ROUNDS=$(or $(ROUNDS),100) ROLLS=$(or $(ROLLS),6) $(BIN)/python -m pytest tests/faults/test_chaos.py \
		tests/faults/test_rolling.py $(ARGS)

soak-gateway: .venv/dev-ready ## send 300,000 requests of all kinds through a gateway: does its memory stay flat? (REQUESTS)
	$(BIN)/python -m bench.gateway.soak --requests $(or $(REQUESTS),300000) $(ARGS)

fuzz: .venv/dev-ready ## send a million inputs to every parser of uploads (INPUTS, SEED)
	$(BIN)/python -m tests.fuzz.run --inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),1)

test-gpu: $(GPU_READY) ## run every kernel test and checkpoints of real shapes on a CUDA device
	$(GPU_PYTHON) -m pytest $(GPU_TESTS) $(ARGS)

test-compat: .venv/dev-ready ## have the original packers write anew what our loader is held to
	$(BIN)/python -m tests.compat.environments $(COMPAT)
	COMPAT_WRITTEN=$(COMPAT)/written $(BIN)/python -m pytest tests/compat $(ARGS)

test-clients: .venv/dev-ready ## have an older openai, LangChain, lm-eval and schemathesis call a real server
	CLIENTS=$(CLIENTS) $(BIN)/python -m pytest tests/clients $(ARGS)

test-wheel: .venv/dev-ready ## build the wheel, install it in a fresh environment, and serve from there
	WHEEL=$(WHEEL) $(BIN)/python -m pytest tests/release $(ARGS)

test-ray: .venv/dev-ready ## place engines on a Ray cluster of several nodes on this machine
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[ray]'
	RAY_CLUSTER=1 $(BIN)/python -m pytest tests/ray $(ARGS)

test-focus: .venv/dev-ready ## hold exported bills to FOCUS's own validator (FOCUS_PYTHON: 3.12 or newer)
	FOCUS=$(FOCUS) FOCUS_PYTHON=$(FOCUS_PYTHON) $(BIN)/python -m pytest tests/billing/test_official.py $(ARGS)

bench-cpu: .venv/dev-ready ## measure serving on this CPU, into bench/results
	$(BIN)/python -m bench.cpu $(ARGS)

bench-dashboard: .venv/dev-ready ## measure each page over millions of roll-ups, on Postgres and SQLite, into bench/results
	$(BIN)/python -m bench.dashboard --store $(ARGS)
	$(BIN)/python -m bench.dashboard --sqlite --store $(ARGS)

bench-gpu: $(GPU_READY) ## measure kernels and steps on this GPU, into bench/results
	$(GPU_PYTHON) -m engine bench all $(ARGS)

report: .venv/dev-ready ## write the numbers of bench/results into README.md and docs/numbers.md
	$(BIN)/python -m bench.report

clean: ## remove the virtual environment, caches and the demo's data
	rm -rf .venv .data .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PY)" || { echo "Python 3.11 or newer is needed; name it with PY=..." >&2; exit 1; }
	$(PY) -m venv .venv

.venv/run-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[gateway,engine]'
	@touch $@

.venv/dev-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[gateway,engine,s3,train,dev]'
	@touch $@ .venv/run-ready
