# The one door. `make measure` and `make test` need nothing but Python 3.11 and a package index; `make help` lists the rest.
# With a C compiler there are the substrates `namespace` and `+guest` as well.

VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps

# The guest goes where a sandbox is, which may be a machine of the other kind: both are built where a compiler for both is there.
HOST      := $(shell uname -m)
OTHER     := $(if $(filter x86_64,$(HOST)),aarch64,x86_64)
COMPILER  := $(shell command -v gcc)
CORES     := $(shell nproc)
MACHINES  := $(if $(COMPILER),$(HOST)) $(if $(shell command -v $(OTHER)-linux-gnu-gcc),$(OTHER))
tools      = $(if $(filter $(HOST),$(1)),,$(1)-linux-gnu-)

.DEFAULT_GOAL := help
.PHONY: help setup consumers substrates substrates-down runsc results measure test lint native programs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/dev programs ## .venv with excise and what its tests need; leaves .venv/bin/excise

measure: $(STAMPS)/user programs ## set up, and measure every substrate that this machine has
	$(BIN)/excise measure $(ARGS)

# A file's tests stay together, and two files run at once: much of their time is spent waiting.
test: lint ## set up, lint, and run every test; ARGS="-k docker" chooses
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

lint: $(STAMPS)/dev programs ## style, types, which room may import which; the C programs, with sanitizers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(if $(COMPILER),$(MAKE) --no-print-directory -j$(CORES) -C native SANITIZE=1)

results: $(STAMPS)/dev ## RUN=directory, a finished run of the plan paper, as docs/results/paper and the README's table
	$(if $(RUN),,$(error say which run, as in: make results RUN=results/paper))
	$(BIN)/python bench/publish.py $(RUN)

consumers: setup ## what the tests of programs over the seam need besides: mini-swe-agent, without its model clients
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[consumers]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'mini-swe-agent>=2.4,<3'

# What it starts outlives make; what it builds is kept outside of the repository, by version.
substrates: $(STAMPS)/user programs ## as root: a Docker daemon and a real Kubernetes cluster of one node, brought up or mended
	@$(BIN)/python -m cluster up

runsc: $(STAMPS)/user ## gVisor's runsc, built from the Go proxy into the cache if it is not there; prints where it is
	@$(BIN)/python -m cluster runsc

substrates-down: $(STAMPS)/user ## remove that cluster, and that daemon if it was not there before
	@$(BIN)/python -m cluster down

native: ## the C programs, for each machine a compiler is here for
	$(if $(COMPILER),,$(error no C compiler was found: run 'apt-get install gcc libc6-dev' and try again))
	$(foreach machine,$(MACHINES),$(call build,$(machine)))

# What a newcomer runs must not need a compiler, but must say what is missing without one.
programs:
	@$(if $(COMPILER),$(MAKE) --no-print-directory --silent native,echo "no C compiler (apt-get install gcc libc6-dev): the substrates namespace and +guest will be missing")

# Into the package itself, where an editable install and a wheel both have them; replaced by name, since one may be running.
define build
$(MAKE) --no-print-directory -j$(CORES) -C native ARCH=$(1)
@mkdir -p src/excise/native/$(1)
@for program in guest launch boot; do \
	built=build/native/$(1)/excise-$$program; carried=src/excise/native/$(1)/excise-$$program; \
	[ $$carried -nt $$built ] || { $(call tools,$(1))strip -o $$carried.new $$built && mv $$carried.new $$carried; } || exit 1; \
done

endef

clean: ## remove what the targets above made
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist src/excise/native
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
