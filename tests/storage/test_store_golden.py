"""Stores as version 0.1 wrote them before there were layers: today's code opens, reads, changes and rebuilds them.

``store.v1.tar.xz`` has two, each with a long record of the log behind its last checkpoint, as a kill leaves it: *plain*
has a cuckoo table, *learned* a learned filter with tables that delete in place, and a sample of its misses.
"""

import tarfile

import pytest
from support.places import DATA

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.filters.layered import LayeredFilter
from dlbf.filters.tables import CuckooFilter
from dlbf.learned import LearnedFilter
from dlbf.storage import Store

PLAIN = [b"k%d" % i for i in range(4500)]
URLS = list(listed_urls(2400, seed=1))
ABSENT = list(ordinary_urls(2000, seed=1))


def values(keys):
    return {key: b"v" + key[-3:] for key in keys}


CONTENTS = {
    "plain": {b"long" * 200: b"a long key", b"": b"no key at all"}
    | values(PLAIN[60:])
    | values(b"new%d" % i for i in range(40)),
    "learned": values(URLS[60:]) | values(listed_urls(40, seed=2)),
}
DELETED = {"plain": PLAIN[:60], "learned": URLS[:60]}
FILTERS = {"plain": CuckooFilter, "learned": LearnedFilter}


@pytest.fixture(params=sorted(CONTENTS))
def name(request):
    return request.param


@pytest.fixture
def folder(tmp_path, name):
    with tarfile.open(DATA / "store.v1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / name


def check(store, contents, name):
    """The store holds exactly this, none of what was deleted, and its filter denies nothing of it."""
    gone = [key for key in DELETED[name] if key not in contents]
    assert store.stats().state == "filtering"
    assert len(store) == len(contents)
    assert dict(store.items()) == contents
    assert store.get_many(list(contents)) == list(contents.values())
    assert store.ledger.filter.contains_many(list(contents)).all()
    assert store.get_many(gone) == [None] * len(gone)


def test_it_is_read_with_the_filter_it_has(folder, name):
    with Store(folder, readonly=True) as store:
        check(store, CONTENTS[name], name)
        stats = store.stats()
        assert type(store.ledger.filter) is FILTERS[name]
        assert stats.layers is None
        assert stats.journal_records > 0  # replayed: the last commits are in no checkpoint
        assert (stats.misses > 0) == (name == "learned")
        # 2,000 questions at 1 % and 2 %: five deviations above.
        assert sum(key in store.ledger.filter for key in ordinary_urls(2000, seed=9)) < 80
        assert store.verify().ok


def test_it_is_changed_in_place(folder, name):
    contents = dict(CONTENTS[name])
    some = list(contents)[100:400]
    with Store(folder) as store:
        for key in some:
            del store[key]
            del contents[key]
        back = [*DELETED[name][:20], b"another"]
        store.update(values(back))
        contents |= values(back)
        check(store, contents, name)
        assert type(store.ledger.filter) is FILTERS[name]
        # Deleted in place: hardly any of them passes (of 300 at 1 %; learned: at most half of them).
        passing = store.ledger.filter.contains_many(some).sum()
        assert passing < (20 if name == "plain" else 190)
    with Store(folder, readonly=True) as store:
        check(store, contents, name)
        assert store.verify().ok


@pytest.mark.parametrize("on", [None, 2])
def test_it_is_rebuilt_into_layers_and_goes_on(folder, name, on):
    contents = dict(CONTENTS[name])
    with Store(folder) as store:
        report = store.rebuild(ABSENT if name == "learned" else None, design="layers", model=None, on=on)
        assert report.done
        assert isinstance(store.ledger.filter, LayeredFilter)
        check(store, contents, name)
        gone = next(iter(contents))
        del store[gone]
        del contents[gone]
        store[b"after"] = contents[b"after"] = b"x"
        check(store, contents, name)
        assert store.stats().layers.added_keys == 1
    with Store(folder) as store:
        check(store, contents, name)
        assert isinstance(store.ledger.filter, LayeredFilter)
        assert store.verify().ok


def test_it_grows_into_layers_by_itself(folder, name):
    contents = dict(CONTENTS[name])
    with Store(folder) as store:
        more = values(b"more %d" % i for i in range(6000))
        store.update(more)
        contents |= more
        check(store, contents, name)
        assert store.stats().layers.base_keys == len(contents)
        assert store.stats().model == ("ngram" if name == "learned" else "none")
        assert store.verify().ok
