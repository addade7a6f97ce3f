"""The names that users see: no more and no fewer than the documented ones."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT

import dlbf
from dlbf.storage import Guard, Store

MAPPING = {"get", "items", "keys", "values", "pop", "popitem", "setdefault", "update", "clear"}
STORE = MAPPING | {
    "backup", "checkpoint", "close", "contains_many", "delete", "drift", "get_many", "ledger", "path", "put",
    "readonly", "rebuild", "snapshot", "source", "state", "stats", "sync", "traffic", "verify", "write",
}  # fmt: skip
GUARD = STORE | {"attach", "delete_many", "engine"}
VIEW = {"get", "items", "keys"}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_dir_of_the_package_is_its_public_names_and_nothing_it_imports():
    # In a process where nothing has been imported that a user would not have imported.
    code = "import dlbf, json; print(json.dumps([dir(dlbf), dlbf.__all__]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed, exported = map(set, json.loads(done.stdout))
    assert {name for name in listed if not name.startswith("__")} == (exported | {"storage"}) - {"__version__"}
    assert {"LearnedFilter", "models", "theory", "storage", "__version__", "__doc__"} <= listed
    for name in listed:
        getattr(dlbf, name)


@pytest.mark.parametrize("module", [dlbf.models, dlbf.theory, dlbf.storage, dlbf.filters])
def test_everything_a_module_exports_is_there_and_listed(module):
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        getattr(module, name)


def test_stores_and_guards_show_what_is_documented_and_nothing_else(tmp_path):
    with Store(tmp_path / "store") as store, Guard({}, tmp_path / "guard") as guard:
        assert public(store) == STORE
        assert public(guard) == GUARD
        with store.write() as txn, store.snapshot() as view:
            assert public(txn) == VIEW | {"abort", "commit", "delete", "put"}
            assert public(view) == VIEW | {"close", "txn_id"}
        for thing in (store, guard, txn, view):
            for name in public(thing):
                found = inspect.getattr_static(type(thing), name, None)
                if not callable(found) and not isinstance(found, property):  # an attribute: the class tells
                    about = " ".join(inspect.getdoc(base) or "" for base in type(thing).__mro__)
                    assert re.search(rf"\b{name} : ", about), (type(thing), name)
                else:
                    assert inspect.getdoc(found), (type(thing), name)


@pytest.mark.parametrize("name", ["lookup", "changes", "core"])
def test_stubs_of_compiled_classes_type_the_keys_and_values_of_public_methods(name):
    """Type checkers (and the API pages) know the methods of stores and filters only from the stubs."""
    tree = ast.parse((Path(dlbf.__file__).parent / "kernels" / f"{name}.pyi").read_text())
    methods = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    seen = 0
    for method in methods:
        if method.name.startswith("_") and method.name not in ("__getitem__", "__setitem__", "__delitem__"):
            continue
        for argument in method.args.args:
            if argument.arg in ("key", "value"):
                seen += 1
                assert "Any" not in ast.unparse(argument.annotation), f"{method.name} in line {method.lineno}"
    assert seen


SOURCES = [
    path for folder in ("dlbf", "storage") for path in (ROOT / folder).rglob("*.py*") if path.suffix in (".py", ".pyi")
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_read_well_on_the_pages_of_the_api(path):
    """They are Markdown there: a role is shown as it is, and names without a type get the first one's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        assert not re.search(r":(class|meth|func|mod|data|attr|exc|obj|ref):`", text), (path, getattr(node, "name", ""))
        section = re.search(r"^Parameters\n-+\n(.*?)(\n\n[A-Z][a-z]+\n-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
        makers = [node] if not isinstance(node, ast.ClassDef) else node.body
        types = {
            each.arg: ast.unparse(each.annotation)
            for maker in makers if isinstance(maker, ast.FunctionDef) and (maker is node or maker.name == "__init__")
            for each in (*maker.args.args, *maker.args.kwonlyargs) if each.annotation is not None
        }  # fmt: skip
        for line in section[1].splitlines() if section else ():
            names = re.fullmatch(r"(\w+(?:, \w+)+)( :.*)?", line)
            if names:
                shown = (names[2] or "").removesuffix(", optional")
                assert "," not in shown or "{" in shown, (path, getattr(node, "name", ""), line)
                found = {types[name] for name in names[1].split(", ") if name in types}
                assert shown or len(found) <= 1, (path, getattr(node, "name", ""), line)
