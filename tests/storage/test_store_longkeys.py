"""Keys of a store that are much longer than LMDB's: walking over them."""

import random

from dlbf.storage import Store

MEGABYTE = 1_000_000


def test_key_of_a_megabyte_is_met_by_everything_that_walks_over_the_keys(path):
    """It is two thousand nodes deep, more than Python recurses; and the filter grows by a walk over all keys."""
    key = b"x" * MEGABYTE
    with Store(path, sync="none") as store:
        store[key] = b"v"
        for i in range(1100):  # the first filter is for 1024
            store[b"%d" % i] = b""
        store.update((b"more %d" % i, b"") for i in range(3000))
        assert list(store.items(prefix=b"x")) == [(key, b"v")]
        assert next(iter(store.keys(reverse=True))) == key
        assert list(store.keys(start=key)) == [key]
        assert list(store.keys(start=key + b"\0")) == []
        assert list(store.keys(prefix=b"x", stop=key)) == []
        assert store.verify().ok
        assert store.rebuild().done
        assert store.verify().ok
        assert len(store) == 4101
        store.clear()
        assert len(store) == 0
        assert store.verify().ok


def test_ranges_within_long_keys_are_those_of_sorted_keys(path):
    rng = random.Random(6)
    letters = b"\0a\xff"

    def long_key() -> bytes:
        head = bytes([rng.choice(letters)]) * rng.choice((0, 1, 494, 495, 496, 974, 975, 976, 1454, 1455, 1456))
        return head + bytes(rng.choices(letters, k=rng.randrange(3)))

    keys = {long_key() for _ in range(600)}
    with Store(path, sync="none") as store:
        store.update((key, b"") for key in keys)
        for _ in range(600):
            prefix = rng.choice((b"", long_key(), long_key()[:500]))
            start, stop = rng.choice((None, long_key())), rng.choice((None, long_key()))
            reverse = rng.random() < 0.5
            expected = [
                key
                for key in sorted(keys, reverse=reverse)
                if key.startswith(prefix) and (start is None or key >= start) and (stop is None or key < stop)
            ]
            assert list(store.keys(prefix, start, stop, reverse)) == expected
            assert len(store.keys(prefix, start, stop)) == len(expected)


def test_range_within_long_keys_reads_nothing_before_it(path, monkeypatch):
    """Or a filter that grows step by step would read all keys with the same beginning at each step."""
    from dlbf.storage import longkeys

    before = b"p" * 1200
    with Store(path, sync="none") as store:
        store.update((before + b"%04d" % i, b"") for i in range(3000))
        n_read = 0
        records = longkeys._node_records

        def counted(*args):
            nonlocal n_read
            for record in records(*args):
                n_read += 1
                yield record

        monkeypatch.setattr(longkeys, "_node_records", counted)
        assert len(list(store.keys(prefix=before + b"29"))) == 100
        assert len(list(store.keys(start=before + b"2990"))) == 10
        assert len(list(store.keys(stop=before + b"0010", reverse=True))) == 10
        assert n_read < 400  # list() asks for their number first
