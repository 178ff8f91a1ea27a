# `make demo` and `make test` are all a newcomer needs; each makes its own virtual environment first.
# Another Python in a folder of its own: make test PYTHON=python3.12 VENV=.venv-3.12
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 40 --durations-min 5

.PHONY: demo test quick coverage lint bench docs hashed lock sbom clean
.DELETE_ON_ERROR:

demo: $(READY)  ## the whole journey on the built-in data set
	$(BIN)/us3l demo

test: $(READY) lint  ## style, types, tests
	$(PYTEST)

quick: $(READY)  ## the tests that take less than about ten seconds each
	$(PYTEST) -m "not slow"

coverage: $(READY)  ## how much of us3l the tests run
	$(PYTEST) --cov us3l --cov-report term:skip-covered

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## speed as ratios, see benchmarks/README.md
	$(BIN)/python -m benchmarks

docs: $(VENV)/.docs  ## the site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

hashed:  ## install instead of the other targets: every file is compared with its hash
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --require-hashes --requirement requirements-hashed.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

lock: $(READY)  ## requirements-hashed.txt from constraints.txt
	$(INSTALL) uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra deploy --extra detect --extra lars --extra serve --constraint constraints.txt \
	  --universal --python-version 3.11.5 --generate-hashes --no-header --no-annotate --upgrade --quiet --output-file requirements-hashed.txt

sbom: $(READY)  ## what is installed, as CycloneDX
	$(BIN)/python tools/sbom.py > sbom.json

# Installed again whenever the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("us3l needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[dev,deploy,detect,lars,serve]'
	touch $(READY)

$(VENV)/.docs: $(READY)
	$(INSTALL) --editable '.[docs]'
	touch $(VENV)/.docs

clean:
	rm -rf $(VENV) site .coverage .mypy_cache .ruff_cache .pytest_cache
