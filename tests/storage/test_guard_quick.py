"""Overwrites and batches through a guard are compiled, whatever was done before."""

import pytest
from support import peek

from dlbf.storage import Guard
from dlbf.storage.engines import MappingEngine


class Counting(MappingEngine):
    """A dict that counts how often it is asked."""

    in_flight = False

    def __init__(self, pairs):
        super().__init__(dict(pairs))
        self.asked = []
        self.batches = []

    def has(self, key):
        self.asked.append(key)
        return key in self.mapping

    def put_many(self, items):
        self.batches.append(len(items))
        super().put_many(items)


def refuse_slow_changes(guard, monkeypatch):
    """Let nothing but compiled changes happen."""
    writes = peek.guarded(guard)

    def refuse(*_, **__):
        raise AssertionError("not the common case")

    monkeypatch.setattr(writes, "alone", refuse)


def test_overwrites_are_quick_in_a_log_without_room_for_records(tmp_path, monkeypatch):
    engine = Counting({b"%d" % i: b"1" for i in range(1000)})
    with Guard(engine, tmp_path, sync="none") as guard:
        guard[b"0"] = b"2"  # looks whether a larger filter is due; the log is as it was when it was made
        refuse_slow_changes(guard, monkeypatch)
        engine.asked.clear()
        for i in range(1000):
            guard[b"%d" % i] = b"3"
        assert set(engine.mapping.values()) == {b"3"}
        assert len(engine.asked) in (999, 1000)  # the first one may be known
        for i in range(1000):
            guard[b"%d" % i] = b"4"
        assert len(engine.asked) in (999, 1000)  # all are known by now
        with pytest.raises(AssertionError, match="common case"):
            guard[b"new"] = b"1"
        monkeypatch.undo()
        assert guard.verify().ok


def test_batch_is_one_record_of_what_is_new(tmp_path, monkeypatch):
    engine = Counting({b"%d" % i: b"1" for i in range(1000)})
    with Guard(engine, tmp_path, sync="none") as guard:
        guard.update([(b"first", b"1")])
        refuse_slow_changes(guard, monkeypatch)
        position = guard.stats().last_txn
        guard.update([(b"%d" % i, b"2") for i in range(990, 1010)] + [(b"1009", b"3")])
        assert guard.stats().last_txn == position + 1
        guard.update([(b"%d" % i, b"4") for i in range(990, 1010)])
        assert guard.stats().last_txn == position + 1
        assert engine.batches == [1, 20, 20]
        assert {key: guard[key] for key in engine.mapping} == engine.mapping
        monkeypatch.undo()
        assert guard.verify().ok
        assert len(guard) == 1011


def test_batch_that_the_engine_refuses_leaves_no_entries(tmp_path):
    class Refusing(Counting):
        refuses = False

        def put_many(self, items):
            if self.refuses:
                super().put_many(items[:3])
                raise OSError("no answer")
            super().put_many(items)

    engine = Refusing({b"%d" % i: b"1" for i in range(100)})
    with Guard(engine, tmp_path, sync="none") as guard:
        guard.update([(b"first", b"1")])
        engine.refuses = True
        with pytest.raises(OSError, match="no answer"):
            guard.update([(b"new %d" % i, b"1") for i in range(50)])
        assert [guard.get(b"new %d" % i) for i in range(4)] == [b"1", b"1", b"1", None]
        verified = guard.verify()
        assert (verified.missing, verified.extra, verified.keys) == (0, 0, 104)
