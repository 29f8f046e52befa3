# Every command of the project. Plain `make` lists them; `make check` is precisely what CI runs.
#
# Needs python3 >= 3.11, make, bash and a package index; Maven and Go for `make servers`. Writes
# nothing outside this folder but package caches, servers in the user's cache folder and, where no
# Java 17+ is found, a JRE from the system's packages.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PROTO_VENV := .venv-proto
DOCS_VENV := .venv-docs
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTO_READY := $(PROTO_VENV)/.ready
DOCS_READY := $(DOCS_VENV)/.ready
# Both cores have a process of the tests: threads of theirs would only wait for one another.
PYTEST := POLARS_MAX_THREADS=1 OMP_NUM_THREADS=1 bash scripts/in_scratch.sh $(BIN)/python -m pytest

# The JVM that starts Spark's JVM would leave a folder in /tmp.
export SPARK_LAUNCHER_OPTS ?= -XX:-UsePerfData

# Knobs: make test PYTEST_ARGS='-k fence -x'; make bench BENCH_ARGS='--quick --suite keyed_lookup'
PYTEST_ARGS ?=
# Two processes: each has a Spark of its own. PROCESSES= runs all tests in one.
PROCESSES ?= -n 2 --dist worksteal
BENCH_ARGS ?=
DEMO_ARGS ?=
HOUSE_ARGS ?=
LOCK_ARGS ?=
FAULTS_ARGS ?=

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment

$(VENV)/.locked: requirements/dev.txt
	bash scripts/make_venv.sh $(VENV) requirements/dev.txt

# Without build isolation: the build back end is pinned in the lock like everything else.
$(READY): $(VENV)/.locked pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(PROTO_READY): requirements/proto.txt
	bash scripts/make_venv.sh $(PROTO_VENV) requirements/proto.txt
	touch $@

$(DOCS_READY): requirements/docs.txt
	bash scripts/make_venv.sh $(DOCS_VENV) requirements/docs.txt
	touch $@

# Only the Spark layer needs Java, so a machine where it cannot
# be installed still gets a working environment: the last lines then say what is missing.
.PHONY: setup
setup: $(READY) ## Build .venv from the lock file; install a JRE where no Java 17+ is found
	@bash scripts/ensure_java.sh || echo "make setup: done, but WITHOUT Java 17+ (see above)." >&2

.PHONY: java
java: ## Find Java 17+ or install a JRE; fails where it can do neither
	bash scripts/ensure_java.sh

.PHONY: servers
servers: $(READY) ## Install Kafka and an S3 server into the user's cache folder (needs mvn and go)
	$(BIN)/python -m scripts.servers install kafka s3

.PHONY: lock
lock: $(READY) ## Pin requirements/*.txt again (LOCK_ARGS=--upgrade for newer versions)
	bash scripts/lock.sh $(LOCK_ARGS)

.PHONY: demo
demo: $(READY) ## Run a stateful job on Spark, kill it half-way, go on, prove nothing was lost
	@bash scripts/ensure_java.sh
	@$(BIN)/python -m examples.demo $(DEMO_ARGS)

.PHONY: demo-kafka
demo-kafka: $(READY) ## Kafka to Kafka and Delta: killed twice, rescaled, proven (needs mvn)
	@bash scripts/ensure_java.sh
	@$(BIN)/python -m examples.kafka_demo $(DEMO_ARGS)

# ---- checks

.PHONY: format
format: $(READY) ## Format the code and apply the linter's safe fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: lint
lint: $(READY) ## Linter, formatter, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test
test: $(READY) ## The tests; with CI=true also those that take long, and more of each
	@bash scripts/ensure_java.sh
	$(PYTEST) $(PROCESSES) $(PYTEST_ARGS)

.PHONY: test-quick
test-quick: $(READY) ## The tests that take less than a second each
	$(PYTEST) $(PROCESSES) -m "not slow" $(PYTEST_ARGS)

# What stores and finds rows by key: tables, the operators that use them, jobs of those operators
# that are killed, rescaled and restored. Bits cannot matter to anything else.
KEYED := contract/tables crash/test_branched_state.py crash/test_many_part_runs.py \
	crash/test_pipeline_deaths.py crash/test_pipeline_takeovers.py crash/test_rescale_histories.py \
	crash/test_table_crash_matrix.py crash/test_waiting_files_crashes.py examples \
	golden_cases property unit/operators unit/runtime/test_compactions.py \
	unit/runtime/test_renamed_steps.py unit/runtime/test_routing.py unit/state/files \
	unit/state/tables

.PHONY: test-hash8
# With the lighter profile: what collisions could break shows in few examples. Without Spark,
# which runs the same code.
test-hash8: $(READY) ## The tests of what has keys, with the key hash cut to 8 bits: collisions are legal
	HYPOTHESIS_PROFILE=default PENSTOCK_HASH_BITS=8 PENSTOCK_TEST_SERVERS= \
		$(PYTEST) $(PROCESSES) -m "not spark" $(KEYED:%=tests/%) $(PYTEST_ARGS)

.PHONY: test-servers
test-servers: servers ## The tests that need a server: Kafka, S3
	@bash scripts/ensure_java.sh
	PENSTOCK_TEST_SERVERS=require $(PYTEST) $(PROCESSES) -m "kafka or s3" $(PYTEST_ARGS)

SOAK := HYPOTHESIS_PROFILE=nightly PENSTOCK_TEST_SERVERS=require $(PYTEST) $(PROCESSES) \
	--timeout=7200 -o faulthandler_timeout=7200

.PHONY: soak
soak: servers ## The tests of connectors and crashes in their long versions: takes hours
	@bash scripts/ensure_java.sh
	$(SOAK) -m "kafka or s3" $(PYTEST_ARGS)
	$(SOAK) -m "not (kafka or s3)" tests/contract/sinks tests/contract/sources tests/crash $(PYTEST_ARGS)

.PHONY: coverage
coverage: $(READY) ## Branch coverage of all tests; the protocol's must be complete
	bash scripts/in_scratch.sh $(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage report --skip-covered --show-missing --fail-under=95
	$(BIN)/coverage report --skip-covered --include='*/state/protocol/*' --fail-under=100

.PHONY: faults
faults: $(READY) ## Prove that the tests find planted faults (FAULTS_ARGS='--only NAME')
	$(BIN)/python scripts/planted_faults.py $(FAULTS_ARGS)

.PHONY: proto-check
proto-check: $(PROTO_READY) ## Prove that the committed code is what `make proto` makes, and loads
	$(PROTO_VENV)/bin/python scripts/generate_proto.py --check

.PHONY: docs
docs: $(DOCS_READY) ## Build the documentation as a site into site/; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "docs: open site/index.html"

.PHONY: check
check: export PENSTOCK_TEST_SERVERS = require
check: ## Precisely what CI runs
	$(MAKE) --no-print-directory --jobs=2 --output-sync lint proto-check docs servers
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-hash8

# ---- the rest

.PHONY: proto
proto: $(PROTO_READY) ## Regenerate the protobuf code
	$(PROTO_VENV)/bin/python scripts/generate_proto.py

.PHONY: bench
bench: $(READY) ## Run the benchmarks; JSON lines (BENCH_ARGS='--quick --suite NAME')
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: dist
dist: $(READY) ## Build wheel and source archive into dist/
	rm -rf dist
	$(BIN)/hatchling build --directory dist

.PHONY: rooms
rooms: $(READY) ## Draw the rooms of the code into docs/architecture.md
	$(BIN)/python scripts/rooms.py --write

.PHONY: house
house: $(READY) ## Measure the code and the walk of one batch (HOUSE_ARGS='--walk', --json or a checkout)
	@$(BIN)/python scripts/house.py $(HOUSE_ARGS)

.PHONY: clean
clean: ## Remove environments, caches and build results
	rm -rf $(VENV) $(PROTO_VENV) $(DOCS_VENV) build dist site htmlcov .coverage .hypothesis benchmarks/results
	rm -rf demo-output .scratch
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
