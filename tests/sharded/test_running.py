"""build_file: the same bytes by one process, by several, by Dask, with workers killed and builds interrupted."""

import multiprocessing
import os
import signal
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.learned_common import small_model
from support.samples import SECRET

import dlbf
import dlbf.build as build
from dlbf.build import running, sources
from dlbf.build.sources import Piece, divide, fingerprint, read_piece
from dlbf.datasets import listed_urls, ordinary_urls

KEYS = list(listed_urls(4000))
NEGATIVES = list(ordinary_urls(12_000))
PLAIN = {"shards": 8, "model": None}


@pytest.fixture
def files(tmp_path):
    """The keys in eight files, some of them twice."""
    paths = [tmp_path / f"keys{i}.txt" for i in range(8)]
    for i, path in enumerate(paths):
        path.write_bytes(b"\n".join(KEYS[i::8] + KEYS[:20]) + b"\n")
    return paths


def built(path, sources, **more):
    report = build.build_file(sources, path, NEGATIVES, **({"workers": 1} | PLAIN | more))
    assert not path.with_name(path.name + ".work").exists()
    return report, path.read_bytes()


def test_one_process_builds_what_the_functions_do(files, tmp_path):
    report, data = built(tmp_path / "f", files, model=small_model(), secret=SECRET)
    assert (report.n_keys, report.n_read, report.n_shards, report.n_pieces) == (4000, 4160, 8, 8)
    assert report.n_bytes == len(data)
    with dlbf.open_filter(tmp_path / "f", secret=SECRET) as f:
        assert f.contains_many(KEYS).all()
        numbers = build.route(f.blueprint, KEYS, SECRET)
        for n in range(8):
            own = [key for key, at in zip(KEYS, numbers, strict=True) if at == n]
            assert build.build_shard(f.blueprint, n, own, SECRET) == f.part(n)


def test_two_processes_one_of_them_killed_build_the_same_bytes(files, tmp_path):
    _, expected = built(tmp_path / "one", files)
    killed = []

    def kill(phase, fraction):
        if phase == "count" and fraction > 0 and not killed:
            child = multiprocessing.active_children()[0]
            os.kill(child.pid, signal.SIGKILL)
            killed.append(child)

    _, data = built(tmp_path / "two", reversed(files), workers=2, progress=kill)
    assert killed
    assert data == expected


def test_dask_with_a_worker_killed_builds_the_same_bytes(files, tmp_path):
    distributed = pytest.importorskip("distributed")
    _, expected = built(tmp_path / "one", files)
    killed = []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):

        def kill(phase, fraction):
            if phase == "count" and fraction > 0 and not killed:
                killed.append(next(iter(cluster.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        _, data = built(tmp_path / "two", files, on=client, progress=kill)
        assert killed
        assert data == expected
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        _, data = built(tmp_path / "three", files, on=address)
        assert data == expected
        bag = pytest.importorskip("dask.bag").from_sequence(KEYS, npartitions=3)
        with dlbf.open_filter(tmp_path / "one") as f:
            plan, place = f.blueprint, str(tmp_path)
        runs = bag.map_partitions(lambda keys: [build.scatter(plan, [list(keys)], place)]).compute()
        parts = client.gather(client.map(lambda n: build.gather(plan, n, runs, place), range(8)))
        build.combine(tmp_path / "four", [tmp_path / name for name in parts])
        assert (tmp_path / "four").read_bytes() == expected


@pytest.mark.parametrize("phase", ["train", "count", "build", "combine"])
def test_interrupted_build_goes_on_where_it_was(files, tmp_path, phase):
    _, expected = built(tmp_path / "one", files)

    def interrupt(where, fraction):
        if where == phase and (fraction > 0.4 or phase == "combine"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(tmp_path / "two", files, progress=interrupt)
    assert not (tmp_path / "two").exists()
    with pytest.raises(dlbf.DlbfError, match="another build"):
        built(tmp_path / "two", files, fpr=0.02)
    report, data = built(tmp_path / "two", files)
    assert data == expected
    assert report.resumed >= {"train": 0, "count": 4, "build": 12, "combine": 17}[phase]


def test_a_damaged_run_is_found(files, tmp_path):
    built(tmp_path / "f", files)
    with dlbf.open_filter(tmp_path / "f") as f:
        plan = f.blueprint
    name = build.scatter(plan, [KEYS], tmp_path)
    assert build.scatter(plan, [KEYS[:100], np.array(KEYS[100:])], tmp_path) == name
    whole = (tmp_path / name).read_bytes()
    for place in (3, 12, 40, 120, len(whole) // 2, len(whole) - 1):
        data = bytearray(whole)
        data[place] ^= 16
        (tmp_path / name).write_bytes(data)
        with pytest.raises(dlbf.DlbfError):
            [build.gather(plan, n, [name], tmp_path) for n in range(8)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=9)), st.integers(1, 30), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_pieces_of_lines_are_the_lines_wherever_they_are_cut(tmp_path_factory, lines, piece_bytes, end, closed):
    path = tmp_path_factory.mktemp("lines") / "keys"
    data = end.join(lines) + (end if closed else b"")
    path.write_bytes(data)
    expected = [key for line in data.split(b"\n") if (key := line.removesuffix(b"\r"))]
    found = [
        key for piece in divide([str(path)], piece_bytes=piece_bytes) for batch in read_piece(piece) for key in batch
    ]
    assert found == expected


def test_tables_are_read_in_arrow_batches(tmp_path):
    pa = pytest.importorskip("pyarrow")
    csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"n": pa.array(range(4000)), "url": pa.array([key.decode() for key in KEYS])})
    csv.write_csv(table, tmp_path / "keys.csv")
    parquet.write_table(table, tmp_path / "keys.parquet", row_group_size=900)
    for name, n_pieces in (("keys.csv", 1), ("keys.parquet", 5)):
        pieces = divide([str(tmp_path / name)], column="url")
        assert len(pieces) == n_pieces
        assert [key.as_py() for p in pieces for b in read_piece(p) for key in b] == [
            k if name == "keys.csv" else k.decode() for k in KEYS
        ]
    with pytest.raises(dlbf.DlbfError, match="no column 'host'; there are: n, url"):
        list(read_piece(Piece(str(tmp_path / "keys.csv"), "csv", "host", 0, 0)))
    (tmp_path / "lines").write_bytes(b"\n".join(KEYS))
    _, expected = built(tmp_path / "a", [tmp_path / "lines"])
    _, data = built(tmp_path / "b", [tmp_path / "keys.parquet"], column="url")
    assert data == expected
    if pytest.importorskip("fsspec"):
        _, data = built(tmp_path / "c", [f"file://{tmp_path}/keys.csv"], column="url")
        assert data == expected


def test_quoted_ends_of_lines_are_no_ends_of_records_wherever_blocks_end(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow.csv")
    keys = [b'%s%d, "one"\nand\r\nanother' % (b"k" * (i % 37), i) for i in range(800)]
    rows = [b'%d,"%s","x\ny"\n' % (i, key.replace(b'"', b'""')) for i, key in enumerate(keys)]
    (tmp_path / "keys.csv").write_bytes(b"number,key,more\n" + b"".join(rows))
    for block in (300, 1000, 4096):
        monkeypatch.setattr(sources, "BLOCK_BYTES", block)
        (piece,) = divide([str(tmp_path / "keys.csv")], column="key")
        batches = list(read_piece(piece))
        assert [key.as_py() for batch in batches for key in batch] == keys
        assert len(batches) > 3


def test_large_piece_becomes_several_runs_and_the_same_bytes(files, tmp_path, monkeypatch):
    csv = tmp_path / "keys.csv"
    csv.write_bytes(b"key\n" + b"".join(b"%s\n" % key for key in KEYS))
    pytest.importorskip("pyarrow.csv")
    _, expected = built(tmp_path / "one", [csv])
    monkeypatch.setattr(running, "RUN_KEYS", 500)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 4000)
    written = []
    monkeypatch.setattr(running, "scatter", lambda *args: written.append(build.scatter(*args)) or written[-1])
    _, data = built(tmp_path / "two", [csv])
    assert data == expected
    # Of 500 keys, and a block more.
    assert 5 <= len(set(written)) <= 8


def test_sources_that_changed_are_not_taken_for_the_old_ones(files, tmp_path):
    def interrupt(where, fraction):
        if where == "build":
            raise KeyboardInterrupt

    def begin():
        with pytest.raises(KeyboardInterrupt):
            built(tmp_path / "f", files, progress=interrupt)

    begin()
    about = files[3].stat()
    data = files[3].read_bytes()
    files[3].write_bytes(data[::-1])  # of the same size
    os.utime(files[3], ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    with pytest.raises(dlbf.DlbfError, match="its sources have changed \\(other: sources\\)"):
        built(tmp_path / "f", files)
    files[3].write_bytes(data)
    os.utime(files[3], ns=(about.st_atime_ns, about.st_mtime_ns))
    report, _ = built(tmp_path / "f", files)
    assert report.resumed > 1


def test_addresses_tell_of_their_content_what_their_system_does(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe("/a/keys", b"one\ntwo\n")
    first = fingerprint(["memory://a/keys"])
    assert first[0][:2] == ["memory://a/keys", 8]
    local = tmp_path / "keys"
    local.write_bytes(b"one\ntwo\n")
    before = fingerprint([f"file://{local}"])
    os.utime(local, ns=(1, 1))
    assert fingerprint([f"file://{local}"]) != before


@pytest.mark.slow
def test_ray_builds_the_same_bytes(files, tmp_path):
    ray = pytest.importorskip("ray")
    _, expected = built(tmp_path / "one", files)
    _, data = built(tmp_path / "two", files, on="ray")
    assert data == expected
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_spark_builds_the_same_bytes(files, tmp_path, monkeypatch):
    sql = pytest.importorskip("pyspark.sql")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # else it is what the path says
    _, expected = built(tmp_path / "one", files)
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        _, data = built(tmp_path / "two", files, on=session)
        assert data == expected
        # A data frame, by its own partitions.
        with dlbf.open_filter(tmp_path / "one") as f:
            plan, place = f.blueprint, str(tmp_path)

        def scattered(batches):
            import pyarrow as pa

            run = build.scatter(plan, (batch.column(0) for batch in batches), place)
            yield pa.RecordBatch.from_arrays([pa.array([run])], names=["run"])

        frame = session.createDataFrame([(key.decode(),) for key in KEYS], "key string").repartition(3)
        runs = [row.run for row in frame.mapInArrow(scattered, "run string").collect()]
        build.combine(tmp_path / "three", [tmp_path / build.gather(plan, n, runs, place) for n in range(8)])
        assert (tmp_path / "three").read_bytes() == expected
    finally:
        session.stop()


def test_errors_say_what_to_do(tmp_path, files, monkeypatch):
    for on, name in (("dask://x:1", "distributed"), ("ray", "ray"), ("spark", "pyspark.sql")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, None)
            with pytest.raises(dlbf.DlbfError, match=r"install it with: pip install 'dlbf\["):
                built(tmp_path / "e", files, on=on)
    with pytest.raises(ValueError, match="expected 'processes'"):
        built(tmp_path / "f", files, on="nowhere")
    with pytest.raises(dlbf.DlbfError, match="only static shards"):
        build.build_file(files, tmp_path / "g", NEGATIVES, workers=1, shards=2, model=None, design="cuckoo")
    with pytest.raises(FileNotFoundError):
        built(tmp_path / "f", [tmp_path / "nothing"])
    (tmp_path / "empty").write_bytes(b"\n\n")
    with pytest.raises(dlbf.DlbfError, match="no keys"):
        built(tmp_path / "h", [tmp_path / "empty"])
