# make demo   train a policy, freeze it, compare it with fixed widths
# make test   lint, types, tests
# make sanitize   the CPU kernels on random bytes under ASan and UBSan, then, as shipped, between guard pages (needs g++ 12)
# make fuzz       the same on bytes guided by coverage: under libFuzzer (needs clang), then its corpus between guard pages
# make setup  the shared first part: a virtual environment with everything in it
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(sort pyproject.toml setup.py $(shell find mqgrad cuda_ext trainers envs agents experiments \
             -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.mqg'))
PYTHON_ID = $(shell $(PYTHON) -c 'import sys; print(sys.base_prefix, sys.hexversion)')

# An installed copy names the commit that it was built from beside every figure.
INSTALLED := $(strip $(SOURCES) $(shell git rev-parse --short=12 HEAD 2>/dev/null))

.PHONY: setup demo test lint types sanitize fuzz clean

setup: $(VENV)/.installed

# Stamps hold what no file's time tells: that another Python was asked for, that a source was deleted or renamed, and
# that what was changed has been committed.
ifneq ($(origin PYTHON),file)
ifneq ($(PYTHON_ID),$(shell cat $(VENV)/.torch 2>/dev/null))
.PHONY: $(VENV)/.torch
endif
endif
ifneq ($(INSTALLED),$(shell cat $(VENV)/.installed 2>/dev/null))
.PHONY: $(VENV)/.installed
endif

# Torch comes first and alone: a build environment of pip's own would download a second one.
$(VENV)/.torch: constraints.txt
	@echo 'Installing torch and the rest into $(VENV), once: this takes minutes.'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt "setuptools>=77" wheel ninja torch
	@echo '$(PYTHON_ID)' > $@

# Installed as users install it, not in editable mode: the tests must see the folder-to-package mapping.
$(VENV)/.installed: $(VENV)/.torch $(SOURCES)
	rm -rf build/lib* && PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install --quiet --constraint constraints.txt \
		--no-build-isolation ".[train,dev]"
	@echo '$(INSTALLED)' > $@

demo: setup
	$(BIN)/mqgrad demo --output demo-output

test: setup lint types
	MQGRAD_REQUIRE_EXTENSION=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# From inside other folders, so that `mqgrad` is the installed package and not ./mqgrad. Benchmarks are not installed.
types: setup
	cd $(VENV) && bin/mypy --config-file ../pyproject.toml --package mqgrad
	cd experiments/benchmarks && MYPYPATH=../../tests/support ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		--explicit-package-bases *.py

sanitize fuzz: setup
	$(BIN)/python tests/support/fuzz_kernels.py $@

clean:
	rm -rf $(VENV) build *.egg-info demo-output .mypy_cache .pytest_cache .ruff_cache
