"""Bytes and files: golden bytes, every kind of damage, crashes and locks.

``tests/data/<name>.bin`` are what version 1 writes.  They are never made anew for an existing version: when the format
changes, its version is raised and files are added beside the old ones, with

    PYTHONPATH=tests python tests/filters/test_format.py <new suffix>
"""

import gc
import hashlib
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.places import DATA
from support.samples import SECRET, SMALL_FILTERS, elastic_of_buckets, small_filters

import dlbf
from dlbf import format
from dlbf.filters import files
from dlbf.filters.kinds import BASES, class_of_kind
from dlbf.kernels.hashing import Sip24Secret

LONG = 3_000_000_000  # seconds: what is written now is there when these files are read
GOLDEN_KEYS = [b"", b"a", b"b\0c", b"https://example.org/", "ключ".encode(), b"x" * 300]


def golden_filters():
    out = {}
    # Those that are called only "keyed" have the hash of dlbf 0.1.
    for keyed, secret in (("", None), ("-keyed", Sip24Secret(SECRET)), ("-keyed-13", SECRET)):
        for name, make in small_filters(secret).items():
            if keyed and name not in ("bloom", "cuckoo"):
                continue
            f = make()
            f.update(GOLDEN_KEYS)
            f.update([b"%d" % i for i in range(20)])
            if f.DELETABLE:
                f.remove_many([b"%d" % i for i in range(10)])
            out[name + keyed] = f
        keys = GOLDEN_KEYS + [b"%d" % i for i in range(3000)]
        expiring = dlbf.ExpiringFilter(
            40, 0.05, ttl=LONG, steps=2, secret=secret, clock=dlbf.ManualClock(1_790_000_000)
        )
        expiring.update(GOLDEN_KEYS)
        out["expiring" + keyed] = expiring
        out["ribbon" + keyed] = dlbf.RibbonFilter.build(keys, 0.2, secret=secret)
    return out


# Small, so that every bit of them can be flipped.
TINY = {
    "bloom": lambda: dlbf.BloomFilter(bits=100, hashes=3),
    "bloom-blocked": lambda: dlbf.BloomFilter(bits=512, hashes=3, layout="blocked"),
    "counting-2": lambda: dlbf.CountingBloomFilter(counters=101, hashes=3, counter_bits=2),
    "counting-4": lambda: dlbf.CountingBloomFilter(counters=101, hashes=3, counter_bits=4),
    "counting-8": lambda: dlbf.CountingBloomFilter(counters=51, hashes=3, counter_bits=8),
    "deletable": lambda: dlbf.DeletableBloomFilter(bits=240, hashes=3, regions=24),
    "dleft": lambda: dlbf.DLeftFilter(buckets=2, remainder_bits=8, cells=4),
    "cuckoo": lambda: dlbf.CuckooFilter(buckets=8, suffix_bits=3),
    "exact": lambda: dlbf.ExactSet(10),
    "elastic": lambda: elastic_of_buckets(256, 24, hashes=2),
    "expiring": lambda: dlbf.ExpiringFilter(10, 0.1, ttl=LONG, steps=1),
}
TINY_KEYS = [b"key%d" % i for i in range(10)]


@pytest.fixture(params=[*sorted(TINY), "ribbon"])
def tiny(request):
    if request.param == "ribbon":
        return dlbf.RibbonFilter.build(TINY_KEYS, 0.1)
    f = TINY[request.param]()
    f.update(TINY_KEYS)
    return f


def rewritten(data: bytes, payload: bytes | None = None, **changes) -> bytes:
    """The object with header fields changed, and every checksum right."""
    header, old = format.unpack(data)
    values = {name: getattr(header, name) for name in header.__dataclass_fields__} | changes
    return format.pack(format.Header(**values), bytes(old) if payload is None else payload)


def with_params(data: bytes, **changes) -> bytes:
    header = format.read_header(data)
    names = dlbf.filters.base.COMMON_PARAMS + class_of_kind(header.kind, "f").PARAMS
    params = list(header.params)
    for name, value in changes.items():
        params[names.index(name)] = value
    return rewritten(data, params=tuple(params))


# --- golden bytes


@pytest.mark.parametrize("name", sorted(golden_filters()))
def test_golden_bytes_are_what_is_written(name):
    assert golden_filters()[name].to_bytes() == (DATA / f"{name}.v1.bin").read_bytes()


@pytest.mark.parametrize("name", sorted(golden_filters()))
def test_golden_bytes_still_answer(name):
    path = DATA / f"{name}.v1.bin"
    secret = SECRET if "-keyed" in name else None
    expected = golden_filters()[name]
    f = type(expected).from_bytes(path.read_bytes(), secret)
    assert f == expected
    assert f.contains_many(GOLDEN_KEYS).all()
    with dlbf.open_filter(path, secret=secret) as mapped:
        assert mapped.contains_many(GOLDEN_KEYS).all()
        assert mapped == expected


def test_golden_file_is_laid_out_as_documented():
    data = (DATA / "bloom.v1.bin").read_bytes()
    assert data[:8] == bytes.fromhex("89444C42460D0A1A")
    assert struct.unpack_from("<HHHHQQQ", data, 8) == (1, 1, 1, 0, 0, 125, 26)
    assert struct.unpack_from("<7Q", data, 40) == (0, 0, 0, 1000, 4, 0, 1)
    assert data[176:248] == bytes(72)
    assert len(data) == 256 + 125 + 8
    sums = format.checksum64(data[256:381])
    assert struct.unpack_from("<Q", data, 381) == (sums,)
    assert struct.unpack_from("<Q", data, 168) == (format.checksum64(data[381:]),)
    assert struct.unpack_from("<Q", data, 248) == (format.checksum64(data[:248]),)


def test_save_is_to_bytes_and_replaces_whole(tmp_path, make_filter):
    f = make_filter()
    f.update(GOLDEN_KEYS)
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o640)
    f.save(path)
    assert path.read_bytes() == f.to_bytes()
    assert path.stat().st_mode & 0o777 == 0o640
    f.save(str(path))
    assert list(tmp_path.iterdir()) == [path]


def test_save_failing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        dlbf.BloomFilter(10).save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# --- damage


def test_truncation_anywhere_is_an_error(tiny, tmp_path):
    data = tiny.to_bytes()
    path = tmp_path / "f"
    for n in range(len(data)):
        with pytest.raises(dlbf.FormatError):
            type(tiny).from_bytes(data[:n])
        if n % 7 == 0 or n > len(data) - 20:
            path.write_bytes(data[:n])
            for mode in ("r", "r+"):
                with pytest.raises(dlbf.FormatError, match="cut"):
                    dlbf.open_filter(path, mode)
    for extra in (b"\0", bytes(8), b"x" * 20000):
        with pytest.raises(dlbf.FormatError, match="appended to"):
            type(tiny).from_bytes(data + extra)


def test_every_bit_flip_is_an_error_in_bytes(tiny):
    data = tiny.to_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(dlbf.FormatError):
            type(tiny).from_bytes(damaged)


def test_contents_and_sums_of_another_filter_are_an_error(tiny, tmp_path):
    # Each chunk fits its sum; only the header knows that they are not its own.
    if type(tiny) is dlbf.RibbonFilter:
        other = dlbf.RibbonFilter.build([*TINY_KEYS[1:], b"another"], 0.1)
    else:
        other = tiny.copy()
        other.clear()
        other.add(b"key3")
    mixed = tiny.to_bytes()[:256] + other.to_bytes()[256:]
    (tmp_path / "f").write_bytes(mixed)
    for read in (type(tiny).from_bytes, lambda _: dlbf.open_filter(tmp_path / "f")):
        with pytest.raises(dlbf.ChecksumError, match="chunk sums do not match the header"):
            read(mixed)


# Every bit is flipped in bytes, above; in files one bit of each byte, in turn, and all of them in the long run.
@pytest.mark.parametrize("per_byte", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_every_bit_flip_is_an_error_or_loses_no_key_in_files(tiny, tmp_path, mode, per_byte):
    path = tmp_path / "f"
    data = tiny.to_bytes()
    path.write_bytes(data)
    unnoticed = 0
    with path.open("r+b") as file:
        for bit in [8 * at + (at + i) % 8 for at in range(len(data)) for i in range(per_byte)]:
            # In place, on one inode: making a file for each of some thousand flips takes long.
            file.seek(bit >> 3)
            file.write(bytes([data[bit >> 3] ^ (1 << (bit & 7))]))
            file.flush()
            try:
                with dlbf.open_filter(path, mode) as f:
                    assert f.contains_many(TINY_KEYS).all()
                    assert all(key in f for key in TINY_KEYS)
                    unnoticed += 1
            except dlbf.FormatError:
                pass
            file.seek(0)
            file.write(data)
            file.flush()
    # A chunk that no key touches may be damaged unseen; these filters are one chunk.
    assert unnoticed == 0
    with dlbf.open_filter(path, mode) as f:
        assert f == tiny


def test_damage_of_one_chunk_of_a_mapped_file_is_met_by_its_keys_only(tmp_path):
    f = dlbf.BloomFilter(bits=16 * 8 * format.CHUNK_BYTES, hashes=2, layout="blocked")
    keys = [b"%d" % i for i in range(3000)]
    f.update(keys)
    data = bytearray(f.to_bytes())
    for i in range(format.HEADER_BYTES, format.HEADER_BYTES + format.CHUNK_BYTES):
        data[i] = 0
    path = tmp_path / "f"
    path.write_bytes(data)
    refused = []
    with dlbf.open_filter(path) as mapped:
        for key in keys:
            try:
                assert key in mapped
            except dlbf.ChecksumError:
                refused.append(key)
        assert 3000 / 32 < len(refused) < 3000 / 8
        for key in refused:
            with pytest.raises(dlbf.ChecksumError, match="chunk 0 of the mapped filter"):
                key in mapped  # noqa: B015
            with pytest.raises(dlbf.ChecksumError, match="chunk 0"):
                mapped.contains_many([key])
        for call in (mapped.copy, mapped.to_bytes, lambda: mapped.fill, lambda: mapped == f):
            with pytest.raises(dlbf.ChecksumError, match="chunk 0"):
                call()
    with pytest.raises(dlbf.ChecksumError, match="do not match"):
        dlbf.open_filter(path, "r+")
    with pytest.raises(dlbf.ChecksumError, match="bytes 256 and on"):
        dlbf.BloomFilter.from_bytes(data)


@pytest.mark.parametrize("name", sorted(SMALL_FILTERS))
def test_mapped_answers_equal_those_in_memory_for_every_key(name, tmp_path):
    # A large filter of each kind: chunks are checked as they are touched, whichever way is asked.
    large = {
        "bloom": lambda: dlbf.BloomFilter(200_000),
        "bloom-blocked": lambda: dlbf.BloomFilter(200_000, layout="blocked"),
        "deletable": lambda: dlbf.DeletableBloomFilter(200_000),
        "dleft": lambda: dlbf.DLeftFilter(200_000),
        "cuckoo": lambda: dlbf.CuckooFilter(200_000),
        "cuckoo-wide": lambda: dlbf.CuckooFilter(200_000, 1e-7),
        "exact": lambda: dlbf.ExactSet(20_000),
        "elastic": lambda: dlbf.ElasticBloomFilter(2_000),
        "succinct": lambda: dlbf.SuccinctCountingFilter(200_000),
        "counting-2": lambda: dlbf.CountingBloomFilter(200_000, counter_bits=2),
        "counting-4": lambda: dlbf.CountingBloomFilter(200_000),
        "counting-8": lambda: dlbf.CountingBloomFilter(200_000, counter_bits=8),
        "counting-blocked": lambda: dlbf.CountingBloomFilter(200_000, layout="blocked"),
    }[name]()
    keys = [b"%d" % i for i in range(20_000)]
    large.update(keys)
    large.save(tmp_path / "f")
    asked = keys[::40] + [b"absent %d" % i for i in range(500)]
    with dlbf.open_filter(tmp_path / "f") as f:
        assert [key in f for key in asked] == large.contains_many(asked).tolist()
        if hasattr(f, "count"):
            assert [f.count(key) for key in asked] == [large.count(key) for key in asked]
    with dlbf.open_filter(tmp_path / "f") as f:
        assert f.contains_many(asked).tolist() == large.contains_many(asked).tolist()


# --- headers that lie, with every checksum right


HUGE = [2**64 - 1, 2**63, 2**60, 2**48]


def refuses_cheaply(data: bytes, cls, message=""):
    """FormatError, within 64 MB of memory more than now."""
    now = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), hard))
    try:
        with pytest.raises(dlbf.FormatError, match=message):
            cls.from_bytes(data)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


no_asan = pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs the address space")


@no_asan
@pytest.mark.parametrize("value", HUGE)
def test_header_of_absurd_parameters_refused_without_allocating(tiny, value):
    data = tiny.to_bytes()
    for name in type(tiny).PARAMS:
        if name == "ttl_ns" and value <= 1 << 60:
            continue  # days or years in nanoseconds: a time to live that may be meant, and nothing is allocated for it
        refuses_cheaply(with_params(data, **{name: value}), type(tiny), "impossible parameters|parameters call for")


@pytest.mark.parametrize("value", [0, 1, 2, 3, 5, 65, 1 << 20])
def test_header_of_other_parameters_is_refused_or_harmless(tiny, value):
    # Small lies may fit the payload (other hashes, say): then nothing worse than wrong answers may happen.
    data = tiny.to_bytes()
    for name in type(tiny).PARAMS:
        try:
            f = type(tiny).from_bytes(with_params(data, **{name: value}))
        except dlbf.FormatError:
            continue
        f.contains_many([b"%d" % i for i in range(200)])
        f.fill  # noqa: B018
        f.approximate_count()


@no_asan
@pytest.mark.parametrize("value", HUGE)
def test_header_of_absurd_sizes_refused_without_allocating(tiny, value):
    data = tiny.to_bytes()
    header = format.read_header(data)
    values = {name: getattr(header, name) for name in header.__dataclass_fields__}
    lying = format.write_header(format.Header(**(values | {"n_payload_bytes": value})))
    refuses_cheaply(lying + data[256:], type(tiny), "expected .* bytes, found")
    if value >= 2**63:
        refuses_cheaply(rewritten(data, n_items=value), type(tiny), "items|points outside")


def test_header_of_absurd_counts_never_breaks_len(tiny):
    if isinstance(tiny, dlbf.ExactSet):
        return
    f = type(tiny).from_bytes(rewritten(tiny.to_bytes(), n_items=2**62))
    # An expiring filter counts what its tables say, whatever the header does.
    assert len(f) == (10 if isinstance(tiny, dlbf.ExpiringFilter) else 2**62)
    assert 0 <= f.expected_fpr <= 1
    repr(f)


def test_header_of_unknown_parameters_refused(tiny):
    header = format.read_header(tiny.to_bytes())
    for i in range(3 + len(type(tiny).PARAMS), 16):
        params = (*header.params[:i], 1, *header.params[i + 1 :])
        with pytest.raises(dlbf.FormatError, match="unknown parameters"):
            type(tiny).from_bytes(rewritten(tiny.to_bytes(), params=params))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"version": 2}, dlbf.VersionError, "format version 2 found, this dlbf reads 1; upgrade dlbf"),
        ({"version": 0}, dlbf.VersionError, "format version 0 found"),
        ({"flags": 2}, dlbf.FormatError, "unknown flags 0x2"),
        ({"flags": 1}, dlbf.ChecksumError, "was being written and not closed"),
        ({"hash_kind": 4}, dlbf.FormatError, "unknown hash 4"),
        ({"hash_kind": 0}, dlbf.FormatError, "without a hash"),
        ({"hash_kind": 2, "key_check": 5}, ValueError, "made with a secret"),
        ({"hash_kind": 3, "key_check": 5}, ValueError, "made with a secret"),
        ({"key_check": 5}, ValueError, "wrong secret"),
        ({"kind": 9}, dlbf.FormatError, "found a kind 9"),
        ({"kind": 16}, dlbf.FormatError, "found a model"),
        ({"kind": 0}, dlbf.FormatError, "found a kind 0"),
    ],
)
def test_header_of_another_kind_refused(tiny, tmp_path, changes, error, message):
    data = tiny.to_bytes()
    header, payload = format.unpack(data)
    values = {name: getattr(header, name) for name in header.__dataclass_fields__} | changes
    data = format.pack(format.Header(**values), payload)
    with pytest.raises(error, match=message):
        type(tiny).from_bytes(data)
    path = tmp_path / "f"
    path.write_bytes(data)
    for mode in ("r", "r+"):
        with pytest.raises(error):
            dlbf.open_filter(path, mode)
    assert path.read_bytes() == data


def test_header_with_reserved_bytes_refused(tiny):
    data = tiny.to_bytes()
    for at in (176, 200, 247):
        head = bytearray(data[:248])
        head[at] = 1
        lying = bytes(head) + format.checksum64(bytes(head)).to_bytes(8, "little") + data[256:]
        with pytest.raises(dlbf.FormatError, match="reserved header bytes are not zero"):
            type(tiny).from_bytes(lying)


def test_another_class_refused_by_name(tiny):
    for cls in (row.cls for row in BASES.values()):
        if cls is not type(tiny):
            with pytest.raises(
                dlbf.FormatError, match=f"expected a {cls.__name__}, found a {type(tiny).__name__}; dlbf.open_filter"
            ):
                cls.from_bytes(tiny.to_bytes())


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 300, bytes(1000), b"\x89PNG\r\n\x1a\n" + bytes(400)])
def test_other_bytes_refused(data, tmp_path):
    with pytest.raises(dlbf.FormatError):
        dlbf.BloomFilter.from_bytes(data)
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(dlbf.FormatError):
        dlbf.open_filter(tmp_path / "f")


@pytest.mark.parametrize("data", [None, 5, "text", [1, 2]])
def test_from_bytes_of_something_else_is_a_type_error(data):
    with pytest.raises((TypeError, dlbf.FormatError)):
        dlbf.BloomFilter.from_bytes(data)


def test_secret_wrong_missing_or_needless_refused(tmp_path):
    keyed = dlbf.CuckooFilter(100, secret=SECRET)
    keyed.add(b"a")
    plain = dlbf.CuckooFilter(100)
    keyed.save(tmp_path / "keyed")
    plain.save(tmp_path / "plain")
    assert SECRET not in keyed.to_bytes()
    for secret, message in ((None, "made with a secret; pass"), (bytes(16), "wrong secret")):
        with pytest.raises(ValueError, match=message):
            dlbf.CuckooFilter.from_bytes(keyed.to_bytes(), secret)
        for mode in ("r", "r+"):
            with pytest.raises(ValueError, match=message):
                dlbf.open_filter(tmp_path / "keyed", mode, secret=secret)
    with pytest.raises(ValueError, match="made without a secret"):
        dlbf.open_filter(tmp_path / "plain", secret=SECRET)
    with pytest.raises(ValueError, match="exactly 16 bytes"):
        dlbf.open_filter(tmp_path / "keyed", secret=b"short")
    with dlbf.open_filter(tmp_path / "keyed", secret=SECRET) as f:
        assert b"a" in f


@pytest.mark.parametrize("slot", [1, 2**64 - 1, 2**63, 2**64 - 11, 2**64 - 12, 50, 200, 321])
def test_exact_set_of_lying_offsets_refused(slot, tmp_path):
    s = dlbf.ExactSet(10)
    s.update([b"one", b"two"])
    header, payload = format.unpack(s.to_bytes())
    payload = bytearray(payload)
    n_slots = header.params[3]
    for i in range(n_slots):
        if payload[16 + 8 * i : 24 + 8 * i] != bytes(8):
            payload[16 + 8 * i : 24 + 8 * i] = struct.pack("<Q", slot)
            break
    data = format.pack(header, payload)
    if slot == 1:
        dlbf.ExactSet.from_bytes(data)  # both slots hold one key: odd, harmless
        return
    with pytest.raises(dlbf.FormatError, match="points outside of itself"):
        dlbf.ExactSet.from_bytes(data)
    (tmp_path / "f").write_bytes(data)
    for mode in ("r", "r+"):
        with pytest.raises(dlbf.FormatError, match="points outside of itself"):
            dlbf.open_filter(tmp_path / "f", mode)


@pytest.mark.parametrize(("field", "value"), [(0, 0), (0, 7), (0, 2**64 - 1), (8, 2**64 - 1), (8, 1 << 40)])
def test_exact_set_of_lying_counts_refused(field, value):
    s = dlbf.ExactSet(10)
    s.update([b"one", b"two"])
    header, payload = format.unpack(s.to_bytes())
    payload = bytearray(payload)
    payload[field : field + 8] = struct.pack("<Q", value)
    with pytest.raises(dlbf.FormatError, match="points outside of itself"):
        dlbf.ExactSet.from_bytes(format.pack(header, payload))


def test_exact_set_of_lying_lengths_refused():
    s = dlbf.ExactSet(10)
    s.add(b"one")
    header, payload = format.unpack(s.to_bytes())
    payload = bytearray(payload)
    at = payload.index(b"one") - 4
    for value in (4, 1000, 2**32 - 1):
        payload[at : at + 4] = struct.pack("<I", value)
        if value == 4:  # within the padding
            assert b"one" not in dlbf.ExactSet.from_bytes(format.pack(header, payload))
            continue
        with pytest.raises(dlbf.FormatError, match="points outside of itself"):
            dlbf.ExactSet.from_bytes(format.pack(header, payload))


def test_tables_of_any_contents_answer_without_a_crash():
    # Payloads no filter ever wrote, with right checksums: answers mean nothing, but nothing breaks.
    for name in ("cuckoo", "cuckoo-wide", "dleft", "deletable", "counting-2"):
        f = SMALL_FILTERS[name]()
        header, payload = format.unpack(f.to_bytes())
        for seed in range(20):
            noise = hashlib.shake_128(b"%d" % seed).digest(len(payload))
            g = type(f).from_bytes(format.pack(header, noise))
            for i in range(200):
                g.discard(b"%d" % i)
                try:
                    g.add(b"%d" % i)
                except dlbf.FilterFullError:
                    continue
                assert b"%d" % i in g
            try:
                g | g
            except dlbf.FilterFullError:
                continue


# --- files that are mapped


def test_open_read_only_refuses_changes_and_keeps_the_file(make_filter, tmp_path):
    f = make_filter()
    f.update(GOLDEN_KEYS)
    path = tmp_path / "f"
    f.save(path)
    data = path.read_bytes()
    with dlbf.open_filter(path) as mapped:
        assert type(mapped) is type(f)
        assert not mapped.is_writable
        calls = [
            lambda: mapped.add(b"z"),
            lambda: mapped.update([b"z"]),
            mapped.clear,
            lambda: mapped.__ior__(f),
        ]
        if f.DELETABLE:
            calls += [lambda: mapped.remove(b"a"), lambda: mapped.discard(b"a"), lambda: mapped.remove_many([b"a"])]
        for call in calls:
            with pytest.raises(dlbf.ReadOnlyError, match=r"mapped read-only; open it with mode='r\+'"):
                call()
        assert mapped == f
        mine = mapped.copy()
        mine.add(b"z")
        assert b"z" in mine
        assert (mapped | mine).contains_many([b"z", *GOLDEN_KEYS]).all()
    assert path.read_bytes() == data
    with pytest.raises(ValueError, match="closed"):
        b"a" in mapped  # noqa: B015


def test_open_for_writing_writes_changes_back(make_filter, tmp_path):
    f = make_filter()
    f.update(GOLDEN_KEYS[:3])
    path = tmp_path / "f"
    f.save(path)
    with dlbf.open_filter(path, "r+") as mapped:
        mapped.update(GOLDEN_KEYS[3:])
        mapped.add(b"z")
        if f.DELETABLE:
            mapped.remove(b"a")
    g = make_filter()
    g.update(GOLDEN_KEYS[:3])
    g.update(GOLDEN_KEYS[3:])
    g.add(b"z")
    if f.DELETABLE:
        g.remove(b"a")
    with dlbf.open_filter(path) as mapped:
        assert mapped == g
        assert len(mapped) == len(g)
    assert type(f).from_bytes(path.read_bytes()) == g
    with dlbf.open_filter(path, "r+") as mapped:
        mapped |= f
        assert mapped == g | f
        mapped.clear()
    with dlbf.open_filter(path) as mapped:
        assert len(mapped) == 0
        assert mapped == make_filter()


def test_open_for_writing_without_close_is_closed_by_the_collector(tmp_path):
    dlbf.BloomFilter(100).save(tmp_path / "f")
    f = dlbf.open_filter(tmp_path / "f", "r+")
    f.add(b"a")
    del f
    with dlbf.open_filter(tmp_path / "f") as f:
        assert b"a" in f


def test_mapped_exact_set_that_is_full_says_so(tmp_path):
    s = dlbf.ExactSet(4)
    s.add(b"a")
    s.save(tmp_path / "f")
    with dlbf.open_filter(tmp_path / "f", "r+") as mapped:
        with pytest.raises(dlbf.FilterFullError, match="nothing was lost"):
            mapped.update([b"%d" % i for i in range(100)])
        keys = set(mapped)
        assert {b"a", b"0", b"1"} <= keys
    with dlbf.open_filter(tmp_path / "f") as mapped:
        assert set(mapped) == keys


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "w"}, "mode must be 'r' or 'r\\+', found 'w'"),
        ({"mode": "rb"}, "mode must be"),
        ({"recover": True}, r"recover=True needs mode='r\+'"),
    ],
)
def test_open_in_another_way_refused(tmp_path, arguments, message):
    dlbf.BloomFilter(10).save(tmp_path / "f")
    with pytest.raises(ValueError, match=message):
        dlbf.open_filter(tmp_path / "f", **arguments)


def test_open_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        dlbf.open_filter(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        dlbf.open_filter(tmp_path / "nothing", "r+")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="directory"):
        dlbf.open_filter(tmp_path)
    with pytest.raises(FileNotFoundError):
        dlbf.BloomFilter(10).save(tmp_path / "no" / "folder")


def test_locks_keep_writers_alone(tmp_path):
    path = tmp_path / "f"
    dlbf.BloomFilter(10).save(path)
    with dlbf.open_filter(path), dlbf.open_filter(path), pytest.raises(dlbf.DlbfError, match="in use by another"):
        dlbf.open_filter(path, "r+")
    with dlbf.open_filter(path, "r+"):
        with pytest.raises(dlbf.DlbfError, match="being written by another"):
            dlbf.open_filter(path)
        with pytest.raises(dlbf.DlbfError, match="in use by another"):
            dlbf.open_filter(path, "r+")
    dlbf.open_filter(path, "r+").close()


@pytest.mark.parametrize("other", [False, True])
def test_save_over_a_file_that_is_being_written_is_refused_and_nothing_is_lost(tmp_path, other):
    path = tmp_path / "f"
    f = dlbf.CountingBloomFilter(100)
    f.update([b"saved", b"before"])
    f.save(path)
    with dlbf.open_filter(path, "r+") as mapped:
        mapped.add(b"mapped")
        with pytest.raises(dlbf.DlbfError, match=r"open with mode='r\+'.*save to another path"):
            (f if other else mapped).save(path)
        mapped.add(b"after")
        mapped.save(tmp_path / "copy")
    with dlbf.open_filter(path) as mapped, dlbf.open_filter(tmp_path / "copy") as copy:
        assert mapped == copy
        assert all(mapped.contains_many([b"saved", b"before", b"mapped", b"after"]))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy", "f"]


def test_save_over_a_file_that_is_mapped_for_reading_replaces_it(tmp_path):
    path = tmp_path / "f"
    f = dlbf.BloomFilter(100)
    f.save(path)
    with dlbf.open_filter(path) as mapped:
        f.add(b"new")
        f.save(path)
        assert b"new" not in mapped
    with dlbf.open_filter(path) as mapped:
        assert b"new" in mapped


def test_file_that_is_replaced_before_it_is_locked_is_opened_again(tmp_path, monkeypatch):
    path = tmp_path / "f"
    dlbf.BloomFilter(100).save(path)
    newer = dlbf.BloomFilter(100)
    newer.add(b"new")
    lock = files.MappedFile._lock

    def late(self, file):
        monkeypatch.undo()
        newer.save(path)
        lock(self, file)

    monkeypatch.setattr(files.MappedFile, "_lock", late)
    with dlbf.open_filter(path, "r+") as mapped:
        assert b"new" in mapped
        mapped.add(b"newest")
    with dlbf.open_filter(path) as mapped:
        assert b"newest" in mapped


def test_file_that_is_removed_while_it_is_written_is_told(tmp_path):
    path = tmp_path / "f"
    dlbf.BloomFilter(100).save(path)
    mapped = dlbf.open_filter(path, "r+")
    path.unlink()
    with pytest.warns(RuntimeWarning, match="removed or replaced while it was mapped.*changes are lost"):
        mapped.close()
    dlbf.BloomFilter(100).save(path)
    with dlbf.open_filter(path, "r+") as mapped:
        path.rename(tmp_path / "moved")
        mapped.add(b"a")
    with dlbf.open_filter(tmp_path / "moved") as mapped:
        assert b"a" in mapped


def test_saved_files_have_the_mode_of_others_and_links_stay_links(tmp_path):
    before = os.umask(0o027)
    try:
        dlbf.BloomFilter(100).save(tmp_path / "f")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    (tmp_path / "f").chmod(0o604)
    (tmp_path / "link").symlink_to("f")
    f = dlbf.BloomFilter(100)
    f.add(b"a")
    f.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o604
    with dlbf.open_filter(tmp_path / "f") as mapped:
        assert b"a" in mapped


def test_failed_opens_leave_no_lock_and_no_descriptor(tmp_path):
    path = tmp_path / "f"
    s = dlbf.ExactSet(10)
    s.add(b"a")
    data = bytearray(s.to_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    gc.collect()  # or what others have left is closed in between
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        for mode in ("r", "r+"):
            with pytest.raises(dlbf.ChecksumError):
                dlbf.open_filter(path, mode)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    s.save(path)
    dlbf.open_filter(path, "r+").close()


# --- crashes


def run_and_kill(code: str, *arguments: str) -> None:
    """Run a program until it prints "ready", then kill it without a warning."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", sorted(SMALL_FILTERS))
def test_killed_writer_is_noticed_and_recovered(name, tmp_path):
    path = tmp_path / "f"
    f = SMALL_FILTERS[name]()
    f.update(GOLDEN_KEYS)
    f.save(path)
    run_and_kill(
        """
        import sys, time, dlbf
        f = dlbf.open_filter(sys.argv[1], "r+")
        f.update([b"%d" % i for i in range(20)])
        if f.DELETABLE:
            f.remove(b"a")
        print("ready", flush=True)
        time.sleep(60)
        """,
        str(path),
    )
    for open_it in (lambda: dlbf.open_filter(path), lambda: dlbf.open_filter(path, "r+")):
        with pytest.raises(dlbf.ChecksumError, match="was being written and not closed"):
            open_it()
    with pytest.raises(dlbf.ChecksumError, match="was being written and not closed"):
        type(f).from_bytes(path.read_bytes())
    if name in ("cuckoo-wide", "succinct", "elastic"):
        with pytest.raises(dlbf.ChecksumError, match="more than one step"):
            dlbf.open_filter(path, "r+", recover=True)
        return
    stored = [key for key in GOLDEN_KEYS if key != b"a" or not f.DELETABLE] + [b"%d" % i for i in range(20)]
    with dlbf.open_filter(path, "r+", recover=True) as recovered:
        assert recovered.contains_many(stored).all()
        assert abs(len(recovered) - len(stored)) <= 3
        recovered.add(b"after")
    with dlbf.open_filter(path) as again:
        assert again.contains_many([*stored, b"after"]).all()
    with dlbf.open_filter(path, "r+", recover=True) as again:  # a clean file needs no recovery and is just opened
        assert again.contains_many(stored).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", ["pass", "f.close()", "del f"])
def test_child_that_ends_does_not_write_back_what_its_parent_goes_on_writing(how, tmp_path):
    path = tmp_path / "f"
    dlbf.CountingBloomFilter(1000).save(path)
    run_and_kill(
        f"""
        import os, sys, time, dlbf
        f = dlbf.open_filter(sys.argv[1], "r+")
        child = os.fork()
        if not child:
            {how}
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        f.add(b"after")
        print("ready", flush=True)
        time.sleep(60)
        """,
        str(path),
    )
    with pytest.raises(dlbf.ChecksumError, match="was being written and not closed"):
        dlbf.open_filter(path)
    with dlbf.open_filter(path, "r+", recover=True) as f:
        assert b"after" in f


@pytest.mark.parametrize("name", ["counting-4", "cuckoo", "dleft", "deletable"])
def test_killed_in_the_middle_of_batches_loses_nothing_that_was_there(name, tmp_path):
    path = tmp_path / "f"
    make = {
        "counting-4": lambda: dlbf.CountingBloomFilter(20_000),
        "cuckoo": lambda: dlbf.CuckooFilter(10_500),
        "dleft": lambda: dlbf.DLeftFilter(20_000),
        "deletable": lambda: dlbf.DeletableBloomFilter(20_000),
    }[name]
    f = make()
    stay = [b"stay %d" % i for i in range(5000)]
    f.update(stay)
    f.save(path)
    for _ in range(3):
        run_and_kill(
            """
            import sys, time, dlbf
            f = dlbf.open_filter(sys.argv[1], "r+", recover=True)
            come_and_go = [b"go %d" % i for i in range(5000)]
            print("ready", flush=True)
            while True:
                f.update(come_and_go)
                f.remove_many(come_and_go)
            """,
            str(path),
        )
        with dlbf.open_filter(path, "r+", recover=True) as recovered:
            assert recovered.contains_many(stay).all()
            if name == "cuckoo":
                # What the killed process left of its own would fill the table: start again from what stays.
                recovered.clear()
                recovered.update(stay)


def test_exit_without_close_writes_back(tmp_path):
    path = tmp_path / "f"
    dlbf.CuckooFilter(100).save(path)
    code = "import sys, dlbf; f = dlbf.open_filter(sys.argv[1], 'r+'); f.add(b'a')"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    with dlbf.open_filter(path) as f:
        assert b"a" in f
        assert len(f) == 1


def test_answers_are_the_same_in_another_process_with_another_hash_seed(tmp_path):
    keys = [b"%d" % i for i in range(60)]
    for name in sorted(SMALL_FILTERS):
        f = SMALL_FILTERS[name]()
        f.update(keys[:40])
        f.save(tmp_path / name)
    code = """
        import pathlib, sys, dlbf
        keys = [b"%d" % i for i in range(60)]
        for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
            with dlbf.open_filter(path) as f:
                print(path.name, "".join(str(int(key in f)) for key in keys))
        """
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout.split()
        for name, answers in zip(out[::2], out[1::2], strict=True):
            f = SMALL_FILTERS[name]()
            f.update(keys[:40])
            assert answers == "".join(str(int(key in f)) for key in keys)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "how", ["f.add(b'x')", "f.update([b'x'])", "f.discard(b'key')", "f.clear()", "f.update(keys())"]
)
def test_child_cannot_change_the_file_that_its_parent_has_open(how, tmp_path):
    """Nothing keeps the two apart: keys of the parent were lost, and after its close() the sums did not hold."""
    path = tmp_path / "f"
    dlbf.CuckooFilter(1000).save(path)
    program = f"""
import os, sys, dlbf
def keys():
    if os.getpid() == parent:
        global child
        child = os.fork()
    yield b"x"
parent, child = os.getpid(), None
f = dlbf.open_filter(sys.argv[1], "r+")
f.add(b"key")
if "keys()" not in {how!r}:
    child = os.fork()
if os.getpid() == parent and child is not None:
    os.waitpid(child, 0)
    f.close()
    sys.exit()
try:
    {how}
except dlbf.ReadOnlyError as error:
    assert "fork()" in str(error)
    assert b"key" in f and not f.is_writable
    g = f.copy()
    g.add(b"y")
    print("refused", flush=True)
    f.close()
    os._exit(0)
if os.getpid() == parent:
    os.waitpid(child, 0)
    f.close()
"""
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("refused\n", 0), done.stderr
    with dlbf.open_filter(path, "r+") as f:
        assert b"key" in f


if __name__ == "__main__":
    for filter_name, filter_ in golden_filters().items():
        (DATA / f"{filter_name}.{sys.argv[1]}.bin").write_bytes(filter_.to_bytes())
