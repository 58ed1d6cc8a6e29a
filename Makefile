# Everything a person types in a checkout. Each target sets up what it needs by itself.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Tests mostly wait: two at a time. ARGS='-n 0' for one after the other, as a debugger needs.
TEST_JOBS ?= 2
PYTEST = $(PY) -m pytest -n $(TEST_JOBS)
export PYTHON

C_SOURCES := $(wildcard belugafs/*.[ch] belugafs/include/*.h belugafs/_core/*.[ch] belugafs/_direct/*.[ch] \
             belugafs/kernels/*.c kernels/*.[ch] kernels/*.cu)
SETUP_STAMP := $(VENV)/.belugafs-setup
BUILD_STAMP := $(VENV)/.belugafs-build

.DEFAULT_GOAL := help
.PHONY: help setup system venv wrappers build werror demo test test-pyfuse3 test-directory test-heavy test-full-size lint format \
        asan tsan sim cuda vllm-venv engines-venv clean distclean uninstall

help:
	@echo "make setup       system packages, virtual environment, C core, mount helper (as root)"
	@echo "make demo        make a pool in memory, mount it, share a KV cache between two processes"
	@echo "make test        the tests, some minutes        (ARGS='-k name' passes on to pytest)"
	@echo "make test-pyfuse3  the mounted tests over the other transport"
	@echo "make test-directory  the mounted tests on directory pools, with passthrough (as root)"
	@echo "make test-heavy  the long tests: vLLM and other engines on a mount"
	@echo "make test-full-size  a million names, minutes of races: an hour, not part of CI"
	@echo "make lint        ruff and mypy                  (make format: let ruff rewrite)"
	@echo "make build       rebuild the C core             (make werror: with -Werror, aside)"
	@echo "make asan|tsan|sim   the C core under sanitizers; the protocol simulator"
	@echo "make cuda        compile the GPU kernels for sm_80, sm_90, sm_100, if there is nvcc"
	@echo "make vllm-venv   a separate environment with vLLM's CPU wheel, 3.4 GB"
	@echo "make engines-venv    one with SGLang's, LMCache's, NIXL's and llama.cpp's storage code, 3.3 GB"
	@echo "make clean       build results  (distclean: environments too; uninstall: the wrappers)"

setup: system build wrappers

system:
	@tools/system_packages.sh

# Re-run when the dependencies or the build description changed. setuptools is in the venv, so that
# `make build` needs no download; what is installed builds apart, each with the tools it asks for
# (without setuptools_scm, a pyfuse3 that is built here would be one of version 0.0.0).
$(SETUP_STAMP): pyproject.toml setup.py | system
	@test -x $(PY) || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	$(PY) -m pip install -q --disable-pip-version-check 'setuptools>=77' wheel
	$(PY) -m pip install -q --disable-pip-version-check -e '.[test,dev]'
	@touch $@

venv: $(SETUP_STAMP)

ifneq ($(words $(wildcard belugafs/_native.*.so belugafs/libbelugafs.so belugafs/kernels/_copy.*.so)),3)
.PHONY: $(BUILD_STAMP)
endif
$(BUILD_STAMP): $(SETUP_STAMP) $(C_SOURCES)
	$(PY) setup.py -q build_ext --inplace
	@touch $@

build: $(BUILD_STAMP)

# A build with -Werror that leaves the one in use alone.
werror: $(SETUP_STAMP)
	BELUGAFS_WERROR=1 $(PY) setup.py -q build_ext --force \
	    --build-temp build/werror/tmp --build-lib build/werror/lib

# mount(8) looks for its helper in /sbin, which takes root; without it, `mount.belugafs` from
# the venv does the same.
wrappers: $(SETUP_STAMP)
	@if [ "$$(id -u)" -eq 0 ]; then tools/wrappers.sh install $(VENV) || true; fi

demo: setup
	$(VENV)/bin/belugafs demo $(ARGS)

test: setup
	$(PYTEST) -m "not heavy and not full_size" $(ARGS) tests

# The mounted tests over the transport that `auto` doesn't take here.
test-pyfuse3: setup
	BELUGAFS_TEST_TRANSPORT=pyfuse3 $(PYTEST) -m "not heavy and not full_size" $(ARGS) tests/t3_mount

# The mounted tests on the other kind of pool: a tmpfs of its own, with passthrough. What is served without
# it there: BELUGAFS_TEST_PASSTHROUGH=off
test-directory: setup
	BELUGAFS_TEST_POOL_KIND=directory $(PYTEST) -m "not heavy and not full_size" $(ARGS) tests/t3_mount

test-heavy: setup vllm-venv engines-venv
	$(PY) -m pytest -m heavy $(ARGS) tests

test-full-size: setup
	$(PY) -m pytest -m full_size $(ARGS) tests

lint: $(SETUP_STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(SETUP_STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

asan tsan sim: setup
	$(MAKE) -C tests/native $@

cuda:
	$(MAKE) -C kernels cuda

vllm-venv:
	@tools/vllm_venv.sh .venv-vllm

engines-venv:
	@tools/engines_venv.sh .venv-engines

clean:
	rm -rf build dist belugafs/*.so belugafs/kernels/*.so kernels/build .pytest_cache .mypy_cache .ruff_cache $(BUILD_STAMP)
	if [ -f tests/native/Makefile ]; then $(MAKE) -C tests/native clean; fi

distclean: clean
	rm -rf $(VENV) .venv-vllm .venv-engines *.egg-info

uninstall:
	@if [ -d $(VENV) ]; then tools/wrappers.sh remove $(VENV); fi
