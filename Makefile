# The main commands are `make demo` and `make test` (scripts/demo.sh and scripts/test.sh without make).
# Both install missing packages and build what changed, so repeating them is cheap.

# The GPU backends are built if a GPU is visible; CUDA=1 or CUDA=0 overrides this.
CUDA ?= $(if $(shell nvidia-smi -L 2>/dev/null),1,0)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
preset := $(if $(filter 1,$(CUDA)),cuda,release)
build := build/$(preset)

.DEFAULT_GOAL := help
.PHONY: help setup demo test build python wheel bench gpu-check tables report docs format \
  format-check lint tidy release-check clean

help:
	@echo 'make demo     long-context block-sparse attention and a sparse product, timed and checked;'
	@echo '              writes demo.html'
	@echo 'make test     build everything and run all tests that need no GPU; TORCH=1 with PyTorch and'
	@echo '              transformers too (6 GB on disk)'
	@echo 'make bench    measure this CPU against named peers; ARGS="..." for python -m tessera.bench'
	@echo 'make gpu-check  on a machine with a GPU: tests, sanitizers and benchmark into one JSON;'
	@echo '              ARGS="--quick" for a short run'
	@echo 'make tables   the tables and pictures of the documentation, from bench/results'
	@echo 'make report   all results of bench/results as one page, report.html'
	@echo 'make docs     the documentation as a site, with the API reference: build/site/index.html'
	@echo 'make python   the Python package, into .venv'
	@echo 'make wheel    one wheel in dist/: CPU and GPU backends, the tool, the C++ headers; CUDA=0 without GPU'
	@echo 'make build    the library and the tool, in $(build)'
	@echo 'make format   clang-format over the tree'
	@echo 'make lint     ruff, codespell and mypy; names and commit subjects'
	@echo 'make tidy     clang-tidy over src/; FILES="src/core/check.cpp" for single files'
	@echo 'make release-check  checks of a release beyond .ci/run; ARGS="wheel" for one part'
	@echo 'make clean    remove build/, dist/, demo.html and report.html'
	@echo
	@echo 'CUDA=1 builds the GPU backends (default: 1 if a GPU is visible; here: $(CUDA)), JOBS=$(JOBS).'

setup:
	@scripts/setup.sh $(if $(filter 1,$(TORCH)),torch)
	@$(if $(filter 1,$(CUDA)),scripts/venv.sh cuda)

$(build)/build.ninja: CMakePresets.json | setup
	cmake --preset $(preset) $(CMAKE_ARGS)

build: setup $(build)/build.ninja
	cmake --build $(build) -j $(JOBS) --target tessera_tool

demo: build
	$(build)/tessera demo

test: setup $(build)/build.ninja
	cmake --build $(build) -j $(JOBS)
	ctest --test-dir $(build) --output-on-failure --no-tests=error -j $(JOBS)
	@$(MAKE) --no-print-directory python
	.venv/bin/python3 -m pytest -q tests/python

# The build folder is build/python, not a temporary one of pip, so that repeats compile only what
# changed.
python: setup
	@scripts/venv.sh test $(if $(filter 1,$(TORCH)),torch)
	@echo "Building the Python package with $(if $(filter 1,$(CUDA)),the GPU backends,only the CPU backend)."
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) .venv/bin/python3 -m pip install -q --disable-pip-version-check \
	  --no-build-isolation --no-deps \
	  --config-settings=cmake.define.TESSERA_CUDA=$(if $(filter 1,$(CUDA)),ON,OFF) .
	@.venv/bin/python3 -c 'from importlib.metadata import version; print("tessera", version("tessera"), "is in .venv")'

# Has the GPU backends unless CUDA=0 is given. Building them needs no GPU.
wheel: setup
	@CUDA=$(if $(filter file,$(origin CUDA)),1,$(CUDA)) CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) scripts/wheel.sh

bench: python
	.venv/bin/python3 -m tessera.bench $(or $(ARGS),suite bench/workloads/cpu.json --device cpu)

gpu-check:
	$(or $(wildcard .venv/bin/python3),python3) tools/gpu_check.py $(ARGS)

tables:
	@python3 tools/tables.py

report:
	@python3 tools/tables.py --report report.html

# Broken links are errors.
docs:
	@scripts/venv.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python3 -m mkdocs build --strict
	@echo 'build/site/index.html: open it through "python3 -m http.server -d build/site"'

format format-check:
	@scripts/format.sh $@

lint:
	@scripts/lint.sh

tidy:
	@scripts/tidy.sh $(FILES)

release-check:
	@.ci/release $(ARGS)

clean:
	rm -rf build dist demo.html report.html
