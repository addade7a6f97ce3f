"""The hash of a key: long inputs, batches and the Python entry points.

The functions for short keys are inline in ``hashing.pxd``; see there for what is promised.
"""

from libc.string cimport memset

from dlbf.kernels.keys cimport CHUNK_KEYS, KeyReader, KeyRef, key_close, key_open, open_keys
from dlbf.kernels.types cimport load64, mulfold64, prefetch, store64, uint8_t, uint64_t

import numpy as np

cdef extern from "siplanes.h" nogil:
    int dlbf_sip_lanes() noexcept
    void sip8 "dlbf_sip8"(
        int lanes, bint is24, const uint64_t* state, const uint8_t** data, const size_t* n_bytes, uint64_t* out,
    ) noexcept
    void sip_two "dlbf_sip_two"(
        const uint64_t* state, const uint8_t** data, const size_t* n_bytes, uint64_t* out, int c, int d,
    ) noexcept

# How this processor hashes eight keys at once; 0: it cannot.
cdef int sip_lanes = dlbf_sip_lanes()

cdef enum:
    STRIPE_BYTES = 64
    STRIPES_PER_BLOCK = 16
    BLOCK_BYTES = 1024
    SECRET_BYTES = 192


cdef inline void xxh3_stripe(uint64_t* acc, const uint8_t* data, const uint8_t* secret) noexcept nogil:
    cdef uint64_t word, mixed
    cdef int i
    for i in range(8):
        word = load64(data + 8 * i)
        mixed = word ^ load64(secret + 8 * i)
        acc[i ^ 1] += word
        acc[i] += (mixed & <uint64_t>0xFFFFFFFF) * (mixed >> 32)


cdef uint64_t xxh3_mid(const uint8_t* data, size_t n) noexcept nogil:
    """129 to 240 bytes."""
    cdef uint64_t acc = n * <uint64_t>0x9E3779B185EBCA87
    cdef int i
    for i in range(8):
        acc += xxh3_mix16(data + 16 * i, 16 * i)
    acc = xxh3_avalanche(acc)
    for i in range(8, <int>(n // 16)):
        acc += xxh3_mix16(data + 16 * i, 16 * (i - 8) + 3)
    return xxh3_avalanche(acc + xxh3_mix16(data + n - 16, 136 - 17))


cdef uint64_t xxh3_long(const uint8_t* data, size_t n) noexcept nogil:
    """More than 128 bytes."""
    cdef uint64_t acc[8]
    cdef uint64_t h
    cdef size_t block, stripe, n_blocks, n_stripes
    cdef int i
    if n <= 240:
        return xxh3_mid(data, n)
    acc[0] = <uint64_t>0xC2B2AE3D
    acc[1] = <uint64_t>0x9E3779B185EBCA87
    acc[2] = <uint64_t>0xC2B2AE3D27D4EB4F
    acc[3] = <uint64_t>0x165667B19E3779F9
    acc[4] = <uint64_t>0x85EBCA77C2B2AE63
    acc[5] = <uint64_t>0x85EBCA77
    acc[6] = <uint64_t>0x27D4EB2F165667C5
    acc[7] = <uint64_t>0x9E3779B1
    n_blocks = (n - 1) // BLOCK_BYTES
    for block in range(n_blocks):
        for stripe in range(<size_t>STRIPES_PER_BLOCK):
            xxh3_stripe(acc, data + block * BLOCK_BYTES + stripe * STRIPE_BYTES, XXH3_SECRET + 8 * stripe)
        for i in range(8):
            h = acc[i]
            h = h ^ (h >> 47) ^ load64(XXH3_SECRET + SECRET_BYTES - 64 + 8 * i)
            acc[i] = h * <uint64_t>0x9E3779B1
    n_stripes = (n - 1 - n_blocks * BLOCK_BYTES) // STRIPE_BYTES
    for stripe in range(n_stripes):
        xxh3_stripe(acc, data + n_blocks * BLOCK_BYTES + stripe * STRIPE_BYTES, XXH3_SECRET + 8 * stripe)
    xxh3_stripe(acc, data + n - STRIPE_BYTES, XXH3_SECRET + SECRET_BYTES - 64 - 7)
    h = n * <uint64_t>0x9E3779B185EBCA87
    for i in range(4):
        h += mulfold64(
            acc[2 * i] ^ load64(XXH3_SECRET + 11 + 16 * i), acc[2 * i + 1] ^ load64(XXH3_SECRET + 11 + 16 * i + 8)
        )
    return xxh3_avalanche(h)


cdef void hash_chunk(
    const HashKey* key, const uint8_t** data, const size_t* n_bytes, Py_ssize_t n, uint64_t* out,
) noexcept nogil:
    cdef Py_ssize_t i, j
    if key.kind == HASH_XXH3:
        for i in range(n):
            if i + 8 < n:
                prefetch(data[i + 8])
                prefetch(data[i + 8] + n_bytes[i + 8])
            out[i] = xxh3(data[i], n_bytes[i])
        return
    i = 0
    if sip_lanes:
        while i + 8 <= n:
            for j in range(i + 8, min(i + 16, n)):
                prefetch(data[j])
                prefetch(data[j] + n_bytes[j])
            sip8(sip_lanes, key.kind == HASH_SIP24, key.sip, data + i, n_bytes + i, out + i)
            i += 8
    for i in range(i, n - 1, 2):
        if key.kind == HASH_SIP13:
            sip_two(key.sip, data + i, n_bytes + i, out + i, 1, 3)
        else:
            sip_two(key.sip, data + i, n_bytes + i, out + i, 2, 4)
    if n & 1:
        out[n - 1] = hash_key(key, data[n - 1], n_bytes[n - 1])


class Sip13Secret(bytes):
    """The secret of something that is hashed by SipHash-1-3."""


class Sip24Secret(bytes):
    """The secret of something that is hashed by SipHash-2-4, as dlbf 0.1 made it."""


cdef HashKey hash_key_from(object secret) except *:
    """The hash of a filter made with ``secret`` (None, or 16 bytes)."""
    cdef HashKey key
    cdef const uint8_t* p
    memset(&key, 0, sizeof(key))
    if secret is None:
        key.kind = HASH_XXH3
        return key
    if not isinstance(secret, (bytes, bytearray, memoryview)):
        raise TypeError(f"secret must be 16 bytes or None, not {type(secret).__name__}")
    raw = bytes(secret)
    if len(raw) != 16:
        raise ValueError(
            f"secret must be exactly 16 bytes, found {len(raw)}; make one with secrets.token_bytes(16)"
        )
    p = <const uint8_t*><char*>raw
    key.kind = HASH_SIP24 if isinstance(secret, Sip24Secret) else HASH_SIP13
    key.sip[0] = load64(p) ^ <uint64_t>0x736F6D6570736575
    key.sip[1] = load64(p + 8) ^ <uint64_t>0x646F72616E646F6D
    key.sip[2] = load64(p) ^ <uint64_t>0x6C7967656E657261
    key.sip[3] = load64(p + 8) ^ <uint64_t>0x7465646279746573
    return key


def decided_secret(secret, older=False):
    """``secret`` with the hash that it is for; None stays None.

    One that does not say so is for SipHash-1-3, or for SipHash-2-4 if it is to be the ``older`` one.
    """
    if secret is None or isinstance(secret, (Sip13Secret, Sip24Secret)):
        return secret
    hash_key_from(secret)  # is it a secret?
    return (Sip24Secret if older else Sip13Secret)(secret)


def hash64(key, secret=None, unsigned long long filter_id=0):
    """The 64-bit hash dlbf uses for ``key``.

    Parameters
    ----------
    key : bytes, str or buffer
        ``str`` is hashed as UTF-8.
    secret : bytes, optional
        16 bytes select SipHash-1-3 under that secret, a ``Sip24Secret`` SipHash-2-4; None selects XXH3-64.
    filter_id : int, optional
        Which filter of a composite is asking; 0 is the plain hash.

    Examples
    --------
    >>> hex(hash64(b"hello"))
    '0x9555e8555c62dcfd'
    """
    cdef HashKey hk = hash_key_from(secret)
    cdef KeyRef ref
    cdef uint64_t h
    key_open(key, &ref)
    h = hash_key(&hk, ref.data, ref.n_bytes)
    key_close(&ref)
    return hash_for_filter(h, filter_id)


def hash64_many(keys, secret=None, lanes=None):
    """:func:`hash64` of every key of a batch, by the code that filters use for batches.

    Parameters
    ----------
    keys : batch of keys
    secret : bytes, optional
    lanes : {None, 0, 1, 2}
        For tests: which of the equivalent keyed implementations runs (None: the fastest this processor has; 0: scalar;
        1: AVX2; 2: AVX-512).  One that the processor lacks is refused.

    Returns
    -------
    numpy.ndarray of uint64
    """
    global sip_lanes
    cdef HashKey hk = hash_key_from(secret)
    cdef KeyReader reader = open_keys(keys)
    cdef uint64_t[::1] room
    cdef Py_ssize_t n = 0
    cdef int best = dlbf_sip_lanes()
    if lanes is not None and not 0 <= lanes <= best:
        raise ValueError(f"lanes must be between 0 and {best} on this processor, found {lanes}")
    out = np.empty(CHUNK_KEYS, dtype=np.uint64)
    sip_lanes = best if lanes is None else lanes
    try:
        while reader.next_batch():
            while reader.next_chunk():
                if n + reader.chunk.n > len(out):
                    # In place where the system can; an eighth more, so that keys from a generator cost 9 bytes each.
                    room = None
                    out.resize(n + max(n >> 3, reader.chunk.n, CHUNK_KEYS), refcheck=False)
                room = out
                with nogil:
                    hash_chunk(&hk, reader.chunk.data, reader.chunk.n_bytes, reader.chunk.n, &room[n])
                n += reader.chunk.n
    finally:
        sip_lanes = best
    room = None
    out.resize(n, refcheck=False)
    return out


def checksum64(data):
    """XXH3-64 of a bytes-like object: the checksum of the file format.

    Examples
    --------
    >>> hex(checksum64(b""))
    '0x2d06800538d394c2'
    """
    cdef const uint8_t[::1] view
    cdef const uint8_t* p = b""
    cdef size_t n
    cdef uint64_t h
    view = memoryview(data).cast("B") if len(data) else memoryview(b"\0")
    n = len(data)
    if n:
        p = &view[0]
        n = view.shape[0]
    with nogil:
        h = xxh3(p, n)
    return h


def checksum64_chunks(data, Py_ssize_t chunk_bytes):
    """The little-endian XXH3-64 sums of consecutive chunks, as bytes; the last chunk may be short."""
    cdef const uint8_t[::1] view = memoryview(data).cast("B") if len(data) else memoryview(b"\0")
    cdef Py_ssize_t n = len(data) and view.shape[0]
    cdef Py_ssize_t n_chunks, i
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be positive, found {chunk_bytes}")
    n_chunks = (n + chunk_bytes - 1) // chunk_bytes
    out = bytearray(8 * n_chunks)
    cdef uint8_t[::1] sums = out if n_chunks else bytearray(8)
    with nogil:
        for i in range(n_chunks):
            store64(&sums[8 * i], xxh3(&view[i * chunk_bytes], min(chunk_bytes, n - i * chunk_bytes)))
    return bytes(out)
