"""``dlbf bench``: every section runs on a few keys and its figures hold together; their values mean nothing here."""

import json

import pytest
from click.testing import CliRunner

from dlbf.bench import data
from dlbf.bench.timing import Timing, machine, side_by_side
from dlbf.cli import build
from dlbf.datasets import listed_urls, ordinary_urls


def bench(*arguments):
    done = CliRunner().invoke(build(), ["bench", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(autouse=True)
def made_keys(monkeypatch):
    """Not on real data: these tests are about the command."""
    monkeypatch.delenv("DLBF_DATA", raising=False)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_filters_section(form):
    told = bench("filters", "--keys", 2000, "--queries", 20_000, "--rounds", 3, *form)
    if not form:
        assert "CuckooFilter" in told
        return
    figures = json.loads(told)
    rows = {row["name"]: row for row in figures["rows"]}
    ours = rows[next(name for name in rows if "CuckooFilter" in name)]
    # 1 % of 20,000 is 200 +- 14; 400 is fourteen deviations away.
    assert ours["fpr"] < 0.02
    assert 8 < ours["bits_per_key"] < 12
    assert figures["machine"].keys() == machine().keys()


@pytest.mark.filterwarnings("ignore:.* negatives cannot show a rate")
def test_learned_section(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "tradeoff.png"
    told = bench("learned", "--keys", 1500, "--rounds", 2, "--model", "ngram", "--picture", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "plbf-cbf" in told


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_growing_section(form):
    told = bench("growing", "--doublings", 3, "--absent", 20_000, "--runs", 2, "--queried", 2000, "--rounds", 3, *form)
    if not form:
        assert "worst single add" in told
        return
    figures = json.loads(told)["growing"]
    assert [row["keys"] for row in figures["rows"]] == [1000, 2000, 4000, 8000]
    # 1 % of 20,000 is 200 +- 14; the rate is far below it in the beginning.
    assert all(row["fpr"] < 0.012 for row in figures["rows"])
    assert 12 < figures["bits_per_key"] < 20
    assert figures["worst_add_us"] > 0
    assert figures["in_ratio"][0] > 0 < figures["many_ratio"][0]


def test_models_section(monkeypatch):
    monkeypatch.setattr("dlbf.bench.models.SIZES", ((256, 4), (512, 8)))
    assert "naive-bayes" in bench("models", "--keys", 1500, "--rounds", 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("growing", "--runs", 0),
        ("filters", "--keys", 0), ("filters", "--fpr", 3), ("filters", "--rounds", 0), ("store", "--keys", 0),
        ("guard", "--rounds", 0), ("models", "--keys", 1), ("adversary", "--queries", 0), ("replay", "--fpr", 1),
    ],
)  # fmt: skip
def test_numbers_that_leave_nothing_to_measure_are_bad_usage(arguments):
    done = CliRunner().invoke(build(), ["bench", *map(str, arguments)])
    assert done.exit_code == 2
    assert arguments[1] in done.stderr


@pytest.mark.parametrize("section", ["models", "learned", "store", "adversary", "replay"])
def test_folder_without_the_keys_is_said_in_one_line(section, tmp_path, monkeypatch):
    monkeypatch.setenv("DLBF_DATA", str(tmp_path / "nowhere"))
    done = CliRunner().invoke(build(), ["bench", section])
    assert done.exit_code == 2
    assert "nowhere: expected " in done.stderr
    assert "Traceback" not in done.output


def test_interrupted_section_ends_with_130(monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("dlbf.bench.filters.measure", interrupted)
    done = CliRunner().invoke(build(), ["bench", "filters"])
    assert done.exit_code == 130
    assert "interrupted" in done.stderr


def test_data_folder_is_read_whatever_its_packing(tmp_path, monkeypatch):
    import gzip
    import lzma

    keys, absent = [b"a/%d" % i for i in range(30)], [b"b/%d" % i for i in range(50)]
    (tmp_path / "urls.malicious.txt.gz").write_bytes(gzip.compress(b"\n".join(keys) + b"\n"))
    (tmp_path / "urls.benign.txt.xz").write_bytes(lzma.compress(b"\n".join(absent)))
    first = data.read_urls(tmp_path)
    assert first == data.read_urls(tmp_path)
    assert [sorted(part) for part in first] == [sorted(keys), sorted(absent)]
    monkeypatch.setenv("DLBF_DATA", str(tmp_path))
    assert data.data_folder(None) == tmp_path
    for split in (data.random_split(*first), data.hard_split(*first)):
        assert set(split.keys) <= set(keys)
        assert not set(split.unseen) & set(split.learnt_negatives)
    (tmp_path / "urls.benign.txt.xz").unlink()
    with pytest.raises(FileNotFoundError, match="expected urls"):
        data.read_urls(tmp_path)


def test_made_keys_are_stable_and_apart():
    keys, absent = list(listed_urls(500)), list(ordinary_urls(500))
    assert keys == list(listed_urls(500))
    assert len({*keys, *absent}) == 1000


def test_timing_ratio_is_best_over_best():
    fast, slow = Timing((10.0, 8.0, 9.0)), Timing((20.0, 16.0, 27.0))
    assert slow.ratio(fast)[0] == 2.0
    found = side_by_side({"one": lambda keys: len(keys), "two": lambda keys: sorted(keys)}, lambda n: [b"k"] * 10, 3)
    assert set(found) == {"one", "two"}
    assert all(timing.best > 0 for timing in found.values())
