"""The hot paths, counted in instructions under callgrind: the same on every run, whatever else the machine does.

    python asv_bench/benchmarks/hot_paths.py [--only NAME] [--releases FILE]

It needs valgrind with its headers and a C compiler, and of dlbf nothing but public names, so that one file measures
every commit: what the Python that runs it has installed.  A path that a commit does not have is None.  Each path runs
twice and the second time counts.  A figure is of one key, with the Python loop around it.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["NAMES", "Unavailable", "count"]

N_KEYS = 20_000
N_OPERATIONS = 4_000
SECRET = bytes(range(16))
VALUE = b"a value of some length"
MARKS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


# A map of the usual size is more than valgrind can give.
MAP_SIZE = 1 << 28
# What processes do that are not counted, with a path and lines of keys.
FIT = """
import sys, dlbf
keys = sys.stdin.buffer.read().split()
half = len(keys) // 2
dlbf.LearnedFilter.fit(keys[:half], keys[half:], fpr=0.01, design="plbf", model="naive-bayes").save(sys.argv[1])
"""
CHANGE = """
import sys
from dlbf.storage import Store
with Store(sys.argv[1], secret=bytes(range(16)), sync="none", map_size=1 << 28) as store, store.write() as txn:
    for key in sys.stdin.buffer.read().split():
        txn.put(key, b"v")
"""


class Unavailable(RuntimeError):
    """This machine has no valgrind, not its headers, or no C compiler."""


# --- what is measured


def make_keys(prefix, n=N_OPERATIONS):
    """Keys of about 30 bytes; those of two prefixes differ."""
    return [b"https://%s.example/item/%07d" % (prefix, i * 7919 % 9_999_991) for i in range(n)]


def each(method, keys):
    """A loop that calls a method with one key after the other."""

    def run():
        for key in keys:
            method(key)

    return run


def uncounted(code, path, keys):
    """Runs code in a process of its own, which callgrind does not follow."""
    subprocess.run([sys.executable, "-P", "-c", code, str(path)], input=b"\n".join(keys), check=True)


def asking(f, keys):
    """A loop of ``in``."""

    def run():
        for key in keys:
            key in f  # noqa: B015

    return run


class Paths:
    """Each ``path_*`` gives what is counted: a function, or two if the first prepares an argument for the second."""

    def __init__(self, folder, opened):
        self._folder = Path(folder)
        self._opened = opened
        self._listed = make_keys(b"listed", N_KEYS)
        self._present = self._listed[:N_OPERATIONS]
        self._absent = make_keys(b"other")
        self._turn = 0

    def _fresh(self):
        """Keys that nobody has stored yet."""
        self._turn += 1
        return make_keys(b"new%d" % self._turn)

    def _cuckoo(self, secret=None):
        import dlbf

        f = dlbf.CuckooFilter(N_KEYS, 0.01, secret=secret)
        f.update(self._listed)
        return f

    def _learned(self):
        import dlbf

        path = self._folder / "learned"
        if not path.exists():
            uncounted(FIT, path, self._listed + make_keys(b"ordinary", N_KEYS))
        return dlbf.open_filter(path)

    def _store(self):
        from dlbf.storage import Store

        path = tempfile.mkdtemp(dir=self._folder)
        store = self._opened.enter_context(Store(path, secret=SECRET, sync="none", map_size=MAP_SIZE))
        with store.write() as txn:
            for key in self._listed:
                txn.put(key, VALUE)
        store.rebuild(design="cuckoo")
        return store

    def _guard(self):
        from dlbf.storage import Guard

        path = tempfile.mkdtemp(dir=self._folder)
        guard = self._opened.enter_context(Guard({}, path, secret=SECRET, sync="none"))
        guard.update(dict.fromkeys(self._listed, VALUE))
        return guard

    def _puts(self, store):
        def run(keys):
            for key in keys:
                store[key] = VALUE

        return self._fresh, run

    def path_in_absent(self):
        return asking(self._cuckoo(), self._absent)

    def path_in_present(self):
        return asking(self._cuckoo(), self._present)

    def path_in_keyed(self):
        return asking(self._cuckoo(SECRET), self._absent)

    def path_contains_many(self):
        f = self._cuckoo()
        return lambda: f.contains_many(self._absent)

    def path_add(self):
        import dlbf

        f = dlbf.CuckooFilter(N_KEYS, 0.01)
        return self._fresh, lambda keys: each(f.add, keys)()

    def path_ribbon(self):
        import dlbf

        return asking(dlbf.RibbonFilter.build(self._listed, fpr=0.01), self._absent)

    def path_score(self):
        return each(self._learned().model.score, self._absent)

    def path_learned_in(self):
        return asking(self._learned(), self._absent)

    def path_learned_contains_many(self):
        f = self._learned()
        return lambda: f.contains_many(self._absent)

    def path_store_get_absent(self):
        return each(self._store().get, self._absent)

    def path_store_get_present(self):
        return each(self._store().get, self._present)

    def path_store_get_many_absent(self):
        store = self._store()
        return lambda: store.get_many(self._absent)

    def path_store_put(self):
        return self._puts(self._store())

    def path_store_commit(self):
        """Transactions of 100 puts."""
        store = self._store()

        def run(keys):
            for start in range(0, len(keys), 100):
                with store.write() as txn:
                    for key in keys[start : start + 100]:
                        txn.put(key, VALUE)

        return self._fresh, run

    def path_store_replay(self):
        """What a process does for each change of another one before it answers."""
        store = self._store()

        def change():
            uncounted(CHANGE, store.path, self._fresh())
            return self._absent[0]

        return change, store.get

    def path_guard_put(self):
        return self._puts(self._guard())

    def path_guard_get_absent(self):
        return each(self._guard().get, self._absent)

    def path_guard_get_present(self):
        return each(self._guard().get, self._present)


NAMES = [name.removeprefix("path_") for name in vars(Paths) if name.startswith("path_")]


# --- inside callgrind


def run_inside(marks_library, names, folder):
    """Runs the paths; callgrind writes a file after each.  Says which there are not."""
    marks = ctypes.PyDLL(marks_library)
    for name in names:
        with contextlib.ExitStack() as opened:
            try:
                path = getattr(Paths(folder, opened), f"path_{name}")()
                prepare, run = path if isinstance(path, tuple) else (None, path)
                arguments = () if prepare is None else (prepare(),)
                run(*arguments)
            except (AttributeError, ImportError, TypeError, ValueError) as error:
                print(f"{name}: not in this build: {error}", file=sys.stderr)
                continue
            arguments = () if prepare is None else (prepare(),)
            marks.start()
            run(*arguments)
            marks.stop(name.encode())


# --- outside of it


def count(python=sys.executable, names=None):
    """Instructions per key of each path, for the dlbf that a Python interpreter has.

    Parameters
    ----------
    python : str
    names : sequence of str, optional
        Some of ``NAMES``; all unless given.

    Returns
    -------
    dict
        None for a path that this dlbf does not have.
    """
    names = NAMES if names is None else list(names)
    valgrind, compiler = shutil.which("valgrind"), shutil.which(os.environ.get("CC", "cc"))
    if valgrind is None or compiler is None:
        raise Unavailable("counting needs valgrind and a C compiler; on Debian: apt install valgrind gcc")
    with tempfile.TemporaryDirectory(prefix="dlbf-hot-paths") as folder:
        source, library, out = (Path(folder, name) for name in ("marks.c", "marks.so", "counts"))
        source.write_text(MARKS)
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", library, source], capture_output=True, text=True
        )
        if done.returncode:
            raise Unavailable(f"the headers of valgrind are missing: {done.stderr}")
        fixed = ["setarch", "-R"] if shutil.which("setarch") else []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DLBF"))}
        command = [
            *fixed, valgrind, "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}",
            python, "-P", __file__, "--inside", library, "--folder", folder, *(f"--only={name}" for name in names),
        ]  # fmt: skip
        environment = kept | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-4000:]}")
        counts = dict.fromkeys(names)
        for path in Path(folder).glob("counts.*"):
            lines = path.read_text().splitlines()
            name = next((line.split()[-1] for line in lines if line.startswith("desc: Trigger: Client Request")), None)
            if name in counts:
                total = next(line for line in lines if line.startswith("totals:"))
                counts[name] = round(int(total.split()[1]) / N_OPERATIONS, 1)
        return counts


def with_releases(counts, path):
    """The record of all releases, with the counts of this version in place of what it had."""
    import dlbf
    from dlbf.bench.timing import machine

    releases = json.loads(path.read_text())["releases"] if path.exists() else []
    releases = [release for release in releases if release["version"] != dlbf.__version__]
    here = machine()
    releases.append({"version": dlbf.__version__, "commit": here["commit"], "instructions": counts})
    return {"machine": here, "releases": releases}


def main():
    parser = argparse.ArgumentParser(description="Instructions per key of the hot paths, under callgrind.")
    parser.add_argument("--only", action="append", choices=NAMES, help="only these paths")
    parser.add_argument("--releases", type=Path, help="a record of releases: print it with this version in it")
    parser.add_argument("--json", action="store_true", help="what is printed is JSON in any case")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        run_inside(given.inside, given.only or NAMES, given.folder)
        return
    try:
        counts = count(names=given.only)
    except Unavailable as error:
        raise SystemExit(f"Error: {error}") from None
    print(json.dumps(counts if given.releases is None else with_releases(counts, given.releases), indent=1))


if __name__ == "__main__":
    main()
