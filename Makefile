# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
#
# All commands of this repository. They need Python 3.11 or later (with venv) and make; all else is installed into .venv.

PYTHON ?= python3
ONLY ?=
ARGS ?=
# Processes that run tests. Tests mostly wait: for a Kubernetes cluster, which all but the last of them have at first (of
# two, both), for daemons and for jobs. A third one needs memory. A fourth one makes a whole run on two cores a fifth
# shorter, and tests that wait for a cluster fail more often.
WORKERS ?= $(shell awk '$$1 == "MemAvailable:" { print ($$2 >= 8 * 1024 * 1024) ? 3 : 2 }' /proc/meminfo)

VENV := .venv
BIN := $(VENV)/bin
# The stamps contain a checksum of this folder's path: a virtual environment contains absolute paths, so a copy is rebuilt.
PLACE := $(shell printf %s '$(CURDIR)' | cksum | cut -d ' ' -f 1)
BOOTSTRAPPED := $(VENV)/bootstrapped-$(PLACE)
INSTALLED := $(VENV)/installed-$(PLACE)
# Sources of the vGPU library, which the install step builds.
LIBRARY := native/build.py $(wildcard native/lib/* native/smi/*)

# Variables of the user's shell that would redirect an install or a test.
unexport PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX VIRTUAL_ENV
# Without compiled files, each of the thousands of interpreters that the tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Use the machine's certificates (a mirror may have its own); without them, uv uses the list that it ships.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= 1
endif
# If HOME is not writable, use no cache.
ifneq ($(shell test -n "$$HOME" -a -w "$$HOME" && echo writable),writable)
export UV_NO_CACHE := 1
export PIP_NO_CACHE_DIR := 1
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install run test test-fast test-pairs test-torch test-neighbours test-kubernetes check format bench mutants results reference docs docs-serve images lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

install: $(INSTALLED) ## install cotenant and what it needs into .venv

run: $(INSTALLED) ## demonstration: six training jobs share GPUs, then each gets one to itself; options: ARGS="--jobs 12"
	$(BIN)/cotenant demo --out build/demo $(ARGS)

test: $(INSTALLED) ## run everything that must pass; a part of it: ARGS="-k word"
	$(BIN)/python -m pytest -n $(WORKERS) -q -rfE $(ARGS)

test-fast: $(INSTALLED) ## run the tests that need no cluster and take less than 2 s each; a part of it: ARGS="-k word"
	$(BIN)/python -m pytest -n $(WORKERS) -q -rfE -m "not slow" $(ARGS)

test-pairs: $(INSTALLED) ## measure how two tasks share one simulated device; needs a quiet machine
	COTENANT_PAIRS=1 $(BIN)/python -m pytest -q -rsfE tests/workloads/test_pairs.py

test-torch: $(INSTALLED) ## install the real PyTorch (several GB, not locked) and test its adapter
	@echo "Installing PyTorch into $(VENV); make clean removes it"
	$(BIN)/uv pip install --python $(BIN)/python torch
	$(BIN)/python -m pytest -q -rsfE tests/job/test_torch.py

test-neighbours: $(INSTALLED) ## build Kueue, JobSet and others, and test cotenant beside them in a cluster; the first time takes minutes
	COTENANT_NEIGHBOURS=1 $(BIN)/python -m pytest -q -rsfE tests/cluster/neighbours $(ARGS)

test-kubernetes: $(INSTALLED) ## run tests on a cluster of another version: VERSION=1.36.3, CONTAINERD=1.7.35; the first time builds it
	$(BIN)/python -m bench.kubernetes_versions $(or $(VERSION),1.34.4) $(CONTAINERD) $(ARGS)

check: $(INSTALLED) ## check lint, format, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## let ruff fix and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## measure, print a table, write bench/results.json; a part of it: ONLY=name[,name]
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

mutants: $(INSTALLED) ## change the code in small ways and see whether a test fails; options: ARGS="--package core --sample 20"
	$(BIN)/python -m bench.mutants $(ARGS)

.PHONY: test-pythons dist
test-pythons: $(INSTALLED) ## test the core and an installed package with every Python of this machine; some: ARGS=3.12
	$(BIN)/python -m release.pythons $(ARGS)

dist: $(INSTALLED) ## build sdist, wheels, chart, bill of materials and checksums in dist/; for a tag: ARGS=--release
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/release
	@$(BIN)/uv pip sync --quiet --python build/release/bin/python --require-hashes requirements/release.txt
	build/release/bin/python -m release.dist $(ARGS)

results: $(INSTALLED) ## run every study (needs COTENANT_DATA) and rewrite docs/results.md
	$(BIN)/cotenant experiment all --out build/results
	cp build/results/report.md docs/results.md

reference: $(INSTALLED) ## renew the pages that are made from the code
	$(BIN)/python -m tools.reference

images: $(INSTALLED) ## build the container images; options: ARGS="--registry registry.example/team agent"
	$(BIN)/python -m release.images $(ARGS)

# The theme announces its successor at each start; docs/decisions has ours.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1

docs: $(INSTALLED) ## build the site of the documentation into build/site; a broken link is an error
	$(BIN)/python -m mkdocs build

docs-serve: $(INSTALLED) ## show the site at a local address while you write
	$(BIN)/python -m mkdocs serve --watch CONTRIBUTING.md --watch tools

# Turns pyproject.toml and requirements/*.in into exact versions with hashes, for every Python from 3.11 on. The files
# contain no address and no path: each machine has its own way to the packages.
COMPILE = $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --upgrade --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(BOOTSTRAPPED) ## renew the locked versions in requirements/
	@echo "Locking the files of requirements/"
	@$(COMPILE) requirements/uv.in --output-file requirements/uv.txt
	@$(COMPILE) pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@$(COMPILE) requirements/clients.in --output-file requirements/clients.txt
	@$(COMPILE) requirements/release.in --output-file requirements/release.txt
	@$(COMPILE) requirements/images.in --constraints requirements/release.txt --output-file requirements/images.txt
	@for extra in kube workloads; do $(COMPILE) pyproject.toml --extra $$extra --constraints requirements/dev.txt \
		--output-file requirements/$$extra.txt || exit; done

clean: ## remove everything that make and the tools created
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache src/cotenant/_native \
		src/cotenant/_version.py src/cotenant/web/_uplot
	find src native tests bench release tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Two steps, each with a stamp that exists only if the step succeeded: pip installs uv, then uv installs everything else.

$(BOOTSTRAPPED): requirements/uv.txt
	@command -v $(PYTHON) >/dev/null \
		|| { echo "cotenant needs Python 3.11 or later; '$(PYTHON)' was not found (another one: make PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "cotenant needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1) (another one: make PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "'$(PYTHON)' cannot create virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Creating a virtual environment in $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing uv ($$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements/uv.txt)), checked by hash"
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/uv.txt
	@touch $@

$(INSTALLED): $(BOOTSTRAPPED) requirements/dev.txt pyproject.toml hatch_build.py release/version.py $(LIBRARY)
	@echo "Installing the packages of requirements/dev.txt, checked by hash"
	@rm -f $@
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@echo "Installing cotenant itself, editable"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
