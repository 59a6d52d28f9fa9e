# Kant. `make setup` needs Python 3.11 or newer and make; everything else lives in .venv.

PY := .venv/bin/python
KANT := .venv/bin/kant
VERSION_OK := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# Whoever asked Python for no bytecode would have every process that the tests start compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

# More workers than cores: those that have a control plane, a browser or a service mostly wait for it.
WORKERS := -n 5 --dist loadgroup

.PHONY: help setup web run test test-fast lint types contracts bench check clean

help:
	@echo "make setup      create .venv with Kant and its tools, as uv.lock pins them"
	@echo "make run        simulate the demo and write its report to kant-run/"
	@echo "make web        build the page from web/ (needs Node 20.19 or newer)"
	@echo "make test       run the tests (KANT_EXAMPLES=20: with eighty times as many examples); where there is Go the first"
	@echo "                run builds kube-apiserver, etcd and helm for them: about 7 minutes, with its progress"
	@echo "make test-fast  run the tests that need no browser, no cluster and no service"
	@echo "make check      lint, types and contracts"
	@echo "make bench      run the benchmarks"
	@echo "make clean      remove what make and the tools have written"

setup: .venv/ready .venv/kernels

# The stamps are newer than what decides the installation, so a second `make setup` does nothing. `make run` needs Kant alone.
# uv installs exactly what uv.lock says; without uv, pip installs the versions that the lock names.
LOCKED := pyproject.toml $(wildcard packages/*/pyproject.toml) uv.lock .ci/pip-arguments.py
INSTALL := install --quiet --disable-pip-version-check
PIP := $(PY) -m pip $(INSTALL)
SYNC := env -u VIRTUAL_ENV UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never \
  .venv/bin/uv sync --frozen --inexact --quiet --python $(PY)
# ensurepip takes as long as uv takes for everything: it compiles the byte code of all of pip.
HAVE_PIP := { $(PY) -c 'import pip' 2>/dev/null || .venv/bin/uv pip install --quiet --python $(PY) pip 2>/dev/null \
  || $(PY) -m ensurepip --default-pip >/dev/null; }

.venv/kant: $(LOCKED)
	@if ! $(PY) -c '$(VERSION_OK)' 2>/dev/null; then \
	  found=; \
	  for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c '$(VERSION_OK)' >/dev/null 2>&1; then found="$$python"; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make setup: expected Python 3.11 or newer with its venv module on the path (or PYTHON=/path/to/python3)" >&2; \
	    exit 1; \
	  fi; \
	  "$$found" -m venv --clear --without-pip .venv \
	  && { "$$found" -m pip --python $(PY) $(INSTALL) uv 2>/dev/null || :; }; \
	fi
	@echo "installing Kant into .venv"
	@if { test -x .venv/bin/uv || { $(HAVE_PIP) && $(PIP) uv; }; } && $(SYNC) --no-dev && $(HAVE_PIP); then :; else \
	  echo "make setup: uv could not install; using pip with the versions of uv.lock" >&2; \
	  $(HAVE_PIP) && $(PY) .ci/pip-arguments.py .venv/constraints.txt > .venv/requirements.txt \
	  && $(PIP) --constraint .venv/constraints.txt --editable .; \
	fi
	@test -x $(KANT)
	@touch $@

.venv/ready: .venv/kant
	@echo "installing the tools of development"
	@if $(SYNC) --all-extras; then :; else \
	  $(PY) .ci/pip-arguments.py .venv/constraints.txt > .venv/requirements.txt \
	  && $(PIP) --constraint .venv/constraints.txt --requirement .venv/requirements.txt --editable ".[all,ray]" \
	    --editable packages/kant-kube --editable packages/kant-lab; \
	fi
	@# uv leaves byte code to the first import: the first `kant up` would take three times as long to answer.
	@$(PY) -c "import kant.service.daemon, kant.cli.page"
	@touch $@

# Where the user's cache has them already, from another clone or an earlier version, nothing is compiled.
.venv/kernels: .venv/kant
	@$(KANT) profiles compile
	@touch $@

run: .venv/kant
	$(KANT) demo --out kant-run

# The bundle in src/kant/report/page is checked in, so that nothing else here needs Node.
web:
	@command -v npm >/dev/null || { echo "make web: expected npm (Node 20.19 or newer) on the path" >&2; exit 1; }
	npm --prefix web ci --no-audit --no-fund --ignore-scripts
	npm --prefix web run build

test: setup
	@echo "make test: a control plane and helm for the tests of the Kubernetes driver"
	@.ci/controlplane || echo "make test: the tests of the Kubernetes driver are skipped, or fail with CI=true" >&2
	$(PY) -m pytest $(WORKERS) --cost-in-brief --rerun-show-tracebacks --max-suite-reruns 3

test-fast: setup
	KANT_EXAMPLES=$${KANT_EXAMPLES:-0.1} $(PY) -m pytest -n logical --maxprocesses 4 --dist loadgroup -m "not cluster and not browser and not service and not long"

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/deptry src

types: setup
	.venv/bin/mypy

contracts: setup
	.venv/bin/lint-imports
	$(PY) -m pytest -s tests/test_architecture.py

check: lint types contracts

bench: setup
	$(PY) -m benchmarks

clean:
	rm -rf .venv kant-run dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
