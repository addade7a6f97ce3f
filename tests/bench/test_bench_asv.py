"""Every benchmark of the asv suite is imported and run once, on a few thousand keys."""

import importlib
import inspect
import shutil
import sys

import pytest
from support.places import ROOT

pytest.importorskip("sklearn")
pytest.importorskip("lmdb")
SUITE = ROOT / "asv_bench"
MODULES = sorted(
    path.stem for path in (SUITE / "benchmarks").glob("*.py") if path.stem not in ("__init__", "common", "hot_paths")
)
PREFIXES = ("time_", "track_", "peakmem_")


@pytest.fixture(scope="module")
def suite():
    """The package ``benchmarks`` with tiny sizes, as asv imports it; gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLBF_BENCH_TINY", "1")
        patch.syspath_prepend(str(SUITE))
        yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name == "benchmarks" or name.startswith("benchmarks.")]:
        del sys.modules[name]


def classes(module):
    """The benchmark classes of a module, with the names of their benchmarks."""
    for name, cls in inspect.getmembers(module, inspect.isclass):
        methods = [method for method in dir(cls) if method.startswith(PREFIXES)]
        if cls.__module__ == module.__name__ and methods:
            yield name, cls, methods


def combinations(params):
    """Every value of every parameter at least once, the others at their first."""
    first = [values[0] for values in params]
    yield tuple(first)
    for i, values in enumerate(params):
        for value in values[1:]:
            yield (*first[:i], value, *first[i + 1 :])


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_runs(suite, name, tmp_path, monkeypatch):
    if name == "instructions" and shutil.which("valgrind") is None:
        pytest.skip("counting needs valgrind")
    monkeypatch.chdir(tmp_path)  # asv calls setup_cache in a folder of its own, too
    found = list(classes(suite(name)))
    assert found, f"{name}.py has no benchmarks"
    caches = {}
    for title, cls, methods in found:
        params = getattr(cls, "params", [])
        assert len(params) == len(getattr(cls, "param_names", [])), f"{title}: every parameter needs a name"
        make_cache = getattr(cls, "setup_cache", None)
        if make_cache is not None and make_cache not in caches:
            caches[make_cache] = cls().setup_cache()
        cache = () if make_cache is None else (caches[make_cache],)
        for values in combinations(params) if params else [()]:
            ran = run_all(cls, methods, cache + values)
            assert ran or values != tuple(each[0] for each in params), f"{title}: nothing runs with {values}"


def run_all(cls, methods, arguments):
    """Benchmarks as asv runs them, but with one setup for all; False if that says that they do not apply."""
    instance = cls()
    try:
        if hasattr(instance, "setup"):
            instance.setup(*arguments)
    except NotImplementedError:
        return False
    try:
        for method in methods:
            result = getattr(instance, method)(*arguments)
            if method.startswith("track_"):
                assert isinstance(result, (int, float)), f"{cls.__name__}.{method} tracks {result!r}, not a number"
    finally:
        if hasattr(instance, "teardown"):
            instance.teardown(*arguments)
    return True
