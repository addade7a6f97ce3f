"""Compiled extensions and their build switches; all metadata is in pyproject.toml.

Switches (environment variables, all off by default):

DLBF_DEBUG=1      bounds and initialisation checks in the kernels, no optimisation
DLBF_SANITIZE=x   comma list for -fsanitize, for example ``address,undefined``
DLBF_NATIVE=1     -march=native (results are identical; the wheel is not portable)
DLBF_OPT=N        optimisation level 0-3 (default 3)
DLBF_COVERAGE=1   counts of executed lines, for .ci/coverage.py (gcc or clang, no optimisation)
"""

import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent


def switch(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


debug = switch("DLBF_DEBUG")
coverage = switch("DLBF_COVERAGE")
sanitize = os.environ.get("DLBF_SANITIZE", "")
level = os.environ.get("DLBF_OPT", "0" if debug or coverage else "3")

compile_args: list[str] = []
link_args: list[str] = []
if sys.platform != "win32":
    # -ffp-contract=off is not needed for correctness (no kernel uses floating
    # point) but costs nothing and keeps it that way if one ever does.
    compile_args += [f"-O{level}", "-std=gnu11", "-ffp-contract=off", "-fno-strict-aliasing", "-g1"]
    if switch("DLBF_NATIVE"):
        compile_args += ["-march=native"]
    if sanitize:
        compile_args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
        link_args += [f"-fsanitize={sanitize}"]
    if coverage:
        # Not Cython's own tracing: it takes the GIL at every line and slows the suite down a hundred times.
        compile_args += ["--coverage"]
        link_args += ["--coverage", "-Wl,-u,__gcov_dump"]

macros = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]

directives = {
    "language_level": 3,
    "embedsignature": True,
    "boundscheck": debug,
    "wraparound": False,
    "initializedcheck": debug,
    "nonecheck": False,  # refuses `self.n_items += 1` without the GIL, though self is never None
    "overflowcheck": False,  # hashes wrap on purpose
    "cdivision": True,
    "binding": True,
    # Kernels hold pointers; the public classes say how they are pickled.
    "auto_pickle": False,
}

# What Cython adds to each module with typed memoryviews is most of what there is to compile: it is compiled once.
shared = "dlbf.kernels._cython_shared"

sources = sorted(path.relative_to(HERE).as_posix() for path in (HERE / "dlbf").rglob("*.pyx"))
headers = sorted(path.relative_to(HERE).as_posix() for path in (HERE / "dlbf" / "kernels").glob("*.h"))
extensions = [
    Extension(
        source.removesuffix(".pyx").replace("/", "."),
        [source],
        include_dirs=[numpy.get_include(), "dlbf/kernels"],
        depends=headers,
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for source in sources
]
extensions.append(
    Extension(shared, [], define_macros=macros, extra_compile_args=compile_args, extra_link_args=link_args)
)

setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=cythonize(
        extensions,
        compiler_directives=directives,
        build_dir="build/cython",
        shared_utility_qualified_name=shared,
        nthreads=0 if sys.platform == "win32" else os.cpu_count() or 1,
    ),
)
