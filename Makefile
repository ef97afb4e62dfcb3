# Two commands do everything from a fresh clone: `make demo` and `make test`. `make quick` is for
# the time between.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LINT := $(VENV)-lint
WORKERS ?= 2
# Python versions that the README promises.
PYTHONS ?= 3.10 3.11 3.12 3.13
# A sample of what depends on the machine is run again as older machines would see it; the machine's
# own kind was the suite's. `make test-hosts` runs everything.
HOSTS ?= generic avx2
MACHINE := tests/cpu tests/test_interpreter.py
OWN_HOST = $(shell $(BIN)/python -c \
	"from sanderling.delegates.cpu.isa.targets import host_target; print(host_target().name)")

.PHONY: demo quick test test-all test-cases test-hosts test-pythons test-lowest test-ray test-flex test-coreml lint fuzz docs clean \
	bench-kernels

demo: $(VENV)/.installed
	$(BIN)/sanderling demo

# Before a commit: lint, types, and a few tests of every file.
quick: lint $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --sample 4

test: lint $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS)
	for host in $(filter-out $(OWN_HOST),$(HOSTS)); do \
		SANDERLING_HOST=$$host $(BIN)/python -m pytest -n $(WORKERS) --sample 6 $(MACHINE) \
			|| exit 1; done

# Every conformance case on every target of the CPU compiler: about an hour.
test-all: lint $(VENV)/.installed-dev
	SANDERLING_TEST_ALL=1 $(BIN)/python -m pytest -n $(WORKERS)

# The same cases on the same targets, many in one model: minutes.
test-cases: $(VENV)/.installed-dev
	SANDERLING_TEST_ALL=1 $(BIN)/python -m tests.support.cpu_batches --workers $(WORKERS)

# The suite as other machines would see it; instructions that this one lacks are emulated.
test-hosts: $(VENV)/.installed-dev
	for host in generic avx2 avx2vnni avx512 avx512vnni; do \
		echo "host reported as $$host"; \
		SANDERLING_HOST=$$host $(BIN)/python -m pytest -n $(WORKERS) || exit 1; done

# The suite on every promised Python that this machine has.
test-pythons:
	for v in $(PYTHONS); do \
		if python$$v -c '' 2>/dev/null; then echo "Python $$v"; \
			$(MAKE) test PYTHON=python$$v VENV=.venv-$$v HOSTS= || exit 1; \
		else echo "Python $$v is not on this machine"; fi; done

# The suite with the lowest versions that pyproject.toml admits, on the lowest Python.
test-lowest: LOWEST := .venv-lowest
test-lowest:
	python3.10 -m venv $(LOWEST)
	$(LOWEST)/bin/python scripts/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(LOWEST)/lowest.txt --editable '.[dev]'
	$(LOWEST)/bin/python -m pytest -n $(WORKERS)

# Evaluations on a Ray cluster of two nodes, which is started for the test.
test-ray: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[ray]'
	SANDERLING_TEST_RAY=1 $(BIN)/python -m pytest tests/test_eval_ray.py

# TensorFlow runs the operators that TensorFlow Lite has not; it is large.
test-flex: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[flex]'
	$(BIN)/python -m pytest tests/test_flex.py
	$(BIN)/python -m pytest tests/test_docs.py -k flex

# ML programs of Core ML's for every conformance case that it gets, and of whole models.
test-coreml: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[coreml]'
	SANDERLING_TEST_ALL=1 $(BIN)/python -m pytest tests/test_coreml.py
	$(BIN)/python -m pytest tests/test_docs.py -k coreml

# With tools and stubs of its own: see requirements-lint.txt.
lint: $(LINT)/.installed
	$(LINT)/bin/ruff check .
	$(LINT)/bin/ruff format --check .
	$(LINT)/bin/mypy

# The long fuzz run: 20,000 mutations of real models, each in bounded time and memory, a part of
# them compiled as well; then 100,000 of what the conformance cases say, on both delegates.
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.fuzz_bytes --count 20000
	$(BIN)/python -m tests.support.fuzz_bytes --count 2000 --delegate cpu
	$(BIN)/python -m tests.support.fuzz_semantics --count 100000 --seed 1500 --workers $(WORKERS)

# Each kernel's share of the machine's measured peak, and LiteRT's time for the same op; of another
# target with TARGET=avx2. WRITE=1 keeps the table in benchmarks/RESULTS.md.
bench-kernels: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.kernels $(addprefix --target ,$(TARGET)) $(if $(WRITE),--write)

# Regenerate the parts of the documentation that come from the tables.
docs: $(VENV)/.installed-dev
	$(BIN)/python scripts/support_matrix.py

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# PyTorch by its version: a range may bring gigabytes of CUDA.
$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.installed

$(LINT)/.installed: requirements-lint.txt
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement requirements-lint.txt
	touch $@
