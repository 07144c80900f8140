# Everything runs in .venv, which is made on first use and updated whenever pyproject.toml has changed.
# `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
SEEDS ?= 200
# Processes that run tests. For two cores; each has a Spark of its own, which takes a gigabyte.
WORKERS ?= 3
# These seeds are among those of check-seeds.
SEEDS_TWICE := --deselect tests/sim/test_sim_seeds.py::test_the_job_keeps_every_rule
# Two at a time, each with its output in one piece, and none hidden by the failure of another.
TOGETHER := $(MAKE) -k -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# What is not kept is translated again by every process, and tests start hundreds. pytest also rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.SUFFIXES:
.PHONY: help compiled java-classes translated demo bench check test docs site surface format clean static python java run-tests \
	check-format check-lint check-imports check-types check-spelling check-dependencies check-units check-jobs check-worlds check-core check-seeds

help:
	@echo "make demo      run the demo job on local Spark              (ARGS= for its options)"
	@echo "make bench     measure the window benchmark on local Spark  (ARGS= for its options)"
	@echo "make check     format, lint, imports, types, spelling, unit tests, 200 simulated seeds; no Java needed"
	@echo "make test      all tests, those on a real Spark too, and 1,000 seeds  (ARGS= for pytest)"
	@echo "make docs      write docs/reference from the code"
	@echo "make site      write the pages of docs/ as a site, to build/site"
	@echo "make surface   record the public names and signatures after a change on purpose"
	@echo "make format    format the code and fix what can be fixed"
	@echo "make clean     remove caches and build results; .venv stays"

# --- the environment -------------------------------------------------------------------------------------------------

python:
	@command -v $(PYTHON) >/dev/null || { echo "Python was not found: install Python 3.11 or later, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); 3.11 or later is needed: install one and say make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make an environment: install the venv package that belongs to it (python3-venv on Debian)"; exit 1; }

# Spark takes JAVA_HOME before the path, and so does this.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	command -v "$$java" >/dev/null || { \
	  echo "Java was not found: Spark needs a JDK 17 or later; install one, or point JAVA_HOME at it"; exit 1; }; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	[ "$${major:-0}" -ge 17 ] || { \
	  echo "$$java is version $${major:-unknown}; Spark needs 17 or later: point JAVA_HOME at such a JDK"; exit 1; }

$(STAMP): pyproject.toml
	@$(MAKE) python
	@echo "making the environment in $(VENV); the first time this takes a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# --- what people call ------------------------------------------------------------------------------------------------

# Slots are processes that start in the middle of a run: they must not translate the sources then, each for itself.
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q src

# The JVMs of tests take Spark's classes from an archive. It belongs to one Java and one Spark, whose own is looked for.
java-classes: $(STAMP) java
	@$(BIN)/python tests/support/short_lived_jvms.py

# pytest translates the tests too. Where nothing is kept yet, every process that runs tests would translate all of them.
translated: $(STAMP)
	@ls tests/__pycache__/conftest.*pytest* >/dev/null 2>&1 || $(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true

demo: compiled java
	@$(BIN)/penstock demo $(ARGS)

bench: compiled java
	@$(BIN)/penstock bench window $(ARGS)

# What takes longest comes first.
check: compiled
	@$(TOGETHER) check-worlds check-jobs check-units check-seeds check-core check-types static

# The checks run one after the other beside the tests, many of which wait for Spark. Tests take longer than the checks, so
# that their closing line comes last.
test: compiled
	@$(MAKE) -j2 java-classes translated
	@$(MAKE) -k -j2 SEEDS=1000 run-tests check-types static check-seeds

# The tests of one file in one process.
run-tests:
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=30 $(SEEDS_TWICE) $(ARGS)

docs: $(STAMP)
	@$(BIN)/python docs/generate.py

# The variable keeps a notice about another product out of the output.
site: docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "open build/site/index.html"

surface: $(STAMP)
	@$(BIN)/python tests/arch/test_surface.py --write

format: $(STAMP)
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

clean:
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* \
	  spark-warehouse metastore_db derby.log
	@find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the single checks: silent unless they fail ----------------------------------------------------------------------

static: check-format check-lint check-imports check-spelling check-dependencies

# $(call quietly,<name>,<command>): one line if it went well, its whole output if it did not.
define quietly
@log=$$(mktemp); start=$$(date +%s); \
if $(2) >"$$log" 2>&1; then status=0; echo "ok      $(1) ($$(($$(date +%s) - start)) s)"; \
else status=$$?; { echo "FAILED  $(1)"; cat "$$log"; } >&2; fi; \
rm -f "$$log"; exit $$status
endef

check-format:
	$(call quietly,format,$(BIN)/ruff format --check --diff)

check-lint:
	$(call quietly,lint,$(BIN)/ruff check)

check-imports:
	$(call quietly,imports,$(BIN)/lint-imports)

check-types:
	$(call quietly,types,$(BIN)/mypy)

check-spelling:
	$(call quietly,spelling,$(BIN)/codespell src tests docs Makefile pyproject.toml *.md)

check-dependencies:
	$(call quietly,dependencies,$(BIN)/deptry src)

# Tests of the core that run many examples: they would be slow when measured, and must not be what the coverage rests on.
CORE_MANY := $(wildcard tests/core/*/test_*_properties.py) tests/core/coordinator/test_coordinator_size.py \
  tests/core/coordinator/test_coordinator_cost.py

# Every branch of the core is taken by the core's own tests. The data file is its own, and so can be beside another run's.
check-core:
	$(call quietly,core tests and coverage,PENSTOCK_EXAMPLES=quick COVERAGE_FILE=.coverage-core $(BIN)/pytest -q \
	  tests/core $(CORE_MANY:%=--ignore=%) --cov=penstock.core --cov-branch --cov-report=term-missing:skip-covered \
	  --cov-fail-under=100)

check-units:
	$(call quietly,unit tests,PENSTOCK_EXAMPLES=quick $(BIN)/pytest -q -m 'not slow' \
	  $(filter-out tests/core/ tests/runtime/ tests/sim/ tests/__pycache__/,$(wildcard tests/*/)) $(CORE_MANY))

check-jobs:
	$(call quietly,jobs,PENSTOCK_EXAMPLES=quick $(BIN)/pytest -q -m 'not slow' tests/runtime $(wildcard tests/test_*.py))

check-worlds:
	$(call quietly,simulated worlds,PENSTOCK_EXAMPLES=quick $(BIN)/pytest -q -m 'not slow' tests/sim $(SEEDS_TWICE))

check-seeds:
	$(call quietly,$(SEEDS) simulated seeds,$(BIN)/penstock sim --seeds $(SEEDS))
