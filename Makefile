# The two commands are `make reproduce` and `make test`; both set up .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Where JupyterLab listens: in a container, LISTEN=0.0.0.0 lets the machine around it in (the token stays).
LISTEN ?= 127.0.0.1

# Python keeps what it has compiled: without, each process compiles 3000 modules of the libraries anew,
# half of the time of a short `condnum run`, and most tests of the command line start such processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup reproduce site test lint lab bench bench-short gpu audit-pins lock clean

setup: $(STAMP)
	@echo 'Once in each shell, so that `condnum …` is found:  . $(BIN)/activate'

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("condnum needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet $$(grep -E '^uv==' requirements.txt)
	$(BIN)/uv pip install --python $(BIN)/python -r requirements.txt
	$(BIN)/uv pip install --python $(BIN)/python --no-deps -e .
	touch $(STAMP)

reproduce: setup
	$(BIN)/condnum reproduce

# Lessons, explorers, results, how-to and API as pages that need no server: reports/index.html.
site: setup
	$(BIN)/condnum site

# Three workers on two cores, as browsers and kernels wait for each other, and one thread each: threads of several
# workers wait for each other a hundred times as long on a busy machine. .ci/run adds `make lint` and the gate of
# coverage (COVERAGE=--cov).
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --ignore=tests/benchmarks $(COVERAGE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/nbstripout --verify $(STRIP) notebooks/*.ipynb notebooks/experiments/*.ipynb
	$(BIN)/python tests/prose.py

lab: setup
	$(BIN)/condnum lab notebooks --ip $(LISTEN)


# Known weaknesses of the pinned versions, from the PyPI service: needs the network. --strict, because an index
# that knows nothing about a version (a mirror) would otherwise look like good news.
audit-pins: setup
	$(BIN)/uv tool run pip-audit --strict --disable-pip --no-deps -r requirements.txt

# Times and ratios, printed; `bench-short` takes seconds.
bench: setup
	CONDNUM_BENCH=1 $(BIN)/python -m pytest tests/benchmarks -s -q

bench-short: setup
	CONDNUM_BENCH=1 $(BIN)/python -m pytest tests/benchmarks -s -q -m "not slow"

# On a CUDA card; without one the CPU plays it, at small sizes.
gpu: setup
	CONDNUM_BENCH=1 $(BIN)/python -m pytest tests/benchmarks/test_gpu.py tests/benchmarks/test_deep.py -s -q

# Pins: one universal resolution for Python 3.11 to 3.13, from the ranges in pyproject.toml.
lock: setup
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --no-header -o requirements.txt

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .coverage* *.egg-info

STRIP := --keep-id --extra-keys "metadata.papermill cell.metadata.papermill metadata.language_info.version"
