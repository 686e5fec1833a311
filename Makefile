# The one door. `make measure` and `make test` need nothing but Python 3.11 and a package index; `make help` lists the rest.

VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps

.DEFAULT_GOAL := help
.PHONY: help setup measure test lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/dev ## .venv with excise and what its tests need; leaves .venv/bin/excise

measure: $(STAMPS)/user ## set up, and measure every substrate that this machine has
	$(BIN)/excise measure $(ARGS)

test: lint ## set up, lint, and run every test; ARGS="-k docker" chooses
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/dev ## style, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

clean: ## remove what the targets above made
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted set-up is taken up again; a changed pyproject.toml makes it old.
$(STAMPS)/user: $(STAMPS)/venv pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMPS)/user $@

# The first Python that is new enough. PYTHON=... overrides it.
$(STAMPS)/venv:
	@for python in $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		"$$python" -c 'import ensurepip, venv' 2>/dev/null || { incomplete=$$python; continue; }; \
		echo "making $(VENV) with $$python"; \
		"$$python" -m venv $(VENV) && mkdir -p $(STAMPS) && touch $@; exit; \
	done; \
	if [ -n "$$incomplete" ]; then \
		echo "$$incomplete cannot make a virtual environment: run 'apt-get install python3-venv' and try again" >&2; \
	else \
		echo "no Python 3.11 or newer was found: run 'apt-get install python3 python3-venv', or say make PYTHON=/path/to/python" >&2; \
	fi; exit 1
