# Two commands matter: `make demo` shows the product at work, `make test` passes every test.
# Both install what they need; what only root can install they name, with the command.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:

VENV ?= .venv
BIN := $(VENV)/bin
COMPILED := $(wildcard otel_bridge/_native/src/*.rs otel_bridge/_native/src/*/*.rs otel_bridge/_native/Cargo.*) \
	setup.py $(wildcard otel_bridge/context/src/*) $(wildcard bpf/*.c bpf/*.h bpf/common/*)
CARGO_MANIFEST := otel_bridge/_native/Cargo.toml

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | column -t -s '|'

.PHONY: demo
demo: setup collector  ## a real engine, three real clients, a real Collector, and the bridge between (ARGS=--keep stays up)
	@$(BIN)/python -m demo $(ARGS)

.PHONY: test
test: setup collector lint rust  ## lint, types, import contract, Rust, and every Python test
	@$(BIN)/pytest $(ARGS)

.PHONY: lint
lint: setup  ## style, strict types, who may import whom
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

.PHONY: rust
rust: setup  ## the native crate: format, clippy, tests, bounded fuzzing
	@tools/cargo fmt --manifest-path $(CARGO_MANIFEST) --check
	tools/cargo clippy --quiet --manifest-path $(CARGO_MANIFEST) --all-targets -- -D warnings
	tools/cargo test --quiet --manifest-path $(CARGO_MANIFEST)

.PHONY: bench
bench: setup collector  ## every benchmark; figures go to tests/bench/results.json
	@$(BIN)/python -m tests.bench $(ARGS)

.PHONY: bench-join
bench-join: setup  ## kernel events caused by known requests, counted on their spans; what probes cost (needs root)
	@$(BIN)/python -m tests.bench.join $(ARGS)

.PHONY: bench-breaker
bench-breaker: setup  ## trips of an overloaded engine, from spans to refused connections and back; goodput (needs root, nginx)
	@$(BIN)/python -m tests.bench.breaker $(ARGS)

.PHONY: dashboards
dashboards: setup  ## build dashboards/generated (ARGS=--check only looks)
	@$(BIN)/python -m dashboards.build $(ARGS)

.PHONY: wheel
wheel: setup  ## build a wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation

.PHONY: collector
collector:  ## the upstream Collector, built once and cached outside the tree
	@collector-config/build.sh

.PHONY: lock
lock: setup  ## write requirements.lock from what is installed now
	@$(BIN)/pip freeze --exclude-editable --exclude otel-bridge > requirements.lock

.PHONY: setup
setup: $(VENV)/.installed  ## the virtual environment with everything in it

$(VENV)/.installed: pyproject.toml requirements.lock tools/setup $(COMPILED)
	@tools/setup $(VENV)
	touch $@

.PHONY: clean
clean:  ## remove what was built here (the Collector's cache stays)
	@rm -rf $(VENV) build dist *.egg-info otel_bridge/_native/target otel_bridge/_native/*.so .demo
