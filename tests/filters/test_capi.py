"""Filters asked by other Cython programs: the reader's contract, and the example extension built and run."""

import gc
import importlib.util
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import learned_common
from support.extension import build_example
from support.samples import SECRET, small_filters, url_keys

import dlbf
from dlbf.capi import FilterReader

KEYS = url_keys(30, seed=1)
ABSENT = url_keys(3000, seed=2)


def filters():
    """Every kind of filter with `KEYS` in it, with and without a secret."""
    for secret in (None, SECRET):
        for name, make in small_filters(secret).items():
            made = make()
            made.update(KEYS)
            yield f"{name}{'-keyed' if secret else ''}", made
    for design in ("auto", "slbf-3cbf", "plbf-cbf", "pddbf", "cuckoo", "uptown"):
        made = learned_common.fitted(design).copy()
        made.update(KEYS)
        yield f"learned-{design}", made


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """The example extension, compiled against this dlbf."""
    folder = tmp_path_factory.mktemp("example")
    # An editable install is found by a hook that Cython does not know, hence the path.
    path = build_example(folder, PYTHONPATH=str(Path(dlbf.__file__).parents[1]), CFLAGS="-O1")
    spec = importlib.util.spec_from_file_location("ask", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_answers_as_python_does(ask):
    for name, made in filters():
        batch = [*KEYS, b"", *ABSENT]
        expected = made.contains_many(batch).tolist()
        assert all(expected[: len(KEYS)]), name
        assert ask.ask_many(made, batch) == expected, name
        lines = [key for key in batch if key]
        assert ask.count(made, b"\n".join(lines)) == sum(key in made for key in lines), name
        assert ask.ask_many(made, []) == []


def test_example_reads_a_mapped_file(ask, tmp_path):
    made = dlbf.CuckooFilter(50_000)
    made.update(ABSENT)
    made.save(tmp_path / "f.dlbf")
    with dlbf.open_filter(tmp_path / "f.dlbf") as mapped:
        assert ask.ask_many(mapped, [*ABSENT, *KEYS]) == made.contains_many([*ABSENT, *KEYS]).tolist()


def test_example_asked_by_many_threads_beside_a_writer_misses_nothing(ask):
    made = dlbf.CuckooFilter(2 * len(ABSENT))
    made.update(ABSENT)
    coming = url_keys(len(ABSENT) // 2, seed=3)
    text = b"\n".join(ABSENT)
    done = threading.Event()

    def write():
        while not done.is_set():
            for key in coming:
                made.add(key)
            made.remove_many(coming)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            counts = list(pool.map(lambda _: ask.count(made, text), range(60)))
    finally:
        done.set()
        writer.join()
    assert counts == [len(ABSENT)] * 60


def test_closed_reader_answers_maybe(ask):
    assert ask.ask_closed(dlbf.CuckooFilter(10), b"never added") == (True, 1)


def test_reader_of_python_finds_what_is_there():
    f = dlbf.CuckooFilter(100)
    f.update(KEYS)
    with FilterReader(f) as reader:
        assert all(key in reader for key in KEYS)
        assert "no key of this filter" not in reader
        with pytest.raises(TypeError):
            5 in reader  # noqa: B015
    assert "no key of this filter" in reader
    reader.close()


def test_keys_that_open_a_reader_of_the_filter_they_come_to_do_not_wait_for_it():
    f = dlbf.CuckooFilter(10_000)
    readers = []

    def keys():
        for i in range(10_000):
            if i == 5000:
                readers.append(FilterReader(f))
            yield b"%d" % i

    with pytest.raises(dlbf.DlbfError, match="this thread has a FilterReader"):
        f.update(keys())
    readers.pop().close()
    f.update([b"more"])
    assert all(f.contains_many([b"0", b"more"]))


@pytest.mark.parametrize("thing", [None, b"key", {b"key"}, dlbf.CuckooFilter])
def test_reader_of_something_else_is_a_type_error(thing):
    with pytest.raises(TypeError, match="expected a filter of dlbf, found"):
        FilterReader(thing)


def test_reader_of_a_closed_filter_is_an_error():
    f = dlbf.CuckooFilter(10)
    f.close()
    with pytest.raises(ValueError, match="closed"):
        FilterReader(f)


def test_reader_of_a_changed_file_is_an_error_and_holds_nothing(tmp_path):
    path = tmp_path / "f.dlbf"
    made = dlbf.CuckooFilter(100_000)
    made.save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    mapped = dlbf.open_filter(path)
    with pytest.raises(dlbf.ChecksumError):
        FilterReader(mapped)
    mapped.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.add(b"more"),
        lambda f: f.update([b"more"]),
        lambda f: f.remove(KEYS[0]),
        lambda f: f.remove_many(KEYS),
        lambda f: f.clear(),
        lambda f: f.__ior__(f.copy()),
        lambda f: f.close(),
    ],
)
def test_change_by_the_readers_own_thread_is_an_error(change):
    f = dlbf.CuckooFilter(100)
    f.update(KEYS)
    reader, second = FilterReader(f), FilterReader(f)
    before = f.to_bytes()
    for one in (reader, second):
        with pytest.raises(dlbf.DlbfError, match="FilterReader"):
            change(f)
        one.close()
    assert f.to_bytes() == before
    change(f)


def test_change_by_another_thread_waits_and_readers_go_on():
    f = dlbf.CuckooFilter(100)
    f.update(KEYS)
    reader = FilterReader(f)
    writer = threading.Thread(target=f.update, args=([b"more"],))
    writer.start()
    time.sleep(0.05)
    # The writer waits for the reader; nobody who only reads may wait for the writer.
    assert writer.is_alive()
    assert f.contains_many(KEYS).all()
    FilterReader(f).close()
    assert b"more" not in f.copy()
    del reader  # freed without close(): it lets go as well
    gc.collect()
    writer.join(timeout=300)
    assert not writer.is_alive()
    assert b"more" in f


def test_reader_still_open_at_exit_keeps_changes_and_does_not_hang(tmp_path):
    path = tmp_path / "f.dlbf"
    dlbf.CuckooFilter(100).save(path)
    code = (
        "import dlbf, sys; from dlbf.capi import FilterReader\n"
        "f = dlbf.open_filter(sys.argv[1], 'r+'); f.add(b'kept'); r = FilterReader(f)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=300)
    with dlbf.open_filter(path) as back:
        assert b"kept" in back
        assert len(back) == 1
