"""What an installation has, and what it does without its extras.

The tests of an installed wheel run when ``DLBF_WHEEL`` names one (``make check-dist``); they make fresh environments.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.extension import build_example
from support.places import ROOT

import dlbf

WHEEL = os.environ.get("DLBF_WHEEL", "")
needs_wheel = pytest.mark.skipif(not WHEEL, reason="set DLBF_WHEEL to a wheel, or run `make check-dist`")
# Part of nothing that is needed to ask, fill, save or map a filter.
HEAVY = (
    "sklearn",
    "scipy",
    "pandas",
    "matplotlib",
    "click",
    "rich",
    "lmdb",
    "pyarrow",
    "concurrent.futures",
    "asyncio",
)


def run(python, *arguments, check=True, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    return subprocess.run(
        [str(python), *map(str, arguments)], env=kept | environment, capture_output=True, text=True, check=check
    )


# --- the sources


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.skipif(not (ROOT / "storage").is_dir(), reason="needs the layout of a checkout")
def test_every_package_is_installed():
    listed = set(project()["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "dlbf").rglob("__init__.py")}
    found |= {
        ".".join(("dlbf", *path.parent.relative_to(ROOT).parts)) for path in (ROOT / "storage").rglob("__init__.py")
    }
    assert listed == found


def test_extras_are_those_promised():
    extras = project()["project"]["optional-dependencies"]
    assert {"train", "cli", "plot", "bench", "engines", "test", "docs", "all"} <= set(extras)
    named = {name.strip() for name in extras["all"][0].split("[")[1].rstrip("]").split(",")}
    assert {"train", "cli", "plot", "bench", "engines"} <= named <= set(extras)


def test_wheels_are_configured_for_every_python():
    pytest.importorskip("cibuildwheel")
    command = ("-m", "cibuildwheel", "--print-build-identifiers", "--platform", "linux", "--archs", "x86_64")
    done = run(sys.executable, *command, ROOT)
    versions = {line.split("-")[0] for line in done.stdout.split()}
    assert versions == {"cp311", "cp312", "cp313", "cp314", "cp314t"}


# --- import


def test_import_loads_nothing_heavy():
    done = run(
        sys.executable, "-c", "import sys, dlbf; print(*sorted(sys.modules))", PYTHONPATH=os.pathsep.join(sys.path)
    )
    loaded = set(done.stdout.split())
    assert not [name for name in HEAVY if name in loaded]
    # A few of our own, up to three for a kind of filter (a plain `import numpy` is some 130 more); growth shows here
    # before it shows on a clock.
    assert len([name for name in loaded if name.partition(".")[0] == "dlbf"]) < 33


@pytest.mark.timing
def test_import_takes_little_more_than_numpy():
    code = "from time import perf_counter as now; a = now(); import numpy; b = now(); import dlbf; c = now()"
    times = []
    for _ in range(7):
        done = run(sys.executable, "-c", f"{code}; print(b - a, c - a)", PYTHONPATH=os.pathsep.join(sys.path))
        times.append(tuple(map(float, done.stdout.split())))
    alone, together = (min(column) for column in zip(*times, strict=True))
    # Under 150 ms, numpy included, on a machine that needs less than 100 ms for numpy; in proportion on a slower one.
    assert together < max(0.150, 1.5 * alone)


def test_python_m_dlbf_is_the_command():
    done = run(sys.executable, "-m", "dlbf", "--version", PYTHONPATH=os.pathsep.join(sys.path))
    assert done.stdout.split() == ["dlbf,", "version", dlbf.__version__]


# --- a wheel in a fresh environment


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A fresh environment with the wheel and what it requires: numpy and lmdb."""
    folder = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", WHEEL)
    return python


@needs_wheel
def test_wheel_has_what_is_used_and_no_sources():
    names = set(zipfile.ZipFile(WHEEL).namelist())
    for name in ("__init__.pxd", "capi.pxd", "capi.pyi", "py.typed", "kernels/core.pxd", "kernels/portable.h"):
        assert f"dlbf/{name}" in names
    assert {"dlbf/storage/store.py", "dlbf/storage/py.typed"} <= names
    kernels = {path.stem for path in (ROOT / "dlbf" / "kernels").glob("*.pyx")}
    compiled = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    assert compiled == kernels | {"capi", "_cython_shared"}
    wrong = [name for name in names if name.endswith((".pyx", ".c")) or not name.startswith(("dlbf/", "dlbf-"))]
    assert not wrong


@needs_wheel
def test_sdist_has_the_sources_and_nothing_made():
    (archive,) = Path(WHEEL).parent.glob("dlbf-*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for name in (
        "setup.py",
        "dlbf/kernels/core.pyx",
        "dlbf/kernels/portable.h",
        "storage/store.py",
        "tests/conftest.py",
        "tools/house.py",
    ):
        assert name in names
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("build", ".venv"))]
    assert not [name for name in names if name.startswith("dlbf/") and name.endswith(".c")]


@needs_wheel
def test_wheel_alone_fills_saves_maps_and_stores(bare, tmp_path):
    listed = run(bare, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check").stdout
    assert {line.partition("==")[0] for line in listed.split()} <= {"dlbf", "numpy", "lmdb", "pip", "setuptools"}
    code = """
import dlbf, sys
from dlbf.storage import Store
f = dlbf.CuckooFilter(100); f.add(b"k"); f.save("f.dlbf")
with dlbf.open_filter("f.dlbf") as g: assert b"k" in g
with Store("store") as s: s[b"k"] = b"v"; assert s.get(b"k") == b"v" and s.get(b"x") is None
assert "sklearn" not in sys.modules
"""
    subprocess.run([bare, "-c", code], cwd=tmp_path, check=True)


@needs_wheel
def test_command_line_without_its_extra_says_what_to_install(bare):
    for command in ((bare, "-m", "dlbf", "demo"), (bare.parent / "dlbf", "demo")):
        done = run(*command, check=False)
        assert done.returncode == 2
        assert "pip install 'dlbf[cli]'" in done.stderr
        assert "Traceback" not in done.stderr


@needs_wheel
def test_learning_without_its_extra_says_what_to_install(bare, tmp_path):
    run(bare, "-m", "pip", "install", "-q", "--disable-pip-version-check", "click", "rich")
    (tmp_path / "keys").write_text("".join(f"key{i}.example/a\n" for i in range(300)))
    (tmp_path / "absent").write_text("".join(f"{i}/other\n" for i in range(3000)))
    done = run(bare, "-m", "dlbf", "fit", tmp_path / "keys", tmp_path / "absent", "-o", tmp_path / "out", check=False)
    assert done.returncode == 2
    assert "dlbf[train]" in done.stderr
    assert "Traceback" not in done.stderr


@needs_wheel
def test_cython_example_builds_against_the_wheel(bare, tmp_path):
    run(bare, "-m", "pip", "install", "-q", "--disable-pip-version-check", "cython", "setuptools")
    build_example(tmp_path / "example", bare)
    code = """
import dlbf, ask
for f in (dlbf.CuckooFilter(100), dlbf.BloomFilter(100), dlbf.ExactSet()):
    f.update([b"a", b"b"])
    assert ask.ask_many(f, [b"a", b"b", b"no key of it"]) == [True, True, False]
    assert ask.count(f, b"a\\nb\\nno key of it") == 2
"""
    subprocess.run([bare, "-c", code], cwd=tmp_path / "example", check=True)


@needs_wheel
def test_golden_files_are_read_by_the_wheel(bare, tmp_path):
    shutil.copytree(ROOT / "tests" / "data", tmp_path / "data")
    # A layered filter is kept in stores only, and has no file of its own.
    for path in (tmp_path / "data").glob("layered*"):
        path.unlink()
    code = "import dlbf, pathlib\nfor p in pathlib.Path('data').glob('*.bin'):\n  secret = bytes(range(16))\n"
    code += "  dlbf.open_filter(p, secret=secret if 'keyed' in p.name else None).close()"
    subprocess.run([bare, "-c", code], cwd=tmp_path, check=True)
