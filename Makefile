# What a clone can be asked to do. Every target first sets up .venv if it must.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# The environment whose answers ours are compared with.
TENSORFLOW_PYTHON ?= .venv-tensorflow/bin/python

DOCKER ?= docker
BASE_IMAGE ?= python:3.11-slim-bookworm

# The first of these that runs and is new enough.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo $$python && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster compose-test check answers coverage-table bench \
	wheels images format protos clean

help: ## List these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s  %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED) ## Train a recommender on two servers and two workers.
	$(BIN)/stratagem run --ps 2 --workers 2 examples/movielens.py

test: $(INSTALLED) ## Run the tests, but for those of `test-cluster`.
	$(BIN)/pytest --numprocesses auto --dist loadfile -m "not cluster and not compose"

test-cluster: $(INSTALLED) ## Run the tests that take clusters of processes, or long.
	$(BIN)/pytest --numprocesses auto --dist loadfile -m cluster

compose-test: $(INSTALLED) ## Train in containers, killing some; starts an engine if it must.
	$(BIN)/pytest -m compose --capture=no --timeout=1500 tests/compose

check: $(INSTALLED) ## Lint, type-check, and see that tests can fail.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint proto
	$(BIN)/python proto/compile.py --check
	$(BIN)/python -m tests.deploy.manifests.check
# A test that passes without what it is about would never fail. Half of the time these
# tests wait for what has been taken away.
	$(BIN)/pytest --without-rows --numprocesses 4 --quiet

answers: $(TENSORFLOW_PYTHON) ## Record what TensorFlow answers to the scenarios.
	TF_CPP_MIN_LOG_LEVEL=3 $(TENSORFLOW_PYTHON) -m tests.differential.record

coverage-table: $(INSTALLED) ## Write which tests show what of the API.
	$(BIN)/python -m tests.spec.coverage

bench: $(INSTALLED) $(TENSORFLOW_PYTHON) ## Measure beside physical limits and peers.
	$(BIN)/python -m benchmarks transfer
	$(BIN)/python -m benchmarks scheduling --peers tensorflow \
		--tensorflow-python $(TENSORFLOW_PYTHON)

format: $(INSTALLED) ## Format the code and fix what the linter can.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheels: $(INSTALLED) ## Collect what images are made of in build/wheels.
	$(PIP) wheel --constraint constraints.txt --wheel-dir build/wheels ".[examples,kubernetes]"
	$(PIP) wheel --constraint constraints.txt --wheel-dir build/wheels --no-deps recbole

images: wheels deploy/compose/token ## Build the images of servers and workers.
	for target in server worker; do \
	    $(DOCKER) build --file deploy/docker/Dockerfile --build-arg BASE_IMAGE=$(BASE_IMAGE) \
	        --target $$target --tag stratagem-$$target . || exit; \
	done

# Readable for the users of containers; only this folder hides it from those of the host.
deploy/compose/token:
	python3 -c "import secrets; print(secrets.token_hex())" > $@
	chmod 444 $@

protos: $(INSTALLED) ## Compile the .proto files.
	$(BIN)/python proto/compile.py

clean: ## Remove caches, builds and results, but no environment.
	rm -rf build dist runs .*_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing into $(VENV); PyTorch takes some minutes the first time."
	$(PIP) install --constraint constraints.txt --editable ".[dev,examples]"
# For its MovieLens files alone, so without the libraries that its code needs.
	$(PIP) install --constraint constraints.txt --no-deps recbole
	@touch $@

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Install Python 3.10 or newer first." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

.venv-tensorflow/bin/python:
	@test -n "$(PYTHON)" || { echo "Install Python 3.10 or newer first." >&2; exit 1; }
	$(PYTHON) -m venv .venv-tensorflow
	.venv-tensorflow/bin/pip install tensorflow-cpu==2.21.0 || { rm -rf .venv-tensorflow; exit 1; }
