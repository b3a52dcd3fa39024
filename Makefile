# Two commands are all one needs: `make demo` and `make test`. Both install what is missing, build
# what changed, and may be repeated cheaply.

# The GPU backends are built where a GPU is visible, or where one asks for them: CUDA=1, CUDA=0.
CUDA ?= $(if $(shell nvidia-smi -L 2>/dev/null),1,0)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
preset := $(if $(filter 1,$(CUDA)),cuda,release)
build := build/$(preset)

.DEFAULT_GOAL := help
.PHONY: help setup demo test build format format-check clean

help:
	@echo 'make demo     long-context block-sparse attention and a sparse product, timed and checked;'
	@echo '              writes demo.html'
	@echo 'make test     build everything and run all tests that need no GPU'
	@echo 'make build    the library and the tool, in $(build)'
	@echo 'make format   clang-format over the tree'
	@echo 'make clean    remove build/'
	@echo
	@echo 'CUDA=1 builds the GPU backends (default: where a GPU is visible; here: $(CUDA)), JOBS=$(JOBS).'

setup:
	@scripts/setup.sh
	@$(if $(filter 1,$(CUDA)),scripts/venv.sh cuda)

$(build)/build.ninja: CMakePresets.json | setup
	cmake --preset $(preset)

build: setup $(build)/build.ninja
	cmake --build $(build) -j $(JOBS) --target tessera_tool

# With a GPU only the rows that the demonstration runs are needed; all of them build in minutes.
demo: build
	$(build)/tessera demo

test: setup $(build)/build.ninja
	cmake --build $(build) -j $(JOBS)
	ctest --test-dir $(build) --output-on-failure --no-tests=error

format format-check:
	@scripts/format.sh $@

clean:
	rm -rf build demo.html
