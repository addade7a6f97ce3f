"""The suite under the address and undefined-behaviour sanitizers, with the kernels' own checks on.

Builds a copy of the sources (a minute) and runs the other tests with it (a few more).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Statistics tell nothing new here, and thousands of processes would start under the sanitizer.
TESTS = ("hashing", "keys", "filters", "filters_stateful", "format", "threads")


def library(name: str) -> str:
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"gcc has no {name}")
    return str(Path(found).resolve())


@pytest.mark.slow
def test_suite_passes_under_sanitizers(tmp_path):
    if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
        pytest.skip("needs gcc on Linux")
    preload = " ".join(map(library, ("libasan.so", "libubsan.so")))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("dlbf", "storage", "tests"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    build = os.environ | {"DLBF_SANITIZE": "address,undefined", "DLBF_DEBUG": "1", "DLBF_OPT": "1"}
    subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=copy, env=build, check=True)
    environment = os.environ | {
        "LD_PRELOAD": preload,
        # Python never frees some of its memory; allocations too large are to fail, not to end the process.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:halt_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(copy),
    }
    origin = "import dlbf.kernels.cells as module; print(module.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", origin], cwd=copy, env=environment, check=True, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(copy))
    tests = [f"tests/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-10000:]
