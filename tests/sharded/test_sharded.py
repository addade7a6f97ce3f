"""ShardedFilter: one filter like any other, whatever its shards are; damage, files, and shards that come singly."""

import logging
import multiprocessing
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.samples import SECRET

import dlbf
from dlbf import format
from dlbf.kernels.hashing import hash64, hash64_many
from dlbf.kernels.sharded import route_hashes
from dlbf.sharded.container import read_index
from dlbf.sharded.filter import shard_room

KEYS = [b"key %d" % i for i in range(600)]
BASES = [dlbf.CuckooFilter, dlbf.BloomFilter, dlbf.CountingBloomFilter, dlbf.DLeftFilter, dlbf.SuccinctCountingFilter]


def made(base=dlbf.CuckooFilter, shards=4, keys=KEYS, **options):
    f = dlbf.ShardedFilter(base, 1000, 0.01, shards=shards, **options)
    f.update(keys)
    return f


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("shards", [1, 2, 64, 1024])
def test_every_kind_has_all_keys_by_one_and_by_many(base, secret, shards):
    f = made(base, shards, secret=secret)
    assert len(f) == len(KEYS)
    assert all(key in f for key in KEYS)
    assert f.contains_many(KEYS).all()
    absent = [b"absent %d" % i for i in range(3000)]
    alone = np.array([key in f for key in absent])
    assert (f.contains_many(absent) == alone).all()
    assert alone.mean() < 0.05
    assert "key 1" in f
    assert bytearray(b"key 1") in f


def test_shard_of_a_key_is_the_top_bits_of_its_hash():
    f = made(shards=8, secret=SECRET)
    assert (f.route(KEYS) == [hash64(key, SECRET) >> 61 for key in KEYS]).all()
    assert (route_hashes(hash64_many(KEYS), 1) == 0).all()
    for number, shard in enumerate(f.shards):
        own = [key for key, at in zip(KEYS, f.route(KEYS), strict=True) if at == number]
        assert len(shard) == len(own)
        assert shard.contains_many(own).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "discard", "many", "copy"]), st.integers(0, 40))))
def test_like_a_set_under_random_operations(steps):
    f, model = dlbf.ShardedFilter(dlbf.CuckooFilter, 200, 1e-6, shards=8), set()
    for what, number in steps:
        key = b"k%d" % number
        if what == "add" and key not in model:
            f.add(key)
            model.add(key)
        elif what == "remove":
            if key in model:
                f.remove(key)
                model.remove(key)
            else:
                with pytest.raises(KeyError):
                    f.remove(key)
        elif what == "discard":
            f.discard(key)
            model.discard(key)
        elif what == "many":
            keys = [b"k%d" % i for i in range(number, number + 5)]
            f.remove_many([k for k in keys if k in model])
            model -= set(keys)
        elif what == "copy":
            f = type(f).from_bytes(f.to_bytes())
        assert len(f) == len(model)
        assert {key for key in [b"k%d" % i for i in range(50)] if key in f} == model


def test_hashes_answer_as_their_keys_do():
    f = dlbf.ShardedFilter(dlbf.CuckooFilter, 1000, 0.01, shards=8, secret=SECRET)
    f.add_hashes(dlbf.hash_keys(KEYS, SECRET))
    assert f == made(shards=8, secret=SECRET)
    absent = [b"absent %d" % i for i in range(3000)]
    assert (f.contains_hashes(dlbf.hash_keys(absent, SECRET)) == f.contains_many(absent)).all()
    with pytest.raises(dlbf.DlbfError):
        f.contains_hashes(dlbf.hash_keys(KEYS))


def test_file_opens_lazily_and_answers(tmp_path):
    path = tmp_path / "f"
    f = made(shards=16)
    f.save(path)
    with dlbf.open_filter(path) as g:
        assert isinstance(g, dlbf.ShardedFilter)
        assert g == f
        assert len(g) == len(KEYS)
        assert g.contains_many(KEYS).all()
        assert all(key in g for key in KEYS)
        assert not g.is_writable
        with pytest.raises(dlbf.ReadOnlyError):
            g.add(b"new")
        shard = g.shards[3]
        assert g.nbytes == f.nbytes
    with pytest.raises(ValueError, match="closed"):
        b"x" in g  # noqa: B015
    assert shard.contains_many([key for key, at in zip(KEYS, f.route(KEYS), strict=True) if at == 3]).all()
    assert pickle.loads(pickle.dumps(f)) == f
    assert f.copy() == f


def test_changes_of_a_mapped_file_are_there_when_it_is_opened_again(tmp_path):
    path = tmp_path / "f"
    made(shards=16).save(path)
    with dlbf.open_filter(path, "r+") as f:
        f.update([b"new %d" % i for i in range(100)])
        assert f.remove(b"key 7")
        f.add(b"one")
    with dlbf.open_filter(path) as f:
        assert f.check() == {}
        assert len(f) == len(KEYS) + 100
        assert b"key 7" not in f
        assert f.contains_many([b"one", *(b"new %d" % i for i in range(100))]).all()


def _die_writing(path):
    f = dlbf.open_filter(path, "r+")
    f.update([b"new %d" % i for i in range(50)])
    os.kill(os.getpid(), signal.SIGKILL)


def test_file_of_a_killed_writer_is_refused_and_can_be_recovered(tmp_path):
    path = tmp_path / "f"
    made(dlbf.BloomFilter, shards=16).save(path)
    child = multiprocessing.get_context("spawn").Process(target=_die_writing, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    with pytest.raises(dlbf.ChecksumError, match="not closed"):
        dlbf.open_filter(path)
    with dlbf.open_filter(path, "r+", recover=True) as f:
        f.check()
    with dlbf.open_filter(path) as f:
        assert f.check() == {}
        assert f.contains_many(KEYS).all()
        assert f.contains_many([b"new %d" % i for i in range(50)]).all()


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_noticed_and_never_costs_a_key(every, tmp_path, caplog):
    path = tmp_path / "f"
    f = made(shards=2, keys=KEYS[:40])
    f.save(path)
    whole = path.read_bytes()
    header = format.read_header(whole)
    index = read_index(header, memoryview(whole)[format.layout(header.n_payload_bytes).payload], "f")
    caplog.set_level(logging.ERROR, logger="dlbf")
    for bit in range(0, 8 * len(whole), every):
        place = bit // 8
        data = bytearray(whole)
        data[place] ^= 1 << (bit % 8)
        path.write_bytes(data)
        inside = [n for n, e in enumerate(index.entries) if e.offset <= place < e.offset + e.n_bytes]
        if not inside:
            if place < format.layout(header.n_payload_bytes).total:
                with pytest.raises(dlbf.DlbfError):
                    dlbf.open_filter(path)
            continue
        with dlbf.open_filter(path) as g:
            assert g.contains_many(KEYS[:40]).all()
            assert list(g.check()) == inside
            other = 1 - inside[0]
            assert g.shards[other] == f.shards[other]
            with pytest.raises(dlbf.DlbfError, match=f"shard {inside[0]}"):
                g.shards[inside[0]]


def test_damaged_shard_is_named_logged_once_and_can_be_replaced(tmp_path, caplog):
    path = tmp_path / "f"
    f = made(shards=4)
    f.save(path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with dlbf.open_filter(path) as g:
        absent = [b"absent %d" % i for i in range(400)]
        passing = g.contains_many(absent)
        assert passing[g.route(absent) == 3].all()
        assert list(g.damaged) == [3]
        assert len([record for record in caplog.records if "shard 3" in record.message]) == 1
        assert len(g) == len(KEYS)
        with pytest.raises(dlbf.ReadOnlyError):
            g.add(b"x")
        g.replace_shard(3, f.part(3))
        assert g.damaged == {}
        assert g.contains_many(KEYS).all()
        assert g.contains_many(absent).mean() < 0.1
        g.save(tmp_path / "mended")
    with dlbf.open_filter(tmp_path / "mended") as g:
        assert g == f
    with pytest.raises(dlbf.FormatError, match="expected shard 2"):
        f.replace_shard(2, f.part(3))


def test_disjoint_shards_are_put_together(tmp_path):
    from dlbf.build import combine

    f = made(shards=4)
    combine(tmp_path / "a", [f.part(0), f.part(2)], allow_missing=True)
    combine(tmp_path / "b", [f.part(1), f.part(3)], allow_missing=True)
    with dlbf.open_filter(tmp_path / "a") as a, dlbf.open_filter(tmp_path / "b") as b:
        assert a.missing == [1, 3]
        assert a.contains_many(KEYS).all()  # what is missing is "maybe"
        both = a | b
        with pytest.raises(ValueError, match="both filters have shard 0"):
            a | a
    assert [both.part(n) for n in range(4)] == [f.part(n) for n in range(4)]
    with pytest.raises(ValueError, match="same blueprint"):
        both | made(shards=8)


def test_shards_that_users_get_are_copies(tmp_path):
    f = made(shards=4)
    f.shards[0].clear()
    f.shards[1].close()
    assert f.contains_many(KEYS).all()
    f.save(tmp_path / "f")
    with dlbf.open_filter(tmp_path / "f") as g:
        for shard in g.shards:
            shard.close()
        assert all(key in g for key in KEYS)
        assert g.contains_many(KEYS).all()


def test_shard_that_is_replaced_while_others_ask_is_the_one_that_stays(tmp_path):
    """Neither does a batch see what is let go of, nor does who asks meanwhile bring back the one in the file."""
    old, new = made(shards=4), made(shards=4, keys=[*KEYS, b"one more"])
    number = int(new.route([b"one more"])[0])
    part = new.part(number)
    old.save(tmp_path / "f")
    missed, stop = [], threading.Event()

    def ask(g):
        while not stop.is_set():
            if not g.contains_many(KEYS * 20).all() or not all(key in g for key in KEYS[:50]):
                missed.append(1)

    for _ in range(20):
        with dlbf.open_filter(tmp_path / "f") as g:
            stop.clear()
            threads = [threading.Thread(target=ask, args=(g,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                g.replace_shard(number, part)
                assert b"one more" in g
            stop.set()
            for thread in threads:
                thread.join()
            assert g.check() == {}
    assert not missed


def test_damaged_shard_among_those_that_are_asked_directly(tmp_path):
    f = made(shards=4)
    f.save(tmp_path / "f")
    data = bytearray((tmp_path / "f").read_bytes())
    data[-20] ^= 1
    (tmp_path / "f").write_bytes(data)
    absent = [b"absent %d" % i for i in range(3000)]
    with dlbf.open_filter(tmp_path / "f") as g:
        g.check()
        assert (g.contains_many(absent) == (f.contains_many(absent) | (g.route(absent) == 3))).all()
        assert g.contains_many(absent).tolist() == [key in g for key in absent]


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="power of two"):
        made(shards=3)
    with pytest.raises(TypeError, match="class of plain filters"):
        made(dlbf.RibbonFilter)
    with pytest.raises(dlbf.NotDeletableError):
        made(dlbf.BloomFilter).remove(KEYS[0])
    with pytest.raises(dlbf.FilterFullError, match=r"shard \d of 4 has no room"):
        made(keys=[b"%d" % i for i in range(5000)])
    f = made()
    with pytest.raises(IndexError):
        f.shards[4]
    assert repr(f).startswith("<ShardedFilter: 600 keys in 4 shards")
    f.close()
    assert repr(f) == "<ShardedFilter, closed>"


def test_room_of_a_shard_holds_in_a_simulation():
    rng = np.random.default_rng(7)
    n, shards = 1_000_000, 64
    worst = max(rng.multinomial(n, [1 / shards] * shards).max() for _ in range(200))
    assert n / shards < worst <= shard_room(n, shards)
