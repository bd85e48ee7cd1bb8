# make demo | test | check: each sets everything up first, in .venv, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP     = $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: help demo test check format clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/'

demo: $(READY) ## set up, then a short tour of the family on real numbers
	@$(BIN)/python examples/tour.py

test: $(READY) ## set up, then all tests and doctests
	@$(BIN)/python -m pytest

check: $(READY) ## format, lint and types, then all tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest

format: $(READY) ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

# torch comes first and pinned: left to the resolver it brings gigabytes of CUDA packages.
# The editable install builds in this environment for the same reason.
$(READY): pyproject.toml
	@echo "Setting up $(VENV), once; it takes a minute or two."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  1/2 torch"
	@$(PIP) torch==2.13.0
	@echo "  2/2 normkit, and what its tests need"
	@$(PIP) "setuptools>=77"
	@$(PIP) --no-build-isolation --editable ".[test,dev]"
	@touch $@
