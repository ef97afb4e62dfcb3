# Two commands do everything from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-all test-ray lint fuzz docs clean bench-kernels

demo: $(VENV)/.installed
	$(BIN)/sanderling demo

test: lint
	$(BIN)/python -m pytest -n $(WORKERS)

# Every conformance case on every target of the CPU compiler: about an hour.
test-all: lint
	SANDERLING_TEST_ALL=1 $(BIN)/python -m pytest -n $(WORKERS)

# Evaluations on a Ray cluster of two nodes, which is started for the test.
test-ray: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[ray]'
	SANDERLING_TEST_RAY=1 $(BIN)/python -m pytest tests/test_eval_ray.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The long fuzz run: 20,000 mutations of real models, each in bounded time and memory; a part of
# them compiled as well.
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz --count 20000
	$(BIN)/python -m tests.fuzz --count 2000 --delegate cpu

# Each kernel's share of the machine's measured peak, and LiteRT's time for the same op.
bench-kernels: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.kernels

# Regenerate the parts of the documentation that come from the tables.
docs: $(VENV)/.installed-dev
	$(BIN)/python scripts/support_matrix.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.installed
