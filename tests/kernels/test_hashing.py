"""The hash against independent implementations, and every implementation of ours against the others."""

import os
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
import siphash24
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.samples import SECRET

from dlbf.kernels.hashing import (
    Sip13Secret,
    Sip24Secret,
    checksum64,
    checksum64_chunks,
    decided_secret,
    hash64,
    hash64_many,
)

MASK = 2**64 - 1


def sip24(data: bytes, secret: bytes) -> int:
    return int.from_bytes(siphash24.siphash24(data, key=secret).digest(), "little")


def sip13(data: bytes, secret: bytes, rounds: int = 1, last_rounds: int = 3) -> int:
    """SipHash as its paper has it, for any number of rounds."""

    def rotated(x, by):
        return (x << by | x >> (64 - by)) & MASK

    def mixed(a, b, c, d, n):
        for _ in range(n):
            a = (a + b) & MASK
            b = rotated(b, 13) ^ a
            a = rotated(a, 32)
            c = (c + d) & MASK
            d = rotated(d, 16) ^ c
            a = (a + d) & MASK
            d = rotated(d, 21) ^ a
            c = (c + b) & MASK
            b = rotated(b, 17) ^ c
            c = rotated(c, 32)
        return a, b, c, d

    first, second = struct.unpack("<QQ", secret)
    a, b = first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D
    c, d = first ^ 0x6C7967656E657261, second ^ 0x7465646279746573
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        d ^= word
        a, b, c, d = mixed(a, b, c, d, rounds)
        a ^= word
    a, b, c, d = mixed(a, b, c ^ 0xFF, d, last_rounds)
    return a ^ b ^ c ^ d


OLD_SECRET = Sip24Secret(SECRET)


def random_keys(lengths, seed=1):
    rng = random.Random(seed)
    return [rng.randbytes(n) for n in lengths]


LENGTHS = [*range(1101), 2047, 2048, 2049, 4096, 16383, 16384, 16385, 65536 + 7, 1 << 20]


def best_lanes() -> int:
    for lanes in (2, 1):
        try:
            hash64_many([b""], SECRET, lanes)
        except ValueError:
            continue
        return lanes
    return 0


def test_xxh3_every_length_equals_xxhash():
    for key in random_keys(LENGTHS):
        assert hash64(key) == xxhash.xxh3_64_intdigest(key), len(key)
        assert checksum64(key) == xxhash.xxh3_64_intdigest(key), len(key)


def test_older_siphash_every_length_equals_siphash24():
    for key in random_keys(LENGTHS):
        assert hash64(key, OLD_SECRET) == sip24(key, SECRET), len(key)


def test_siphash_every_length_equals_reference():
    for key in random_keys(LENGTHS[:-1]):
        assert hash64(key, SECRET) == sip13(key, SECRET), len(key)


def test_reference_with_other_rounds_is_siphash24():
    for key in random_keys(range(70)):
        assert sip13(key, SECRET, 2, 4) == sip24(key, SECRET)


@given(st.binary(max_size=2000), st.binary(min_size=16, max_size=16))
def test_all_hashes_random_keys_and_secrets_equal_reference(key, secret):
    assert hash64(key) == xxhash.xxh3_64_intdigest(key)
    assert hash64(key, secret) == hash64(key, Sip13Secret(secret)) == sip13(key, secret)
    assert hash64(key, Sip24Secret(secret)) == sip24(key, secret)


def test_older_siphash_paper_vectors():
    # Aumasson and Bernstein, appendix A: key 00..0f, message 00..0e; and the first of the authors' vectors.h.
    assert hash64(bytes(range(15)), OLD_SECRET) == 0xA129CA6149BE45E5
    vectors = ["310e0edd47db6f72", "fd67dc93c539f874", "5a4fa9d909806c0d", "2d7efbd796666785", "b7877127e09427cf"]
    for n, vector in enumerate(vectors):
        assert struct.pack("<Q", hash64(bytes(range(n)), OLD_SECRET)).hex() == vector


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="this Python hashes bytes by another function")
def test_siphash_equals_the_hash_of_bytes_in_python():
    # PYTHONHASHSEED gives the secret by the generator of Python/bootstrap_hash.c (lcg_urandom).
    state, secret = 12345, bytearray()
    for _ in range(16):
        state = (state * 214013 + 2531011) & 0xFFFFFFFF
        secret.append(state >> 16 & 0xFF)
    code = "print(*(hash(bytes(range(n))) for n in range(1, 200)))"
    out = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": "12345"}, capture_output=True, check=True
    )
    found = [int(word) & MASK for word in out.stdout.split()]
    assert found == [hash64(bytes(range(n)), bytes(secret)) for n in range(1, 200)]


def test_secret_is_decided_once():
    assert decided_secret(None) is None
    for kind in (Sip13Secret, Sip24Secret):
        assert type(decided_secret(kind(SECRET))) is type(decided_secret(kind(SECRET), older=True)) is kind
    assert type(decided_secret(bytearray(SECRET))) is Sip13Secret
    assert type(decided_secret(SECRET, older=True)) is Sip24Secret
    with pytest.raises(ValueError, match="exactly 16 bytes"):
        decided_secret(b"short")


def test_xxh3_pinned_values():
    assert hash64(b"") == 0x2D06800538D394C2
    assert hash64(b"hello") == 0x9555E8555C62DCFD
    assert hash64("https://example.org/") == xxhash.xxh3_64_intdigest(b"https://example.org/")
    # One of every code path: 1-3, 4-8, 9-16, 17-128, 129-240, and longer, of the bytes 0, 1, 2, ...
    pinned = {
        3: 0x5F4299FC161C9CBB,
        8: 0x3A1C2D7C85AF88F8,
        16: 0x8355E3A6F61770DB,
        128: 0x85C6174C7FF4C46B,
        240: 0x375A384D957FE865,
        241: 0x02E8CD95421C6D02,
        1025: 0x78C86E91EE939852,
    }
    assert {n: hash64(bytes(i & 255 for i in range(n))) for n in pinned} == pinned


@pytest.mark.parametrize("secret", [None, SECRET, OLD_SECRET])
@pytest.mark.parametrize("lanes", [None, 0, 1, 2])
def test_batch_every_implementation_equals_one_key(secret, lanes):
    if lanes is not None and lanes > best_lanes():
        pytest.skip("this processor lacks it")
    # Lengths of lanes side by side differ a lot, and batches end at every remainder of eight.
    rng = random.Random(2)
    lengths = LENGTHS[:-1].copy()
    rng.shuffle(lengths)
    keys = random_keys(lengths, seed=3)
    expected = np.array([hash64(key, secret) for key in keys], dtype=np.uint64)
    assert (hash64_many(keys, secret, lanes) == expected).all()
    for n in range(40):
        assert (hash64_many(keys[:n], secret, lanes) == expected[:n]).all()
        same = [b"x" * n] * 17
        assert set(hash64_many(same, secret, lanes).tolist()) == {hash64(same[0], secret)}
    ordinary = [b"https://example.org/%d" % i for i in range(5000)]
    assert hash64_many(ordinary, secret, lanes).tolist() == [hash64(key, secret) for key in ordinary]


def test_batch_unknown_lanes_refused():
    with pytest.raises(ValueError, match="lanes must be between 0 and"):
        hash64_many([b"a"], SECRET, 3)
    with pytest.raises(ValueError, match="lanes"):
        hash64_many([b"a"], SECRET, -1)


def test_filter_id_is_the_splitmix_finaliser():
    for filter_id in (1, 2, 77, MASK):
        h = (hash64(b"key") + filter_id * 0x9E3779B97F4A7C15) & MASK
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
        assert hash64(b"key", filter_id=filter_id) == h ^ (h >> 31)
    assert hash64(b"key", filter_id=0) == hash64(b"key")


def test_keys_of_every_type_hash_as_their_bytes():
    raw = "clé \0 ключ".encode()
    assert {hash64(raw), hash64(raw.decode()), hash64(bytearray(raw)), hash64(memoryview(raw))} == {hash64(raw)}
    assert hash64(np.frombuffer(raw, dtype=np.uint8)) == hash64(raw)


@pytest.mark.parametrize("secret", [b"", b"short", bytes(15), bytes(17), bytes(32)])
def test_secret_of_another_length_refused(secret):
    with pytest.raises(ValueError, match="exactly 16 bytes"):
        hash64(b"a", secret)


@pytest.mark.parametrize("secret", ["0123456789abcdef", 7, [0] * 16, 1.5])
def test_secret_of_another_type_refused(secret):
    with pytest.raises(TypeError, match="16 bytes or None"):
        hash64(b"a", secret)


def test_checksum_chunks_are_the_sums_of_the_chunks():
    data = random.Random(4).randbytes(1000)
    for size in (1, 7, 100, 999, 1000, 1001):
        chunks = [data[i : i + size] for i in range(0, 1000, size)]
        assert checksum64_chunks(data, size) == b"".join(struct.pack("<Q", checksum64(c)) for c in chunks)
    assert checksum64_chunks(b"", 10) == b""
    assert checksum64_chunks(memoryview(data), 64) == checksum64_chunks(bytearray(data), 64)
    with pytest.raises(ValueError, match="chunk_bytes"):
        checksum64_chunks(data, 0)
