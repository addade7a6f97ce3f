"""The sample of absent keys: dense at first, thinner later, and never more than there is room for."""

import threading

import numpy as np
import pytest
from support import peek

from dlbf.storage import Store, misses, traffic


def open_store(path, **options):
    return Store(path, **{"sync": "none", **options})


def written(store):
    with peek.reading(store) as txn:
        return list(misses.read_misses(txn, peek.dbs(store)))


def test_first_absent_reads_are_drawn_densely_and_not_written_at_once(path):
    with open_store(path) as store:
        store[b"there"] = b""
        for i in range(80_000):
            store.get(b"%d" % i)
        # One in eight.  Gaps are uniform over 1 to 15: the number's standard deviation is about sqrt(n / 3 / 8) = 58.
        assert abs(store.traffic.n_samples - 10_000) < 300
        assert store.stats().misses == 0
    with open_store(path) as store:
        assert abs(store.stats().misses - 10_000) < 300, "closing writes what was drawn"


def test_each_place_of_a_batch_has_the_same_chance_whatever_else_is_in_it(path):
    n, rounds = 64, 4000
    with open_store(path) as store:
        store.update((b"key %d" % i, b"") for i in range(n // 2))
        # Stored keys and absent ones in turns.
        batch = [b"%s %d" % (kind, i) for i in range(n // 2) for kind in (b"key", b"absent")]
        counts = dict.fromkeys(batch, 0)
        for _ in range(rounds):
            store.get_many(batch)
            for key in store.traffic.take_samples():
                counts[key] += 1
    assert not any(count for key, count in counts.items() if key.startswith(b"key"))
    absent = [count for key, count in counts.items() if key.startswith(b"absent")]
    # Binomial at most: 500 of 4,000 each with a standard deviation of 21; five of them.
    assert max(abs(count - rounds / 8) for count in absent) < 105


def test_sample_in_memory_is_thinned_to_its_room_and_stays_uniform(path, monkeypatch):
    monkeypatch.setattr(misses, "BUFFER_KEYS", 2048)
    n = 200_000
    with open_store(path) as store:
        for i in range(n):
            store.get(b"%d" % i)
            assert store.traffic.n_samples < 2048
        kept = [int(key) for key in store.traffic.take_samples()]
    # Halved whenever it was full: the last time at least half as full as that.
    assert len(kept) > 900
    quarters = np.histogram(kept, 4, (0, n))[0]
    expected = len(kept) / 4
    assert all(abs(quarter - expected) < 5 * expected**0.5 for quarter in quarters), quarters


def test_sample_in_memory_is_bounded_in_bytes_and_leaves_out_very_long_keys(path, monkeypatch):
    monkeypatch.setattr(misses, "BUFFER_BYTES", 100_000)
    with open_store(path) as store:
        for i in range(30_000):
            store.get(b"%04000d" % i)
        # Looked at once in 2,048 keys drawn.
        assert store.traffic.sample_bytes < 100_000 + 2048 * 4000
        assert store.traffic.sample_bytes == sum(map(len, store.traffic.take_samples()))
        store.traffic.sample(1.0, 1 << 20, 1)
        store.get_many([b"%05000d" % i for i in range(1000)])
        assert store.traffic.n_samples == 0


def test_key_that_is_polled_for_takes_one_place_each_time_the_sample_is_written(path):
    with open_store(path) as store:
        for i in range(40_000):
            store.get(b"polled" if i % 10 else b"%d" % i)
        assert store.traffic.n_samples > 4000
        peek.commits(store).flush()
        kept = written(store)
    assert kept.count(b"polled") == 1
    assert len(kept) > 300


def test_sample_is_written_with_the_next_commit_only_once_it_is_time(path, monkeypatch):
    with open_store(path) as store:
        store[b"there"] = b""
        monkeypatch.setattr(store.traffic, "_flush", lambda: None)  # the thread would do it as well
        for i in range(60_000):
            store.get(b"%d" % i)
        store[b"too early"] = b""
        assert not written(store)
        monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.0)
        for i in range(60_000):
            store.get(b"%d" % i)
        assert store.traffic.report_due
        store[b"in time"] = b""
        assert len(written(store)) > 10_000
        assert not store.traffic.report_due
        assert store.verify().ok


def test_rebuild_waits_for_the_sample_that_is_just_being_written(path, monkeypatch):
    """What the thread has taken and not committed is in neither place; a rebuild that looks then learnt nothing."""
    with open_store(path) as store:
        store[b"there"] = b""
        for i in range(20_000):
            store.get(b"%d" % i)
        taken, looked_at = threading.Event(), threading.Event()
        report, flush = store.traffic.report, peek.commits(store).flush

        def report_slowly(*arguments):
            report(*arguments)
            if threading.current_thread().name == "dlbf-misses":
                taken.set()
                assert looked_at.wait(60)

        def flush_and_tell(wait=True):
            if wait:
                looked_at.set()
            flush(wait)

        monkeypatch.setattr(store.traffic, "report", report_slowly)
        monkeypatch.setattr(peek.commits(store), "flush", flush_and_tell)
        monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.0)
        store.traffic.samples_grown()
        assert taken.wait(60)
        assert store.traffic.n_samples == 0
        peek.commits(store).flush_samples(wait=False)  # who only wants to look does not wait
        assert not written(store)
        peek.commits(store).flush_samples()
        assert len(written(store)) > 2000
        with store.write() as txn:
            txn.put(b"new", b"")
            peek.commits(store).flush_samples()  # in a transaction of its own thread there is nothing to wait for


@pytest.mark.slow
def test_store_that_served_twice_as_many_absent_reads_as_it_has_keys_learns_nearly_as_well_as_fit(path):
    """At most 1.12 times the bits of ``fit`` with all of them; five per cent of it is room for more keys."""
    from dlbf import LearnedFilter
    from dlbf.datasets import listed_urls, ordinary_urls

    keys, absent = list(listed_urls(60_000)), list(ordinary_urls(120_000))
    for deletability in (0.0, 0.9):
        with open_store(path / str(deletability)) as store:
            store.update((key, b"") for key in keys)
            for key in absent:
                store.get(key)
            found = store.rebuild(deletability=deletability)
        best = LearnedFilter.fit(keys, absent, fpr=0.01, deletability=deletability)
        ratio = found.bits_per_key / best.bits_per_key
        print(f"deletability {deletability}: {found.negatives:,} sampled, {found.bits_per_key:.3f} bits, {ratio:.3f} x")
        assert ratio <= 1.12
