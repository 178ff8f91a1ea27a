# `make demo` and `make test` are all a newcomer needs; each makes its own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test lint bench docs clean
.DELETE_ON_ERROR:

demo: $(READY)  ## the whole journey on the built-in data set
	$(BIN)/us3l demo

test: $(READY) lint  ## style, types, tests
	$(BIN)/python -m pytest --ignore tests/training
	$(BIN)/python -m pytest tests/training  # in processes without the libraries of deployment: see docs/contributing.md

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## speed as ratios, see benchmarks/README.md
	$(BIN)/python -m benchmarks

docs: $(READY)  ## the Python reference from the docstrings
	$(BIN)/python docs/build_api.py

# Installed again whenever the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("us3l needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,deploy,detect,lars]'
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
