"""The house rules: what tools/house.py counts, its limits, and the layers."""

import json
import sys

import pytest
from support.places import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import house
import house_layers


@pytest.fixture
def made(tmp_path):
    """A function that writes files of a package ``dlbf`` and reads them."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / "dlbf" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return house.load(tmp_path, {"dlbf": "dlbf"})

    return make


def figure(modules, title):
    return next(one for one in house.count(modules, house.LIMITS) if one.title == title)


def targets(modules, name):
    return {edge.target for edge in modules[name].imports}


def uses(modules, name):
    return [place.what for place in modules[name].private]


# --- the package itself


@pytest.fixture(scope="module")
def package():
    return house.load(ROOT, house.PACKAGE)


@pytest.mark.parametrize("title", house.LIMITS)
def test_figure_of_the_package_is_within_its_limit(package, title):
    found = figure(package, title)
    assert found.value <= house.LIMITS[title], "\n".join([f"{title}: {found.value}", *found.offenders])


def test_limits_are_those_that_were_agreed():
    assert house.LIMITS == {
        house.CYCLES: 0,
        house.LAYERS: 0,
        house.PRIVATE: 0,
        house.FIELDS: 0,
        house.NAMES: 0,
        house.PYTHON: 0,
        house.CYTHON: 0,
        house.FUNCTIONS: 5,
        house.ANY: 80,
    }


def test_no_import_goes_against_the_layers(package):
    assert [f"{edge.where}: {why}" for _, edge, why in house_layers.forbidden(package)] == []


def test_every_module_of_the_package_has_a_layer(package):
    assert [name for name in package if house_layers.layer_of(name) is None] == []


def test_layers_name_only_layers_listed_before_them():
    before = set()
    for title, layer in house_layers.LAYERS.items():
        assert before.issuperset(layer.may_import), title
        before.add(title)


def test_everything_is_read(package):
    # Anchors in each language, so that a reader that overlooks a folder is noticed.
    assert package["dlbf.storage.store"].classes["Store"].fields
    assert "filter_id" in package["dlbf.kernels.core"].classes["FilterCore"].fields  # from the .pxd
    assert "__contains__" in package["dlbf.kernels.core"].classes["FilterCore"].names  # from the .pyx
    assert package["dlbf.kernels.core"].signatures  # from the .pyi
    assert "dlbf.kernels.keys" in targets(package, "dlbf.kernels.hashing")
    assert "dlbf.learned" in targets(package, "dlbf")


# --- imports


@pytest.mark.parametrize(
    "back",
    [
        "from dlbf.a import x\n",
        "import dlbf.a\n",
        "from dlbf import a\n",
        "from . import a\n",
        "from .a import x\n",
        "def f():\n    from dlbf.a import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dlbf.a import x\n",
        "import importlib\ndef f():\n    return importlib.import_module('dlbf.a')\n",
        "import importlib\nHOME = {'x': 'a'}\ndef f(n):\n    return importlib.import_module(f'dlbf.{HOME[n]}')\n",
        "make(package='dlbf', commands={'a': 'the first'})\n",
    ],
)
def test_cycle_is_found_whatever_the_import(made, back):
    modules = made({"__init__.py": "", "a.py": "from dlbf.b import y\n", "b.py": back, "c.py": "import dlbf.a\n"})
    found = figure(modules, house.CYCLES)
    assert found.value == 2
    assert found.offenders[0].startswith("2 modules: dlbf.a, dlbf.b; one way round: dlbf/a.py:1 imports dlbf.b; dlbf/b")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.pyx", "from dlbf.a cimport (\n    x, y as z,\n)\n"),
        ("b.pxd", "cimport dlbf.a\n"),
        ("b.pyi", "from dlbf.a import X\n"),
    ],
)
def test_cycle_through_cython_and_stubs_is_found(made, name, text):
    modules = made({"__init__.py": "", "a.py": "import dlbf.b\n", "b.pyx": "", name: text})
    assert figure(modules, house.CYCLES).value == 2


def test_what_docstrings_and_comments_import_does_not_count(made):
    text = '"""An example.\n\n    from dlbf.a cimport x\n"""\n# from dlbf.a cimport y\n'
    modules = made({"__init__.py": "", "a.py": "import dlbf.b\n", "b.pyx": text})
    assert figure(modules, house.CYCLES).value == 0


def test_package_counts_only_if_a_name_of_its_own_is_asked_for(made):
    init = "from dlbf.p.a import x\n"
    files = {"__init__.py": "", "p/__init__.py": init, "p/a.py": "", "p/b.py": "from dlbf.p import a\n"}
    modules = made(files)
    assert targets(modules, "dlbf.p.b") == {"dlbf.p.a"}
    assert targets(made(files | {"p/b.py": "from dlbf.p import x\n"}), "dlbf.p.b") == {"dlbf.p"}
    assert figure(made(files | {"p/a.py": "def f():\n    from dlbf.p import y\n"}), house.CYCLES).value == 2


def test_forbidden_import_is_found_and_says_which_rule_it_breaks(made):
    modules = made({"kernels/core.pyx": "", "filters/bloom.py": "from dlbf.kernels.core import x\n"})
    assert figure(modules, house.LAYERS).value == 0
    modules = made({"kernels/core.pyi": "from dlbf.filters.bloom import x\n"})
    assert figure(modules, house.LAYERS).offenders == [
        "dlbf/kernels/core.pyi:1  dlbf.kernels.core -> dlbf.filters.bloom: kernels may not import filters"
    ]


def test_module_without_a_layer_is_found(made):
    modules = made({"errors.py": "", "novel.py": "import dlbf.errors\n"})
    assert "dlbf.novel has no layer" in figure(modules, house.LAYERS).offenders[0]


def test_modules_that_must_stay_apart_may_not_lead_to_each_other(made):
    files = {"storage/store.py": "import dlbf.storage.middle\n", "storage/guard.py": "", "storage/middle.py": ""}
    assert figure(made(files), house.LAYERS).value == 0
    modules = made(files | {"storage/middle.py": "def f():\n    import dlbf.storage.guard\n"})
    assert "dlbf.storage.store leads to it" in figure(modules, house.LAYERS).offenders[0]


# --- private names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from dlbf.a import _x\n", ["from dlbf.a import _x"]),
        ("from dlbf import a\na._x()\n", ["a._x"]),
        ("import dlbf.a\ndlbf.a._x()\n", ["dlbf.a._x"]),
        ("def f(thing):\n    return thing.part._x\n", ["thing.part._x"]),
        ("def f(thing):\n    thing._x = 1\n", ["thing._x"]),
        ("def f(thing):\n    return getattr(thing, '_x')\n", ["thing._x"]),
        ("from dlbf.a import A\ndef f(thing: A | None):\n    return thing._x\nclass B:\n    _x = 1\n", ["thing._x"]),
        ("def f(self):\n    return A._x(self.a._y)\n", ["A._x", "self.a._y"]),
        ("def f(self, a):\n    return a._x(self)\n", ["a._x"]),
        ("from dlbf.a import A\nA._x()\nclass B:\n    _x = 1\n", ["A._x"]),
        ("from typing import Any\ndef f(thing: Any):\n    return thing._x\n", ["thing._x"]),
        # a module's own
        ("class B:\n    def f(self, other):\n        return self._x + other._x\n    def _x(self): ...\n", []),
        ("class B:\n    def f(self):\n        self._x = 1\ndef g(b):\n    return b._x\n", []),
        ("class B:\n    __slots__ = ('_x',)\ndef g(b):\n    return b._x\n", []),
        ("from dlbf.a import A\nclass B(A):\n    def f(self, other: 'B'):\n        return other._x + A._x(self)\n", []),
        # everybody's
        ("import os\nos._exit(1)\n", []),
        ("def f(row):\n    return row._replace(a=1), row.__dict__\n", []),
    ],
)
def test_private_use_of_python(made, text, found):
    modules = made({"__init__.py": "", "a.py": "def _x(): ...\nclass A: ...\n", "b.py": text})
    assert uses(modules, "dlbf.b") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from dlbf.a cimport _x\n", ["from dlbf.a import _x"]),
        ("def f(thing):\n    return thing._x(1)\n", ["thing._x"]),
        ("def f(thing):\n    return getattr(thing, '_x'), getattr(thing, \"_y\")\n", ["thing._x", "thing._y"]),
        ("cdef class B:\n    cdef object _x\ndef f(thing):\n    return thing._x\n", []),
        ("cdef class B:\n    cdef int _x(self, int n) noexcept:\n        return self._x(n)\n", []),
        ("from dlbf.a cimport A\ncdef class B(A):\n    def f(self, B other):\n        A._x(self, other._x)\n", []),
        ("from dlbf.a cimport A\ncdef class B:\n    cdef int _x\ndef f(A thing):\n    return thing._x\n", ["thing._x"]),
        ('def f(thing):\n    """As thing._x."""  # thing._x\n', []),
    ],
)
def test_private_use_of_cython(made, text, found):
    modules = made({"__init__.py": "", "a.pyx": "cdef class A:\n    pass\n", "b.pyx": text})
    assert uses(modules, "dlbf.b") == found


def test_private_names_of_a_base_elsewhere_are_a_figure_apart(made):
    text = "from dlbf.a import A\nclass B(A):\n    def f(self):\n        return self._x\n"
    modules = made({"__init__.py": "", "a.py": "class A:\n    _x = 1\n", "b.py": text})
    assert [place.what for place in modules["dlbf.b"].inherited] == ["self._x"]
    assert figure(modules, house.PRIVATE).value == 0


# --- classes


def test_fields_are_counted_however_they_are_made(made):
    modules = made(
        {
            "a.py": (
                "class A:\n    one: int\n    none: ClassVar[int] = 1\n    plain = 2\n    __slots__ = ('two', 'nine')\n"
                "    def f(self):\n        self.three, self.four = 1, 2\n        self.five += 1\n        self.two = 2\n"
                "        with open('x') as self.six:\n            pass\n        other.seven = self.eight = 7\n"
                "    @property\n    def eight(self): ...\n"
            )
        }
    )
    found = modules["dlbf.a"].classes["A"]
    assert found.fields == {"one", "two", "three", "four", "five", "six", "nine"}
    assert found.names == {"none", "plain", "f", "eight"}


def test_fields_of_cython_are_those_of_pxd_and_pyx(made):
    modules = made(
        {
            "a.pxd": (
                "cdef class A:\n    cdef readonly int one   # first\n    cdef const char* two\n"
                "    cdef int three, four[4]\n    cdef int f(self, int n) noexcept nogil\n"
            ),
            "b.pyx": (
                "from dlbf.a cimport A\ncdef class B(A):\n    cdef public dict five\n    limit = 3\n    def g(self):\n"
                "        cdef int local = 1\n        self.six = local == 2\n        if self.seven == 1: pass\n"
            ),
        }
    )
    a, b = modules["dlbf.a"].classes["A"], modules["dlbf.b"].classes["B"]
    assert (a.fields, a.names) == ({"one", "two", "three", "four"}, {"f"})
    assert (b.fields, b.names) == ({"five", "six"}, {"limit", "g"})


def test_inherited_fields_count_and_inherited_names_do_not(made):
    fields = "".join(f"    f{i}: int\n" for i in range(20))
    methods = "".join(f"    def m{i}(self): ...\n" for i in range(30))
    modules = made(
        {
            "p/__init__.py": "from dlbf.p.a import A\n",
            "p/a.py": f"class A:\n{fields}{methods[: methods.index('    def m20')]}",
            "b.py": "from dlbf.p import A\nclass B(A):\n" + fields.replace(" f", " g").replace("g1", "f1") + methods,
        }
    )
    assert figure(modules, house.FIELDS).offenders == ["   29  dlbf/b.py:2  B"]
    assert figure(modules, house.NAMES).value == 0  # 30 methods and 9 fields that are not A's
    assert figure(modules, "classes above 45 names with the inherited ones").offenders == ["   59  dlbf/b.py:2  B"]
    modules = made({"c.py": "class C:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(46))})
    assert figure(modules, house.NAMES).offenders == ["   46  dlbf/c.py:1  C"]


# --- lines


@pytest.mark.parametrize(
    ("name", "limit", "title"),
    [
        ("a.py", 500, house.PYTHON),
        ("a.pyi", 500, house.PYTHON),
        ("a.pyx", 700, house.CYTHON),
        ("a.pxd", 700, house.CYTHON),
    ],
)
def test_long_file_is_found(made, name, limit, title):
    assert figure(made({name: "\n" * limit}), title).value == 0
    assert figure(made({name: "\n" * (limit + 1)}), title).offenders == [f"  {limit + 1}  dlbf/{name}"]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a.py", "def f(\n    a,\n):\n"),
        ("a.py", "class A:\n  async def f(\n    a,\n  ):\n"),
        ("a.pyx", "def f(\n    a,\n):\n"),
        ("a.pyx", "cdef class A:\n  cdef inline int f(\n    self, int a,\n  ) except -1:\n"),
        ("a.pxd", "cdef inline int f(\n    int a,\n) noexcept nogil:\n"),
    ],
)
def test_long_function_is_found_and_its_docstring_does_not_count(made, name, head):
    head += '    """A docstring\n    of two lines."""\n'
    after = "\nx = 1\n"
    assert figure(made({name: head + "    a\n" * 57 + after}), house.FUNCTIONS).value == 0
    found = figure(made({name: head + "    a\n" * 58 + after}), house.FUNCTIONS)
    assert found.value == 1
    assert found.offenders[0].startswith("   61  dlbf/a.p")


# --- signatures


@pytest.mark.parametrize(
    ("name", "text", "n"),
    [
        ("a.py", "def f(a: Any, b: Any) -> Any: ...\n", 1),
        ("a.py", "class A:\n    def f(self) -> dict[str, 'Any']: ...\n    def g(self, *a: Any, **b: Any): ...\n", 2),
        ("a.pyi", "class A:\n    def f(self, *, a: Any = ...) -> None: ...\n", 1),
        ("a.py", "@overload\ndef f(a: int): ...\n@overload\ndef f(a: Any): ...\ndef f(a: Any): ...\n", 1),
        ("a.py", "def f():\n    def g(a: Any): ...\n    if 1:\n        def h(a: Any): ...\n", 2),
        ("a.py", "import typing as t\ndef f(a: t.Any): ...\n", 1),
        ("a.py", "from typing import Any as Whatever\ndef f(a: Whatever): ...\n", 1),
        ("a.py", "Row = dict[str, Any]\nTable = list[Row]\ndef f(a: Table): ...\n", 1),
        ("a.py", "from dlbf.b import Row as R\ndef f(a: R): ...\n", 1),
        ("a.py", "def f(a: AnyStr) -> Anything:\n    b: Any = any(a)\n", 0),
    ],
)
def test_any_in_signatures(made, name, text, n):
    modules = made({"b.py": "from typing import Any\nRow = dict[str, Any]\n", name: text})
    assert figure(modules, house.ANY).value == n


# --- the command


def test_command_prints_and_checks(made, tmp_path, capsys):
    made({"a.py": "import dlbf.b\n", "b.py": "import dlbf.a\n"})
    assert house.main([str(tmp_path)]) == 0
    assert "!       2      0  modules in a cycle" in capsys.readouterr().out
    assert house.main([str(tmp_path), "--check", "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)["package"]
    assert figures[0]["title"] == house.CYCLES
    assert figures[0]["value"] == 2
    made({"a.py": "", "b.py": ""})
    assert house.main([str(tmp_path), "--check"]) == 0


def test_every_offender_is_listed_on_request(made, tmp_path, capsys):
    made({"errors.py": "".join(f"thing._x{i}\n" for i in range(9)), "plain.py": "def f(a: Any): ...\n"})
    house.main([str(tmp_path)])
    assert "and 6 more: --all" in capsys.readouterr().out
    house.main([str(tmp_path), "--all"])
    shown = capsys.readouterr().out
    assert "dlbf/plain.py:1  f" in shown  # which is within its limit
    assert [i for i in range(9) if f"dlbf/errors.py:{i + 1}  thing._x{i}" not in shown] == []
