"""The sections of ``dlbf bench`` on small sets: they run, agree with each other, and name what is missing."""

import importlib.metadata
import json
import random
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.samples import skip_without_writemap

from dlbf.bench import engines, scale, scale_keys, scale_store, store
from dlbf.bench.pictures import draw_scale
from dlbf.bench.scale_results import STORE_FIGURES, FilterCosts, ScaleFigures, SizeFigures, StoreCosts, bars, slope
from dlbf.cli import build
from dlbf.cli.bench import SECTIONS
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Store


def run(*arguments):
    done = CliRunner().invoke(build(), ["bench", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_every_section_has_help_and_json():
    for name in SECTIONS:
        assert "--json" in run(name, "--help").output, name


@pytest.fixture(scope="module")
def filters():
    small = ("--keys", "2000", "--queries", "4000", "--rounds", "2")
    return json.loads(run("filters", *small, "--json").stdout), run("filters", *small).stdout


def test_filters_measures_ours_and_names_every_peer(filters):
    figures, text = filters
    rows = {row["name"]: row for row in figures["rows"]}
    for name in ("rbloom", "fastbloom-rs", "hazy cuckoo", "pyfusefilter Fuse8", "pybloomfiltermmap3"):
        assert rows[name]["error"] or rows[name]["query_absent_ns"] > 0
    for name in ("CuckooFilter", "CountingBloomFilter", "LearnedFilter"):
        assert rows[name]["error"] is None
        assert rows[name]["remove_ns"] > 0
    # 4,000 absent keys at 1 %: mean 40, sd 6.3; twice the target is six sd away.
    assert rows["CuckooFilter"]["fpr"] < 0.02
    assert "commit" in text
    assert "CuckooFilter" in text


@pytest.mark.parametrize(
    ("installed", "told"),
    [(False, "not installed; pip install rbloom"), (True, "ModuleNotFoundError: import of rbloom")],
)
def test_filters_names_a_peer_that_is_missing_or_broken(installed, told, monkeypatch):
    version = importlib.metadata.version

    def found(name):
        if name != "rbloom":
            return version(name)
        if not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", found)
    monkeypatch.setitem(sys.modules, "rbloom", None)
    figures = json.loads(run("filters", "--keys", "500", "--queries", "500", "--rounds", "1", "--json").stdout)
    row = figures["rows"][0]
    assert row["name"] == "rbloom"
    assert told in row["error"]
    assert figures["rows"][-1]["query_absent_ns"] > 0


# --- the store


def workload(n=2000):
    return store.Workload(list(listed_urls(n)), list(ordinary_urls(n)), listed_urls(10**6, seed=1), 20)


@pytest.mark.parametrize("mix", store.MIXES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_operations_have_the_shares_asked_for(mix, share):
    made = workload()
    operations = made.operations(store.MIXES[mix], share, 20_000)
    reads = [key for key, value in operations if value is None]
    stored, absent = set(made.order), set(made.absent)
    # 20,000 operations: a share has a standard deviation of at most 0.0036.
    assert abs(1 - len(reads) / len(operations) - store.MIXES[mix].writes) < 0.02
    assert abs(np.mean([key in absent for key in reads]) - share) < 0.02
    assert all(key in stored or key in absent for key in reads)


def test_operations_are_the_same_every_time_and_skewed():
    first, second = (workload().operations(store.MIXES["C"], 0.0, 5000) for _ in range(2))
    assert first == second
    counts = sorted(np.unique([key for key, _ in first], return_counts=True)[1])[::-1]
    # With exponent 0.99 over 2,000 keys the most popular one has 12 % of the reads: 600 of 5,000, sd 23.
    assert 450 < counts[0] < 750


def test_values_are_the_same_for_every_engine_and_do_not_compress():
    made = workload()
    written = [value for _, value in made.operations(store.MIXES["A"], 0.0, 2000) if value is not None]
    for values in ([value for _, value in made.items()], written):
        assert {len(value) for value in values} == {20}
        together = b"".join(values)
        # Each byte is one of 95: an entropy of 6.57 bits, 82 % of eight.
        assert len(zlib.compress(together)) > 0.75 * len(together)
    assert made.items() == made.items()


@pytest.mark.parametrize("engine", engines.ENGINES, ids=lambda engine: engine.name)
def test_engine_behaves_as_a_dict(engine, tmp_path):
    reason = engines.missing(engine.distribution)
    if reason or engine is engines.LearnedStore:
        pytest.skip(reason or "needs keys with structure; measured in the section")
    if engine is engines.MappedStore:
        skip_without_writemap(tmp_path)
    made = workload(1000)
    reference = dict(made.items())
    (tmp_path / "engine").mkdir()
    tested = engine(tmp_path / "engine")
    tested.load(made.items())
    tested.settle(made.absent)
    for turn in range(3):
        mix = "C" if engine.mixes == "C" else random.Random(turn).choice("ABD")
        operations = made.operations(store.MIXES[mix], 0.5, 400)
        expected = 0
        for key, value in operations:
            if value is None:
                expected += key in reference
            else:
                reference[key] = value
        assert tested.run(operations) == expected
        tested.close()
        engines.evict(tested.folder)
        tested.open()
    assert tested.run([(key, None) for key in reference]) == len(reference)
    tested.close()
    tested.close()


def test_store_section_runs_and_judges(monkeypatch):
    monkeypatch.setitem(sys.modules, "plyvel", None)
    figures = json.loads(
        run("store", "--keys", "1000", "--operations", "200", "--cold-operations", "100", "--rounds", "2", "--mix", "C",
            "--json").stdout
    )  # fmt: skip
    assert figures["engines"]["LevelDB, Bloom (plyvel)"]["error"]
    assert figures["engines"]["dlbf Store, table"]["filter_design"] == "cuckoo"
    assert figures["engines"]["py-lmdb"]["filter_design"] is None
    ours = [case["ns"]["dlbf Store"] for case in figures["cases"]]
    assert len(ours) == 6
    assert min(ours) > 0
    assert {(row["store"], row["temperature"], row["absent_share"]) for row in figures["bars"]} == {
        (name, temperature, share)
        for name in ("dlbf Store", "dlbf Store, writemap")
        for temperature in ("warm", "cold")
        for share in (0.0, 0.95)
        if not figures["engines"][name]["error"]
    }
    for row in figures["bars"]:
        assert row["met"] == (row["ratio"] <= row["at_most"])


def test_eviction_puts_pages_out_of_memory(disk_path):
    """Where the disk can tell: a read after an eviction comes from the disk."""
    path = disk_path / "data"
    path.write_bytes(random.Random(0).randbytes(1 << 20))
    engines.evict(disk_path)
    if store.take_turn(Reader(path), [(b"", None)]).pages == 0:
        pytest.skip("this file system keeps everything in memory")
    assert store.take_turn(Reader(path), [(b"", None)]).pages == 0, "read twice, it is in memory"
    engines.evict(disk_path)
    assert store.take_turn(Reader(path), [(b"", None)]).pages >= 256


class Reader:
    """Reads a whole file, whatever is asked."""

    def __init__(self, path):
        self.path = path

    def run(self, operations):
        return len(self.path.read_bytes())


# --- scale


def test_scale_keys_are_functions_of_their_number():
    keys = scale_keys.make_keys(np.arange(5000))
    assert len(set(keys)) == 5000
    assert {len(key) for key in keys} == {26}
    assert scale_keys.make_keys(np.arange(100, 200)) == keys[100:200]
    assert not set(keys) & set(scale_keys.make_keys(np.arange(scale_keys.ABSENT, scale_keys.ABSENT + 5000)))


def test_slope_is_the_exponent():
    sizes = [10**5, 10**6, 10**7]
    assert slope(sizes, [3.0, 3.0, 3.0]) == pytest.approx(0)
    assert slope(sizes, [float(n) ** 0.5 for n in sizes]) == pytest.approx(0.5)


def test_scale_measures_a_size_with_recovery(tmp_path, monkeypatch):
    monkeypatch.setattr(scale_keys, "BATCH", 4000)
    size = scale.measure_size(10_000, rounds=2, folder=tmp_path)
    assert set(STORE_FIGURES) == set(vars(size.store))
    assert all(value is None or value > 0 for value in vars(size.store).values())
    for name, costs in size.filters.items():
        assert min(costs.build, costs.absent) > 0, name
    # What the filters themselves say: 9.6 bits per key for a Bloom filter at 1 %.
    assert size.filters["BloomFilter"].bits == pytest.approx(9.6, abs=0.1)


def test_store_bars_compare_with_the_fastest_peer_or_lmdb_and_have_the_spread():
    def case(mix, share):
        return store.Case(
            mix, share, "warm", ns={}, pages={}, fastest_peer="RocksDB",
            ratio={"dlbf Store": (1.1, 1.0, 1.2), "py-lmdb": (1.0, 1.0, 1.0)},
            ratio_to_fastest={"dlbf Store": (1.5, 1.4, 1.6)},
        )  # fmt: skip

    rows = store.bars([case("B", 0.95), case("B", 0.0), case("A", 0.95), case("C", 0.5)])
    assert [(row.mix, row.against, row.ratio, row.quartiles, row.met) for row in rows] == [
        ("B", "RocksDB", 1.5, (1.4, 1.6), False),
        ("B", "py-lmdb", 1.1, (1.0, 1.2), True),
    ]


def test_scale_reader_is_not_held_by_a_false_positive(tmp_path):
    """It waits until the filter answers: one key that the filter lets through must not make it wait for ever."""
    Store(tmp_path / "empty", sync="none").close()
    for number in range(64):  # each store has a secret of its own: half of them let the key through
        path = tmp_path / f"store {number}"
        with Store(path, fpr=0.5, sync="none") as made:
            made.update((b"key %d" % i, b"") for i in range(1000))
            made.rebuild(design="cuckoo")
            made.get(b"an absent key")
            if not made.stats().filtered:
                break
    else:
        pytest.fail("no store lets the key through")
    arguments = [sys.executable, "-c", scale_store.READER, str(path), str(tmp_path / "empty"), "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)[-1] == "filtering"


def scale_size(n_keys, ours=1.0, peer=1.0, open_ms=1.0):
    """A size at which all costs but those named are 1."""
    store_costs = StoreCosts(**dict.fromkeys(STORE_FIGURES, 1.0) | {"open_ms": open_ms})
    costs = {name: FilterCosts(1.0, 1.0, absent, 1.0) for name, absent in (("CuckooFilter", ours), ("rbloom", peer))}
    return SizeFigures(n_keys, costs, {}, store_costs, 1 << 20)


def test_scale_bars_compare_growth_with_rbloom():
    judged = {bar.what: bar for bar in bars([scale_size(10**6, 50.0, 50.0, 1.0), scale_size(10**7, 100.0, 75.0, 1.1)])}
    assert judged["CuckooFilter, absent"].growth == 2.0
    assert not judged["CuckooFilter, absent"].met
    assert judged["CuckooFilter, build"].met
    assert judged["store, open_ms"].met
    assert bars([scale_size(10**6)]) == []


def test_scale_draws(tmp_path):
    pytest.importorskip("matplotlib")
    draw_scale(ScaleFigures.of([scale_size(n_keys) for n_keys in (10, 100)]), tmp_path / "scale.svg")
    assert Path(tmp_path / "scale.svg").read_text().startswith("<?xml")


def test_problems_gives_tables_that_the_documentation_can_take():
    figures = json.loads(
        run("problems", "--keys", "1000", "--only", "dlbf-choices", "--only", "dlbf-churn", "--json").stdout
    )
    assert list(figures["tables"]) == ["problem-dlbf-choices", "problem-dlbf-churn"]
    for grid in figures["tables"].values():
        assert all(len(row) == len(grid["headings"]) for row in grid["rows"])
    choices = [float(row[1]) for row in figures["tables"]["problem-dlbf-choices"]["rows"]]
    assert choices[-1] > choices[0] + 0.1  # the best of 32 small filters
    churned = figures["tables"]["problem-dlbf-churn"]["rows"]
    assert float(churned[-1][1].split()[0]) < 0.05 < 0.4 < float(churned[0][1].split()[0])
    assert {row[-1] for row in churned} == {"0"}  # no key is lost


def test_problems_names_those_there_are():
    done = CliRunner().invoke(build(), ["bench", "problems", "--only", "nothing"])
    assert done.exit_code == 2
    assert "expected some of learned-dlbf, dlbf-churn" in done.output
