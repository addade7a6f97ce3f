"""dlbf.build: the same bytes whoever builds, in whatever order; parts that are damaged, doubled or foreign."""

import functools
import random
import subprocess
import sys

import numpy as np
import pytest
from support.learned_common import small_model
from support.samples import SECRET

import dlbf
import dlbf.build as build
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.kernels.hashing import Sip24Secret
from dlbf.sharded.blueprint import read_blueprint

KEYS = list(listed_urls(4000))
NEGATIVES = list(ordinary_urls(12_000))
FRESH = list(ordinary_urls(10_000, seed=5))


@functools.cache
def planned(design="static", secret=None, shards=4, **more):
    return build.blueprint(
        KEYS[:1500],
        NEGATIVES,
        n_keys=len(KEYS),
        shards=shards,
        model=small_model(),
        design=design,
        secret=secret,
        **more,
    )


def shares(plan, keys, secret=None):
    numbers = build.route(plan, keys, secret)
    return [[key for key, at in zip(keys, numbers, strict=True) if at == n] for n in range(max(numbers) + 1)]


@functools.cache
def parts(design="static", secret=None):
    plan = planned(design, secret)
    return tuple(build.build_shard(plan, n, keys, secret) for n, keys in enumerate(shares(plan, KEYS, secret)))


@pytest.mark.parametrize("design", ["static", "auto"])
def test_blueprint_with_the_older_hash_is_built_and_read_with_it(design, tmp_path):
    plan = planned(design, Sip24Secret(SECRET), 2)
    made = [build.build_shard(plan, n, keys, SECRET) for n, keys in enumerate(shares(plan, KEYS, SECRET))]
    build.combine(tmp_path / "f", made)
    with dlbf.open_filter(tmp_path / "f", secret=SECRET) as f:
        assert f.contains_many(KEYS).all()
        assert (
            f.hash_keys(KEYS[:9]) == dlbf.hash_keys(KEYS[:9], Sip24Secret(SECRET)) != dlbf.hash_keys(KEYS[:9], SECRET)
        )
        again = type(f).from_bytes(f.to_bytes(), SECRET)
    assert again.contains_many(KEYS).all()
    assert all(key in again for key in KEYS[:300])


@pytest.mark.parametrize(
    ("design", "secret"),
    [("static", None), ("static", SECRET), ("auto", SECRET), ("plbf-cbf", None), ("slbf-3cbf", None), ("bloom", None)],
)
def test_no_key_is_missed_and_the_rate_is_kept(design, secret, tmp_path):
    path = tmp_path / "f"
    build.combine(path, parts(design, secret))
    with dlbf.open_filter(path, secret=secret) as f:
        assert len(f) == len(KEYS)
        assert f.contains_many(KEYS).all()
        assert all(key in f for key in KEYS[:500])
        # 1 %, and five standard deviations of it on 10,000 queries.
        assert f.contains_many(FRESH).mean() < 0.01 + 5 * (0.01 * 0.99 / len(FRESH)) ** 0.5
        assert f.check() == {}
        if len(f.plan.regions) > 1:
            with pytest.raises(TypeError, match="scores keys"):
                f.contains_hashes(dlbf.hash_keys(KEYS, secret))
        shard = f.shards[1]
        alone = dlbf.LearnedFilter.from_bytes(shard.to_bytes(), secret)
        own = shares(planned(design, secret), KEYS, secret)[1]
        assert len(alone) == len(shard) == len(own)
        assert alone.contains_many(own).all()
        assert alone.contains_routed(alone.route_keys(own)).all()
        assert shard.contains_routed(alone.route_keys(own)).all()
        assert (alone.contains_many(FRESH) == shard.contains_many(FRESH)).all()


def test_same_keys_give_the_same_bytes_in_any_order_and_batches():
    plan = planned()
    own = shares(plan, KEYS)[2]
    shuffled = own + own[:100]
    random.Random(1).shuffle(shuffled)
    assert build.build_shard(plan, 2, iter(shuffled)) == parts()[2]
    numbers, hashes, regions = build.digest(plan, shuffled)
    assert (numbers == 2).all()
    assert build.build_from_hashes(plan, 2, hashes, regions) == parts()[2]
    tables = planned("auto")
    assert build.build_shard(tables, 2, shuffled) == parts("auto")[2]
    assert planned.__wrapped__() == plan


def test_repeated_keys_count_once_where_nothing_is_stored():
    plan = planned(fpr=0.2)
    assert read_blueprint(plan).pattern.plan.regions[-1].n_bytes == 0
    numbers, hashes, regions = build.digest(plan, shares(plan, KEYS)[0])
    once = build.build_from_hashes(plan, 0, hashes.copy(), regions.copy())
    twice = build.build_from_hashes(plan, 0, np.tile(hashes, 2), np.tile(regions, 2))
    assert (numbers == 0).all()
    assert once == twice


def test_arrow_batches_route_as_lists_do():
    pa = pytest.importorskip("pyarrow")
    plan = planned()
    assert (build.route(plan, pa.array(KEYS, pa.binary())) == build.route(plan, KEYS)).all()
    own = shares(plan, KEYS)[1]
    assert build.build_shard(plan, 1, pa.array(own, pa.binary())) == parts()[1]


def test_another_process_builds_the_same_bytes(tmp_path):
    (tmp_path / "plan").write_bytes(planned())
    (tmp_path / "keys").write_bytes(b"\n".join(shares(planned(), KEYS)[3]))
    code = (
        "import sys, dlbf.build\n"
        "place = sys.argv[1]\n"
        "keys = open(place + '/keys', 'rb').read().split(b'\\n')\n"
        "part = dlbf.build.build_shard(open(place + '/plan', 'rb').read(), 3, keys)\n"
        "open(place + '/part', 'wb').write(part)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "part").read_bytes() == parts()[3]


def test_combine_takes_each_shard_once_from_memory_or_files(tmp_path):
    files = []
    for part in parts():
        files.append(tmp_path / build.part_name(part))
        files[-1].write_bytes(part)
    build.combine(tmp_path / "a", [*parts(), parts()[1]])
    build.combine(tmp_path / "b", [*reversed(files), str(files[0])])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert len(set(files)) == 4


def test_combine_refuses_what_does_not_belong_together(tmp_path):
    path = tmp_path / "f"
    one = build.build_shard(planned(), 1, shares(planned(), KEYS)[1][1:])
    with pytest.raises(dlbf.DlbfError, match="shard 1: built from other keys"):
        build.combine(path, [*parts(), one])
    with pytest.raises(dlbf.DlbfError, match="1 of 4 shards are missing, the first is 2"):
        build.combine(path, [*parts()[:2], parts()[3]])
    with pytest.raises(dlbf.DlbfError, match="another blueprint"):
        build.combine(path, [parts()[0], *parts("auto")[1:]])
    with pytest.raises(dlbf.DlbfError, match="no parts"):
        build.combine(path, [])
    damaged = bytearray(parts()[0])
    damaged[-30] ^= 4
    with pytest.raises(dlbf.ChecksumError):
        build.combine(path, [damaged, *parts()[1:]])
    assert not path.exists()


def test_a_rebuilt_shard_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "f"
    build.combine(path, parts())
    more = [b"http://another.example/%d" % i for i in range(500)]
    plan = planned()
    numbers = build.route(plan, more)
    added = [key for key, at in zip(more, numbers, strict=True) if at == 0]
    with dlbf.open_filter(path) as f:
        assert f.blueprint == plan
        f.replace_shard(0, build.build_shard(f.blueprint, 0, shares(plan, KEYS)[0] + added))
        assert f.contains_many(KEYS).all()
        assert f.contains_many(added).all()
        assert len(f) == len(KEYS) + len(added)
        with pytest.raises(dlbf.ReadOnlyError):
            f.add(b"x")
    f = dlbf.ShardedFilter.from_bytes(path.read_bytes())
    with pytest.raises(dlbf.StaticFilterError):
        f.add(b"x")


def test_deletable_shards_take_and_give_keys(tmp_path):
    plan = planned("auto", headroom=1.2)
    path = tmp_path / "f"
    build.combine(path, [build.build_shard(plan, n, keys) for n, keys in enumerate(shares(plan, KEYS))])
    with dlbf.open_filter(path, "r+") as f:
        gone = f.remove_many(KEYS[:1000])
        assert gone.mean() > 0.8
        f.update(KEYS[:1000])
        f.update(KEYS[4000:])
    with dlbf.open_filter(path) as f:
        assert f.contains_many(KEYS).all()
        assert len(f) == len(KEYS)
        assert f.check() == {}


def test_keys_of_another_shard_and_other_mistakes_are_refused():
    plan = planned()
    with pytest.raises(ValueError, match="do not belong to shard 1 of 4"):
        build.build_shard(plan, 1, KEYS)
    with pytest.raises(ValueError, match="do not belong"):
        build.build_from_hashes(plan, 1, np.zeros(1, np.uint64), np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="secret"):
        build.route(planned(secret=SECRET), KEYS)
    with pytest.raises(dlbf.FormatError):
        build.route(b"no blueprint", KEYS)
    with pytest.raises(ValueError, match="power of two"):
        build.blueprint(KEYS, NEGATIVES, n_keys=10, shards=6)
    with pytest.raises(ValueError, match="may deny"):
        build.blueprint(KEYS, NEGATIVES, n_keys=10, shards=2, design="lbf-3sbf")
    with pytest.raises(ValueError, match="cannot be split"):
        build.blueprint(KEYS[:1500], NEGATIVES, n_keys=1500, shards=2, design="ada-bf", model=small_model())


def test_empty_shards_are_shards(tmp_path):
    plan = planned()
    build.combine(tmp_path / "f", [build.build_shard(plan, n, []) for n in range(4)])
    with dlbf.open_filter(tmp_path / "f") as f:
        assert len(f) == 0
        assert f.check() == {}
