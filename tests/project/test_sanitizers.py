"""The suite under the address and undefined-behaviour sanitizers, with the kernels' own checks on.

Builds a copy of the sources (a minute) and runs the other tests with it (some more).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT

# Statistics tell nothing new here, and thousands of processes would start under the sanitizer.
FILTERS = (
    *("kernels/test_hashing", "kernels/test_keys", "kernels/test_keys_fuzz", "filters/test_filters"),
    *("filters/test_filters_stateful", "filters/test_succinct", "filters/test_format", "filters/test_threads"),
    *(
        "filters/test_capi",
        "filters/test_ribbon",
        "filters/test_layered",
        "filters/test_elastic",
        "filters/test_expiring",
        "kernels/test_payload",
    ),
)
LEARNED = (
    *("models/test_models", "models/test_models_pickles", "models/test_models_training", "learned/test_learned"),
    *("learned/test_learned_stateful", "learned/test_learned_static", "filters/test_forged_files"),
)
STORE = (
    *("storage/test_store", "storage/test_store_damage", "storage/test_store_processes", "storage/test_store_layers"),
    *("storage/test_store_learned_layers", "storage/test_sharing"),
)
GROUPS = {"filters": FILTERS, "learned": LEARNED, "store": STORE}
BUILDS = {
    "sanitizers": {"DLBF_SANITIZE": "address,undefined", "DLBF_DEBUG": "1", "DLBF_OPT": "1"},
    "checks": {"DLBF_DEBUG": "1", "DLBF_OPT": "1"},
}


def library(name: str) -> str:
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"gcc has no {name}")
    return str(Path(found).resolve())


@pytest.fixture(scope="module", params=sorted(BUILDS))
def build(request, tmp_path_factory):
    """A copy of the sources built one way, as it is installed; the environment to run it in."""
    if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
        pytest.skip("needs gcc on Linux")
    environment = {}
    if request.param == "sanitizers":
        environment = {
            "LD_PRELOAD": " ".join(map(library, ("libasan.so", "libubsan.so"))),
            # Python never frees some of its memory; allocations too large are to fail, not to end the process; and a
            # test that expects LMDB to crash on damaged pages must see the signal, not the sanitizer's exit code.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:halt_on_error=1:handle_segv=0:handle_sigbus=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONMALLOC": "malloc",
        }
    copy = tmp_path_factory.mktemp(request.param) / "copy"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name, place in (("dlbf", "dlbf"), ("storage", "dlbf/storage"), ("tests", "tests"), ("docs", "docs")):
        shutil.copytree(ROOT / name, copy / place, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    built = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(built, cwd=copy, env=os.environ | BUILDS[request.param], check=True)
    environment["PYTHONPATH"] = str(copy)
    code = "import dlbf.kernels.cells, dlbf.storage; print(dlbf.kernels.cells.__file__, dlbf.storage.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=os.environ | environment, check=True, capture_output=True, text=True
    )
    assert all(path.startswith(str(copy)) for path in found.stdout.split())
    return copy, os.environ | environment


def run_suite(build, marker: str, names) -> None:
    copy, environment = build
    tests = [f"tests/{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marker]
    done = subprocess.run([*command, *tests], cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-10000:]


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_suite_passes_with_checks_on(build, group):
    run_suite(build, "not slow and not timing", GROUPS[group])


@pytest.mark.slow
def test_fifty_thousand_batches_pass_with_checks_on(build):
    run_suite(build, "slow", ["kernels/test_keys_fuzz"])
