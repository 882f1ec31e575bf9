# What a clone can be asked to do. Every target first sets up .venv if it must.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# Without bytecode, each of hundreds of processes compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# The environments of those whom we are compared with.
export TENSORFLOW_PYTHON ?= .venv-tensorflow/bin/python
export RAY_PYTHON ?= .venv-ray/bin/python
export MXNET_PYTHON ?= .venv-mxnet/bin/python
ALL_PEERS := $(foreach peer,tensorflow torch_rpc ray mxnet,--peers $(peer))

WORKFLOWS := $(wildcard .github/workflows/*.yml)
SHELL_SCRIPTS := .ci/run deploy/docker/engine.sh deploy/slurm/train.sbatch \
	tests/deploy/slurm/srun

# Pages that people write; another one is written by `make coverage-table`.
PAGES := $(filter-out docs/api-coverage.md, \
	$(wildcard *.md docs/*.md docs/*/*.md tests/*/*.md))

DOCKER ?= docker
BASE_IMAGE ?= python:3.11-slim-bookworm
WHEELS ?= build/wheels
HASHED = $(BIN)/python deploy/docker/hashed.py $(WHEELS) --constraint constraints.txt
# Processes of `make test`, each of which takes 13 seconds of a core to load the tests.
TESTERS ?= $(shell expr 1 + "$$(getconf _NPROCESSORS_ONLN)")
# Those of `make test-all`, half of whose time all of them wait for servers.
ALL_TESTERS ?= $(shell expr 2 '*' "$$(getconf _NPROCESSORS_ONLN)")
# Runs of `make simulate`.
SEEDS ?= 1000
# Seconds of `make fuzz`, and what it fuzzes.
SECONDS ?= 60
TARGET ?= all

# The first of these that runs and is new enough.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo $$python && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all simulate fuzz test-cluster test-long chaos-test compose-test netns-test ray-test \
	frameworks-test stores-test optimizers-test trackers-test dashboard-test docs docs-test install-test check lint types collect public-types falsify answers coverage-table bench bench-quick peers dist sbom wheels images certs format protos clean

help: ## List these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s  %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED) ## Train a recommender on two servers and two workers.
	$(BIN)/stratagem run --ps 2 --workers 2 examples/movielens.py

# Threads that wait for a kernel would spin on cores that other processes need.
test test-all test-cluster test-long chaos-test: export OMP_WAIT_POLICY ?= PASSIVE

# Tests that no other target runs.
HERE := not cluster and not long and not chaos and not compose and not dashboard and not install \
	and not netns and not ray and not site
BESIDE := --dist loadfile --no-loadscope-reorder
# A test that hangs in C hears of no other timeout. This one prints all stacks.
ENDING := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

test: $(INSTALLED) ## Run something of everything in minutes; before each commit.
	$(BIN)/pytest --numprocesses $(TESTERS) $(BESIDE) $(ENDING) -m "$(HERE) and not full"
	$(BIN)/pytest --logged-servers --quiet -m "$(HERE) and not full" tests/psserver/exactly_once

test-all: $(INSTALLED) ## Run the tests, but for `test-long` and those that need more; in CI.
	$(BIN)/pytest --numprocesses $(ALL_TESTERS) $(BESIDE) $(ENDING) -m "$(HERE)"
	$(BIN)/pytest --numprocesses $(ALL_TESTERS) $(BESIDE) $(ENDING) --logged-servers --quiet \
	    -m "not cluster and not long" tests/psserver
	@$(MAKE) --no-print-directory test-cluster

test-cluster: $(INSTALLED) ## Run the tests that take clusters of processes, or some time.
# Half of the time these tests wait for processes.
	$(BIN)/pytest --numprocesses 4 $(BESIDE) $(ENDING) --timeout=400 -m "cluster and not long"

test-long: $(INSTALLED) ## Run the tests that train whole programs, or take minutes.
	$(BIN)/pytest --numprocesses 4 $(BESIDE) --timeout=400 -m long

simulate: $(INSTALLED) ## Simulate faults around servers; SEEDS says how many runs.
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

fuzz: $(INSTALLED) ## Have decoders look at hostile bytes for SECONDS; TARGET says which ones.
	$(BIN)/python -m tests.fuzzing $(TARGET) --seconds $(SECONDS)

chaos-test: $(INSTALLED) ## Train while something fails every two seconds.
	$(BIN)/pytest -m chaos --capture=no tests/cluster

compose-test: $(INSTALLED) ## Train in containers, killing some; starts an engine if it must.
	$(BIN)/pytest -m compose --capture=no --timeout=1500 tests/compose

netns-test: $(INSTALLED) ## Train on hosts with networks of their own, one cut off; as root.
	$(BIN)/pytest -m netns --capture=no tests/netns

# TorchRec asks for an FBGEMM for CUDA and for a torchmetrics of its own.
frameworks-test: $(INSTALLED) ## Train programs of Accelerate, Keras, Lightning, Transformers, TorchRec and PyG.
	$(PIP) install --constraint constraints.txt \
	    --editable ".[accelerate,keras,lightning,torch-geometric,transformers]"
	$(PIP) install --constraint constraints.txt --no-deps torchrec fbgemm-gpu-cpu
	$(PIP) install --constraint constraints.txt pyre-extensions pyvers tensordict
	$(BIN)/pytest --timeout=400 tests/client/frameworks tests/examples/test_accelerate_digits.py \
	    tests/examples/test_geometric_digits.py tests/examples/test_keras_movielens.py \
	    tests/examples/test_lightning_digits.py \
	    tests/examples/test_torchrec_clicks.py tests/examples/test_transformers_sentiment.py

# Without cfn-lint and others that the server of S3 does not need. Asked for both at once, pip tries
# older and older versions of s3fs until there is one whose fsspec is missing.
stores-test: $(INSTALLED) ## Save to an S3 server on this machine.
	$(PIP) install --constraint constraints.txt --no-warn-conflicts --editable ".[s3]"
	$(PIP) install --constraint constraints.txt --no-warn-conflicts "moto[s3]" flask flask-cors
	$(BIN)/pytest tests/storage/stores tests/psserver/checkpoints/test_stores.py \
	    tests/client/checkpoints/test_stores.py tests/deploy/checkpoints/test_stores.py \
	    tests/cluster/test_store_kills.py

optimizers-test: $(INSTALLED) ## Train with optimizers of other packages.
	$(PIP) install --constraint constraints.txt --editable ".[optimizers]"
	$(BIN)/pytest tests/client/parameter_server/test_third_party_optimizers.py

# In a folder of their own, since they take newer packages than others here.
trackers-test: $(INSTALLED) ## Log to MLflow and Weights & Biases.
	$(PIP) install --upgrade --target build/trackers mlflow-skinny wandb
	PYTHONPATH=build/trackers $(BIN)/pytest tests/test_observing.py -k tracker

# Of the one for Playwright, only the file that looks for what people cannot use.
dashboard-test: $(INSTALLED) ## Look at the dashboard in Chromium, and take pictures for docs.
	$(PIP) install --constraint constraints.txt "selenium>=4"
	$(PIP) install --constraint constraints.txt --no-deps axe-playwright-python
	$(BIN)/pytest -m dashboard --capture=no --timeout=400 tests/deploy/dashboard

# In environments of its own, with each interpreter that is here; for others, and another PyTorch:
# make install-test PYTHONS="python3.12 /opt/python3.13/bin/python3" TORCH=torch==2.6.0
install-test: $(INSTALLED) ## Train with an installed wheel, on the interpreters PYTHONS.
	PYTHONS="$(PYTHONS)" TORCH="$(TORCH)" \
	    $(BIN)/pytest -m install --capture=no --verbose tests/publishing

DOCS_BUILDER = $(PIP) install --constraint constraints.txt --editable ".[docs]"

docs: $(INSTALLED) ## Build the documentation site in build/docs/site.
	$(DOCS_BUILDER)
	$(BIN)/python -m docs.site

docs-test: $(INSTALLED) ## Build that site, and see that it is whole.
	$(DOCS_BUILDER)
	$(BIN)/pytest -m site tests/site

ray-test: $(INSTALLED) ## Train on a Ray of this machine, killing some of it.
	$(PIP) install --constraint constraints.txt --no-warn-conflicts --editable ".[ray]"
	$(BIN)/pytest -m ray tests/deploy/on_ray

check: $(INSTALLED) ## Lint, type-check, and see that tests can fail.
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target lint types falsify

lint: $(INSTALLED) ## Look at code, pages, imports, protos, manifests and scripts.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mdformat --check $(PAGES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.circles
	$(BIN)/python -m tests.budget
	$(BIN)/buf lint proto
	$(BIN)/python proto/compile.py --check
	$(BIN)/python -m tests.deploy.manifests.check
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)

types: $(INSTALLED) ## Check types.
	$(BIN)/mypy

# It compiles modules once, which on a fresh clone each process of `make test` would do for itself.
collect: $(INSTALLED) ## See that all tests can be loaded.
	$(BIN)/pytest --collect-only -qqq

public-types: $(INSTALLED) ## See that what users import has types, by pyright, which needs Node.js.
	$(PIP) install --constraint constraints.txt pyright
	$(BIN)/python -m tests.publishing.public_types --least 95

# A test that passes without what it is about would never fail. Half of the time these tests wait
# for what has been taken away.
falsify: $(INSTALLED) ## See that tests fail without what they are about.
	$(BIN)/pytest --without-rows -m spec --numprocesses 4 --quiet

answers: $(TENSORFLOW_PYTHON) ## Record what TensorFlow answers to the scenarios.
	TF_CPP_MIN_LOG_LEVEL=3 $(TENSORFLOW_PYTHON) -m tests.differential.record

coverage-table: $(INSTALLED) ## Write which tests show what of the API.
	$(BIN)/python -m tests.spec.coverage

bench: $(INSTALLED) ## Measure beside physical limits and peers.
	@$(MAKE) --no-print-directory --keep-going peers \
	    || echo "Going on without the peers that could not be installed." >&2
	$(BIN)/python -m benchmarks $(ALL_PEERS); measured=$$?; \
	    $(BIN)/python -m benchmarks.profiles && exit $$measured

# Peers that are not installed are needed for what was reached beside them, if anything.
bench-quick: $(INSTALLED) ## See that ratios reached before are reached still.
	$(BIN)/python -m benchmarks $(ALL_PEERS) --quick

peers: $(TENSORFLOW_PYTHON) $(RAY_PYTHON) $(MXNET_PYTHON) ## Install whom we are measured beside.

format: $(INSTALLED) ## Format code and pages; fix what the linter can.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/mdformat $(PAGES)

dist: $(INSTALLED) ## Build what is published, in dist.
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

# Of an environment with the wheel, what it needs, and nothing else.
sbom: dist ## List what an installed wheel consists of, in build/sbom.
	rm -rf build/sbom
	$(BIN)/python -m venv --without-pip build/sbom/venv
	$(PIP) install cyclonedx-bom
	$(PIP) --python build/sbom/venv/bin/python install --constraint constraints.txt dist/*.whl
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	    --output-file build/sbom/stratagem.cdx.json build/sbom/venv/bin/python
	rm -rf build/sbom/venv

wheels: $(INSTALLED) ## Collect what images are made of in build/wheels, with hashes.
	$(PIP) wheel --constraint constraints.txt --wheel-dir $(WHEELS) ".[deltas,examples,kubernetes,tls]"
	$(PIP) wheel --constraint constraints.txt --wheel-dir $(WHEELS) --no-deps recbole
	$(HASHED) "stratagem[deltas,kubernetes,tls]" > $(WHEELS)/server.txt
	$(HASHED) "stratagem[deltas,examples,kubernetes,tls]" > $(WHEELS)/worker.txt
	$(HASHED) --no-deps recbole >> $(WHEELS)/worker.txt

images: wheels deploy/compose/token ## Build the images of servers and workers.
	for target in server worker; do \
	    $(DOCKER) build --file deploy/docker/Dockerfile --build-arg BASE_IMAGE=$(BASE_IMAGE) \
	        --target $$target --tag stratagem-$$target . || exit; \
	done

# Readable for the users of containers; only this folder hides it from those of the host.
deploy/compose/token:
	python3 -c "import secrets; print(secrets.token_hex())" > $@
	chmod 444 $@

certs: $(INSTALLED) deploy/compose/certs ## Make certificates for the containers.

# As the token: only the folder hides the keys.
deploy/compose/certs:
	rm -rf $@.new
	$(BIN)/stratagem certs init compose --authority $@.new
	$(BIN)/stratagem certs issue ps:0 ps:1 worker:0=chief worker:1 chief:0 observer --authority $@.new
	$(BIN)/stratagem certs issue worker:0 worker:1 --authority $@.new --out $@.new/worker-servers
	chmod 755 $@.new/*/ $@.new/worker-servers/*/
	chmod 444 $@.new/*/tls.key $@.new/worker-servers/*/tls.key
	mv $@.new $@

protos: $(INSTALLED) ## Compile the .proto files.
	$(BIN)/python proto/compile.py

clean: ## Remove caches, builds and results, but no environment.
	rm -rf build dist runs .*_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

# Most modules of these packages are never imported. To compile them all took 80 of 190 s.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing into $(VENV); PyTorch takes some minutes the first time."
	$(PIP) install --no-compile --constraint constraints.txt --editable ".[dev,examples]"
# For its MovieLens files alone, so without the libraries that its code needs.
	$(PIP) install --constraint constraints.txt --no-deps recbole
	@touch $@

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Install Python 3.10 or newer first." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

.PRECIOUS: .venv-%/.installed
.venv-%/bin/python: .venv-%/.installed
	@test -x $@

.venv-%/.installed: benchmarks/peers/%/requirements.txt
	@test -n "$(PYTHON)" || { echo "Install Python 3.10 or newer first." >&2; exit 1; }
	rm -rf .venv-$*
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --requirement $< || { rm -rf .venv-$*; exit 1; }
	@touch $@
