# SPDX-License-Identifier: MIT
# A thin front of CMake (CMakePresets.json has the builds). make: build/ulysses; make deps: the Debian packages;
# make test, make demo: all of it first when needed; make parity: every combination of method, ranks, model, documents and
# dtype, and what it measured into docs/parity.md; make asan, tsan, clang: other builds, in build-asan and so on.
# CMAKE_FLAGS goes to cmake's configuration, JOBS is the number of compilers and tests at a time.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
MAKEFLAGS += --no-print-directory

all: build/.configured
	@cmake --build build -j $(JOBS)

build/.configured:
	@tools/deps.sh --check build
	@cmake --preset release $(CMAKE_FLAGS)
	@touch $@

deps:
	@tools/deps.sh build test demo

test:
	@tools/deps.sh build test
	@cmake --preset release $(CMAKE_FLAGS)
	@touch build/.configured
	@cmake --build build -j $(JOBS)
	@ctest --test-dir build --output-on-failure -j $(JOBS)

parity: all
	@tools/parity.sh

demo:
	@tools/deps.sh build demo
	@$(MAKE) --no-print-directory all
	@tools/demo.sh

asan tsan clang debug:
	@tools/deps.sh --check build
	@cmake --preset $@ $(CMAKE_FLAGS)
	@cmake --build build-$@ -j $(JOBS)

format:
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format -i

check:
	@python3 tools/check_layers.py
	@python3 tools/check_source.py
	@tools/check_headers.sh

install: all
	@cmake --install build --prefix $(PREFIX)

clean:
	@rm -rf build build-asan build-tsan build-clang build-debug

.PHONY: all deps test parity demo asan tsan clang debug format check install clean
