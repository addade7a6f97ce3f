"""Every example in a docstring runs, and every public name has one."""

import doctest
import importlib
import inspect
import pkgutil
import sys

import pytest

import dlbf
import dlbf.storage

# Where a newcomer looks: everything in the __all__ of these is a public name.
PUBLIC = ("dlbf", "dlbf.capi", "dlbf.filters", "dlbf.learned", "dlbf.models", "dlbf.storage", "dlbf.theory")


def modules():
    """Names of all modules of the package; ``storage/`` is elsewhere in a checkout, so it is walked by itself."""
    found = {"dlbf"}
    for package in (dlbf, dlbf.storage):
        found.add(package.__name__)
        found.update(module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    return sorted(found - {"dlbf.__main__"})


def public_names():
    for module in PUBLIC:
        known = importlib.import_module(module)
        for name in getattr(known, "__all__", None) or [n for n in vars(known) if not n.startswith("_")]:
            thing = getattr(known, name)
            callable_ = inspect.isclass(thing) or inspect.isroutine(thing)
            if callable_ and str(thing.__module__).startswith("dlbf"):
                yield f"{module}.{name}"


def test_modules_are_all_found():
    assert {"dlbf.capi", "dlbf.filters.bloom", "dlbf.storage.store", "dlbf.kernels.core"} <= set(modules())


@pytest.mark.parametrize("name", modules())
def test_examples_of_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs an extra: {error}")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags)
    report = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("name", sorted(set(public_names())))
def test_public_name_has_an_example(name):
    module, _, attribute = name.rpartition(".")
    thing = getattr(sys.modules[module], attribute)
    text = inspect.getdoc(thing) if thing.__doc__ else None
    assert text, f"{name} has no docstring"
    assert ">>> " in text, f"the docstring of {name} has no example"
