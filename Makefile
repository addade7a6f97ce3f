# One task runner.  `make demo` and `make test` need Python 3.11+ and a C compiler; both make their own .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard dlbf/kernels/*.pyx dlbf/kernels/*.pxd dlbf/kernels/*.h)

.PHONY: help demo test test-long lint bench asv asv-check asv-publish tables figures docs clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Everything the other targets need, built once and again when a kernel changes.
$(VENV)/.built: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -U pip setuptools wheel cython numpy
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[train,cli,plot,test,dev]'
	touch $@

# Peers are only for benchmarks, and one that does not install must not stop the rest.
$(VENV)/.peers: $(VENV)/.built
	for peer in rbloom fastbloom-rs pybloomfiltermmap3 hazy pyfusefilter learnedbf rocksdict plyvel; do \
	    $(BIN)/python -m pip install -q --disable-pip-version-check $$peer || echo "no $$peer here"; done
	touch $@

demo: $(VENV)/.built ## the main job, end to end
	$(BIN)/dlbf demo

test: $(VENV)/.built ## the default test suite
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-long: $(VENV)/.built ## everything, sanitizer builds included
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.built ## linters, types, stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint dlbf/kernels
	$(BIN)/mypy --strict -p dlbf
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-disjoint-bases --ignore-unused-allowlist --allowlist tests/stubtest-allow.txt \
	    $$(ls dlbf/kernels/*.pyx | sed -e 's/\.pyx$$//' -e 's,/,.,g')

bench: $(VENV)/.peers ## our filters and our store beside their peers
	$(BIN)/dlbf bench filters
	$(BIN)/dlbf bench store

# SECTIONS="filters store" measures those anew, SECTIONS=all what takes minutes; without it files are only rewritten.
# DLBF_DATA names the folder of real URL sets.
tables: $(VENV)/.peers ## the tables of README and docs from recorded figures; SECTIONS="filters store" records anew
	$(BIN)/python -m dlbf.bench.tables $(SECTIONS)

ASV := cd asv_bench && PATH="$(CURDIR)/$(BIN):$$PATH" asv

asv: $(VENV)/.peers ## every benchmark once, quickly
	$(ASV) machine --yes
	$(ASV) run --python=same --quick --show-stderr

asv-check: $(VENV)/.built ## every benchmark is found and well formed
	$(ASV) machine --yes
	$(ASV) check --python=same

# COMMITS="main~20..main" chooses others; each is built and measured in an environment of its own.
COMMITS ?= HEAD^!
asv-publish: $(VENV)/.built ## benchmark commits and build the HTML site in asv_bench/.asv/html
	$(ASV) machine --yes
	$(ASV) run --skip-existing-successful "$(COMMITS)"
	$(ASV) publish

clean: ## remove everything that was made
	rm -rf $(VENV) build dist *.egg-info dlbf/kernels/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
