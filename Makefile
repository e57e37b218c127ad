# The verbs of the project; docs/HACKING.md explains when to use which.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
BUILD ?= release
# setuptools warns of editable installs, whatever they are for.
PIP := PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check
SOURCES := $(shell find kbroker/_core -name "*.pyx" -o -name "*.pxd" -o -name "*.h")

.PHONY: simulate run cluster build test test-all amplification test-spark check bench profile fuzz asan debug crash migration bits soak docs wheel clean

# --- building ---------------------------------------------------------------------------------------
$(VENV)/made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools==84.2.1 Cython==3.3.1
	touch $@

$(VENV)/installed: $(VENV)/made setup.py pyproject.toml
	KBROKER_BUILD=none $(PIP) --no-build-isolation -e .
	touch $@

# Says of which kind the compiled core is. Another BUILD makes another file, and then everything is compiled: setuptools
# only compares times.
KIND := $(VENV)/build-$(BUILD)
$(KIND): | $(VENV)/made
	rm -f $(VENV)/build-*
	touch $@

$(VENV)/compiled: $(VENV)/installed $(KIND) $(SOURCES)
	KBROKER_BUILD=$(BUILD) $(PY) setup.py --quiet build_ext --inplace $(if $(filter $(KIND),$?),--force)
	touch $@

$(VENV)/test-installed: $(VENV)/installed pyproject.toml
	KBROKER_BUILD=none $(PIP) --no-build-isolation -e .[test,check,perf]
	touch $@

# The bytecode too: where the environment forbids Python to write it, every start would compile 80 modules anew.
build: $(VENV)/compiled
	@$(PY) -m compileall -q kbroker

run: build
	$(VENV)/bin/kbroker start $(ARGS)

# Three brokers and a ZooKeeper, until Ctrl-C; ARGS="--brokers 5 --new".
cluster: build $(VENV)/test-installed
	$(PY) tools/run_cluster.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info
	find kbroker/_core -name "*.so" -delete

# --- proving ----------------------------------------------------------------------------------------
# Compiling leaves a core free now and then, and installing waits for the network: they go on side by side. Most of a
# test's time it waits for other programs: three at a time keep two cores busy. A process that had to be ended is not
# begun again: it would run into the same. Bytecode of the tests is kept, also where the environment forbids it: else
# each process makes that of all of them for itself.
PROCESSES ?= 3
test:
	@$(MAKE) --no-print-directory --jobs 2 build $(VENV)/test-installed
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --numprocesses $(PROCESSES) --no-loadscope-reorder --max-worker-restart 0 -m "not slow"

test-all: build $(VENV)/test-installed
	$(PY) -m pytest

# All about Spark: what make test has, and crashes, clusters and Apache Kafka beside it; then what make test has on the
# newest Spark, whose workers find it by its path.
NEWEST_SPARK := 4.3.0
NEWEST := $(CURDIR)/build/pyspark-$(NEWEST_SPARK)
$(NEWEST): $(VENV)/test-installed
	$(PIP) --no-deps --target $@ pyspark==$(NEWEST_SPARK)

test-spark: build $(VENV)/test-installed $(NEWEST)
	$(PY) -m pytest tests/spark tests/unit/spark
	PYTHONPATH=$(NEWEST) $(PY) -m pytest tests/spark -m "not slow"

# What needs no running broker: lint, types, layers, the compiled core's warnings and stubs, rules of the tree.
check: build $(VENV)/test-installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	KBROKER_WARNINGS=error $(PY) setup.py --quiet --version
	$(PY) -m mypy.stubtest --ignore-disjoint-bases --ignore-unused-allowlist --allowlist tools/stubtest_allowlist.txt \
		$(subst /,.,$(basename $(shell find kbroker/_core -name "*.pyi")))
	$(PY) -m pytest tests/tidy -m "not slow"

# The same tests on a core with bounds checks and assertions (debug), and with the address and undefined-behaviour
# sanitizers (asan), in trees of their own under build/.
CHECKED_TESTS ?= tests/unit/core tests/unit/client tests/unit/protocol tests/unit/storage tests/unit/state_log tests/unit/groups tests/unit/transactions \
	tests/unit/replication tests/unit/cluster tests/simulation \
	tests/unit/server tests/unit/spark/decoding tests/fuzz
debug asan: $(VENV)/made $(VENV)/test-installed
	$(PY) tools/variant_tree.py $@ --run $(CURDIR)/$(PY) -m pytest -p no:cacheprovider --timeout 600 -m "not slow" $(CHECKED_TESTS)

# Needs clang. TARGETS="batch segment" picks some; build/fuzz-findings holds what was found.
SECONDS ?= 1800
fuzz: $(VENV)/made $(VENV)/test-installed
	KBROKER_BUILD=none $(PIP) --no-build-isolation -e .[fuzz]
	$(PY) tools/variant_tree.py fuzz --run $(CURDIR)/$(PY) -m tests.fuzz.run --seconds $(SECONDS) $(TARGETS) $(ARGS)

# What the most demanding requests of every API and version cost a full broker, held against tests/amplification/bounds.py.
amplification: build $(VENV)/test-installed
	$(PY) -m pytest tests/amplification

# kill -9 of real brokers under load, transactions and our own clients under faults of all kinds, then power cuts of simulated ones over the injected file system.
ROUNDS ?= 100
SEEDS ?= 1000
# The seeds before are in make test.
FIRST ?= 100
crash: build $(VENV)/test-installed
	$(PY) -m tests.crash.kill_rounds --rounds $(ROUNDS)
	$(PY) -m tests.crash.transaction_rounds --rounds $(ROUNDS)
	$(PY) -m tests.crash.client_rounds --rounds $(ROUNDS)
	$(PY) -m tests.crash.cluster_rounds --rounds $(ROUNDS)
	$(PY) -m tests.crash.cluster_rounds --rounds $(ROUNDS) --brokers kbroker,kbroker,kafka
	$(PY) -m tests.crash.cluster_rounds --rounds $$((($(ROUNDS) + 2) / 3)) --brokers kafka,kafka,kbroker
	$(PY) tools/crash.py $(SEEDS) --first $(FIRST)

# Three Apache Kafkas become kbrokers one by one, and Kafkas again, under load; ARGS="--rounds 5 --keep DIRECTORY".
migration: build $(VENV)/test-installed
	$(PY) -m tests.crash.migration $(ARGS)

# Histories of simulated clusters, docs/SIMULATION.md; make simulate SEEDS=10000 FIRST=0
simulate: build $(VENV)/test-installed
	$(PY) -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

# Every bit of every small file of a stopped broker, one in each partition at a start; BITS="--rounds 10" for less.
bits: build $(VENV)/test-installed
	$(PY) -m tests.crash.bit_rounds $(BITS)

SOAK_SECONDS ?= 3600
soak: build $(VENV)/test-installed
	$(PY) -m tests.soak.run --seconds $(SOAK_SECONDS)

# BEFORE=../other: the kbroker of another checkout, built there, is the peer instead of Apache Kafka.
bench: build $(VENV)/test-installed
	$(PY) -m perf.bench $(ROWS) $(if $(BEFORE),--before $(BEFORE)) $(ARGS)

# LOAD: produce, consume, small-requests, groups, transactions. Needs Linux perf for compiled code; Python is sampled by py-spy.
LOAD ?= produce
profile: build $(VENV)/test-installed
	$(PY) -m perf.profile $(LOAD) $(ARGS)

# --- packing and documents --------------------------------------------------------------------------
docs: build
	for tool in tools/make_*_docs.py; do $(PY) $$tool || exit 1; done

# One for each Python that is found, or for those of PYTHONS="python3.11 /opt/python3.13/bin/python3".
PYTHONS ?=
wheel: build
	KBROKER_BUILD=none $(PIP) --no-build-isolation -e .[wheel]
	$(PY) tools/make_wheels.py $(PYTHONS)
