"""The default store under every attack: its bound holds, no key is lost, its filter stays bounded by its keys."""

import logging
import stat

import pytest
from support.samples import SECRET

from dlbf.adversary import ATTACKS, Oracle, StoreFilter, WhiteBoxMutation, key_with_hash, reveal, stated_bound
from dlbf.datasets import listed_urls
from dlbf.errors import StoreError
from dlbf.kernels.hashing import hash64
from dlbf.learned.evaluation import Rate
from dlbf.storage import Store

KEYS = list(listed_urls(8000))
QUERIES = 40_000
CHANGES = 8000


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


def filled(folder, **options):
    store = Store(folder, sync="none", **options)
    with store.write() as txn:
        for key in KEYS:
            txn.put(key, b"v")
    return store


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_default_store_under_attack_keeps_its_bound_its_keys_and_its_size(folder, attack):
    # A fixed secret only so that a rare draw cannot fail the test now and then.
    with filled(folder, secret=SECRET) as store:
        store.rebuild()  # just large enough: the rate is that of a full filter
        target = StoreFilter(store)
        bound = stated_bound(store)
        assert bound == store.stats().fpr_target == 0.01
        assert store.get(b"") is None
        # Everything but the secret: the adversary reads the filter's bits at the start.
        oracle = Oracle(target, KEYS, QUERIES, CHANGES if attack.changes_target else 0, reveal(store.ledger.filter))
        attack(QUERIES, changes=oracle.changes).run(oracle)
        assert oracle.asked == QUERIES
        assert Rate(oracle.hits, oracle.asked, bound).interval[0] <= bound
        assert oracle.hits / oracle.asked <= 1.1 * bound
        assert oracle.lost() == 0
        assert all(store.get(key) == b"v" for key in KEYS[::50])
        stats = store.stats()
        assert stats.state == "filtering"
        # Room for twice the keys that there were at most (deletion keeps a tenth more for a moment), 9.8 bits each.
        assert stats.filter_bytes <= 2 * 9.8 / 8 * 1.1 * max(stats.keys, len(KEYS)) + 64
        assert store.verify().ok


def test_rates_an_adversary_sees_are_those_of_the_reads(folder):
    with filled(folder) as store:
        asked = [b"absent/%d" % i for i in range(5000)]
        seen = int(StoreFilter(store).contains_many(asked).sum())
        before = store.stats().false_positives
        assert store.get_many(asked) == [None] * len(asked)
        assert store.stats().false_positives - before == seen > 0


def test_white_box_without_a_secret_finds_nothing_but_false_positives(folder):
    # Nothing is remembered: a key that is found twice would pass once.
    with filled(folder, keyed=False, remember_bytes=0) as store:
        assert stated_bound(store) == 1.0
        store.get(b"")
        oracle = Oracle(StoreFilter(store), KEYS, 500, revealed=reveal(store.ledger.filter))
        WhiteBoxMutation(500).run(oracle)
        assert oracle.hits == oracle.asked == 500


def test_keys_of_one_hash_in_an_unkeyed_store_cost_the_filter_not_the_data(folder, caplog):
    crafted = [key_with_hash(b"%016d" % i, 12345) for i in range(20)]
    with caplog.at_level(logging.ERROR, "dlbf.storage"), Store(folder, keyed=False, sync="none") as store:
        with store.write() as txn:
            for key in crafted:
                txn.put(key, b"crafted")
        for i in range(5):
            store[b"honest %d" % i] = b"v"
        assert [store.get(b"honest %d" % i) for i in range(5)] == [b"v"] * 5
        assert len(store) == 25
        stats = store.stats()
        assert stats.state == "pass-through"
        assert "same hash" in stats.reason
        with pytest.raises(StoreError, match="same hash"):
            store.rebuild()
        with store.write() as txn:
            for key in crafted:
                txn.delete(key)
        assert store.rebuild().done
        assert store.stats().state == "filtering"
        assert store.verify().ok


def test_the_same_keys_in_a_keyed_store_are_keys_like_any_other(folder):
    with Store(folder, sync="none") as store:
        with store.write() as txn:
            for i in range(20):
                txn.put(key_with_hash(b"%016d" % i, 12345), b"crafted")
        assert store.stats().state == "filtering"
        assert store.verify().ok


def test_deleting_false_positives_from_a_store_removes_nothing(folder):
    with filled(folder) as store:
        target = StoreFilter(store)
        asked = [b"absent/%d" % i for i in range(20_000)]
        hits = [key for key, yes in zip(asked, target.contains_many(asked).tolist(), strict=True) if yes]
        assert len(hits) > 50
        assert not target.remove_many(hits).any()
        assert target.contains_many(KEYS).all()
        assert store.verify().ok


def test_secret_is_outside_of_the_environment_and_readable_by_the_owner_only(folder):
    with filled(folder):
        secret = (folder / "secret.key").read_bytes()
    assert stat.S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    assert len(secret) == 16
    assert secret not in (folder / "data.mdb").read_bytes()


def known_false_positives(store):
    asked = [b"absent/%d" % i for i in range(60_000)]
    answers = StoreFilter(store).contains_many(asked)
    return [key for key, yes in zip(asked, answers.tolist(), strict=True) if yes]


def check_forgotten(store, found):
    """A rotation forgets what an adversary knew: of n false positives about n * fpr are left."""
    store.rebuild()
    assert store.stats().state == "filtering"
    left = int(StoreFilter(store).contains_many(found).sum())
    # A binomial of n <= 600 and p = 0.01 exceeds 20 with probability 1e-5.
    assert len(found) > 100
    assert left <= 20
    assert StoreFilter(store).contains_many(KEYS).all()


def test_rotation_of_the_kept_secret_is_a_rebuild(folder, caplog):
    with filled(folder) as store:
        found = known_false_positives(store)
    old = (folder / "secret.key").read_bytes()
    (folder / "secret.key").unlink()
    with caplog.at_level(logging.ERROR, "dlbf.storage"), Store(folder, sync="none") as store:
        assert store.get(KEYS[0]) == b"v"
        assert store.stats().state == "pass-through"
        check_forgotten(store, found)
        assert store.verify().ok
    assert (folder / "secret.key").read_bytes() != old


def test_rotation_of_a_given_secret_is_a_rebuild(folder, caplog):
    with filled(folder, secret=SECRET) as store:
        found = known_false_positives(store)
    with caplog.at_level(logging.ERROR, "dlbf.storage"), Store(folder, sync="none", secret=bytes(16)) as store:
        check_forgotten(store, found)
    assert not (folder / "secret.key").exists()
    with Store(folder, secret=bytes(16)) as store:
        assert store.stats().state == "filtering"
        assert store.verify().ok


def test_hash_of_a_crafted_key_is_the_one_asked_for():
    for length in (0, 5, 16, 40, 64, 111, 112, 500):
        for value in (0, 1, 2**64 - 1, hash64(b"victim")):
            assert hash64(key_with_hash(bytes(range(65, 91)) * 20, value)) == value
            assert hash64(key_with_hash(b"x" * length, value)) == value
