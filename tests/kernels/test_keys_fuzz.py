"""Batches made at random, honest and hostile: an error or the right keys, whatever they say about themselves.

Each case is a maker of a batch and what an independent reading in Python finds in it: the keys, or None where there
must be an error.  Arrow structs are made by hand (``arrow_structs``), with buffers of exactly their size.
"""

import array
import ctypes
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from support.arrow_structs import ALIVE, MadeArray, MadeStream, Offer, StreamOffer

import dlbf
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.keys import read_keys

FORMATS = (b"u", b"z", b"U", b"Z", b"vu", b"vz", b"w:0", b"w:1", b"w:7", b"w:16")
BAD_FORMATS = (b"", b"w:", b"w:-4", b"w: 4", b"w:1_0", b"w:99999999999999999999", b"i", b"+s", b"v", b"n", b"\xff\xfe")
WRONG = (-(2**63), -(2**31), -100, -2, -1, 2**40, 2**62, 2**63 - 1)


# --- the independent reading


def arrow_keys(format: bytes, made: MadeArray) -> list[bytes] | None:
    """The keys of an Arrow array by the words of the specification, None if it is malformed or has nulls."""
    if format not in FORMATS:
        return None
    fixed, views = format[:1] == b"w", format[:1] == b"v"
    n_buffers = len(made.buffers) if made.n_buffers is None else made.n_buffers
    if made.length < 0 or made.offset < 0 or not -1 <= made.null_count <= made.length:
        return None
    if n_buffers < 3 if views else n_buffers != (2 if fixed else 3):
        return None
    if made.length > 2**40 or made.offset > 2**40:
        return None
    if made.length == 0:
        return []
    if not made.has_buffers:
        return None
    validity, places, *rest = made.buffers
    if made.null_count > 0 and validity is None:
        return None
    width = int(format[2:]) if fixed else 0
    if places is None and not (fixed and width == 0):
        return None
    if views and len(rest) > 1 and rest[-1] is None:
        return None
    keys = []
    for at in range(made.offset, made.offset + made.length):
        if made.null_count and validity is not None and not validity[at // 8] >> at % 8 & 1:
            return None
        if fixed:
            keys.append(places[at * width : (at + 1) * width] if width else b"")
        elif views:
            (n,) = struct.unpack_from("=i", places, 16 * at)
            if 0 <= n <= 12:
                keys.append(places[16 * at + 4 : 16 * at + 4 + n])
                continue
            number, begin = struct.unpack_from("=ii", places, 16 * at + 8)
            if n < 0 or begin < 0 or not 0 <= number < len(rest) - 1 or rest[number] is None:
                return None
            if begin + n > struct.unpack_from("=q", rest[-1], 8 * number)[0]:
                return None
            keys.append(rest[number][begin : begin + n])
        else:
            begin, end = struct.unpack_from(
                "=2i" if format in b"uz" else "=2q", places, at * (4 if format in b"uz" else 8)
            )
            if begin < 0 or end < begin or (rest[0] is None and end > begin):
                return None
            keys.append(rest[0][begin:end] if rest[0] is not None else b"")
    return keys


def object_key(thing) -> bytes | None:
    """One key, None if it is none."""
    if isinstance(thing, str):
        try:
            return thing.encode()
        except UnicodeEncodeError:
            return None
    try:
        view = memoryview(thing)
    except (TypeError, ValueError):
        return None
    return view.tobytes() if view.c_contiguous and view.ndim else None


def object_keys(things) -> list[bytes] | None:
    keys = [object_key(thing) for thing in things]
    return None if None in keys else keys


# --- random batches


def some_keys(rng: random.Random, n: int) -> list[bytes]:
    return [rng.randbytes(rng.choice((0, 1, 3, 11, 12, 13, 14, 40))) for _ in range(n)]


def some_number(rng: random.Random) -> int:
    return (
        rng.choice((0, 1, 1, 2, 3, 7, 8, 9, 30, 30, 200))
        if rng.random() < 0.98
        else rng.choice((2047, 2048, 2049, 5000))
    )


def honest_array(rng: random.Random, format: bytes) -> MadeArray:
    offset, length, after = rng.choice((0, 0, 0, 1, 5, 9)), some_number(rng), rng.choice((0, 0, 3))
    n = offset + length + after
    nulls = rng.random() < 0.1
    validity = None
    if nulls or rng.random() < 0.3:
        bits = [not (nulls and rng.random() < 0.05) for _ in range(n)]
        validity = bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, n, 8))
    null_count = sum(not bit for bit in bits[offset : offset + length]) if validity is not None else 0
    keys = some_keys(rng, n)
    if format.startswith(b"w"):
        width = int(format[2:])
        buffers = [rng.randbytes(width * n)]
    elif format.startswith(b"v"):
        values = [bytearray() for _ in range(rng.choice((0, 1, 1, 2, 4)))]
        views = bytearray()
        for key in keys:
            if not values:
                key = key[:12]
            views += struct.pack("=i", len(key))
            if len(key) <= 12:
                views += key.ljust(12, rng.choice((b"\0", b"x")))
            else:
                number = rng.randrange(len(values))
                views += struct.pack("=4sii", key[:4], number, len(values[number]))
                values[number] += key
        buffers = [bytes(views), *map(bytes, values), struct.pack(f"={len(values)}q", *map(len, values))]
    else:
        places = [rng.choice((0, 0, 3))]
        for key in keys:
            places.append(places[-1] + len(key))
        code = "i" if format in b"uz" else "q"
        values = b"x" * places[0] + b"".join(keys)
        buffers = [struct.pack(f"={n + 1}{code}", *places), values if values or rng.random() < 0.5 else None]
    return MadeArray(length, [validity, *buffers], offset, rng.choice((null_count, -1)), misaligned=rng.random() < 0.2)


def spoil_array(rng: random.Random, format: bytes, made: MadeArray) -> None:
    """Change what a reader can find out to be wrong, or what does no harm; never the length of a buffer of places."""
    what = rng.randrange(8)
    if what == 0:
        made.length = rng.choice([n for n in WRONG if n < 0 or n > 2**50])
    elif what == 1:
        made.offset = rng.choice([n for n in WRONG if n < 0 or n > 2**50])
    elif what == 2:
        made.null_count = rng.choice((-2, made.length + 1, *WRONG))
    elif what == 3:
        made.n_buffers = rng.choice((-1, 0, 1, *(() if format.startswith(b"v") else (4, 100))))
    elif what == 4:
        # NULL offsets before values that are none would be read: only what is needed for this length may go.
        made.buffers[rng.randrange(len(made.buffers))] = None
    elif what == 5:
        made.has_buffers = False
    elif format.startswith(b"w") or made.buffers[1] is None:
        made.length = -1
    elif format.startswith(b"v"):
        places = bytearray(made.buffers[1])
        if places:
            at = 16 * rng.randrange(len(places) // 16)
            field, value = rng.choice((0, 8, 12)), rng.choice((-(2**31), -1, 0, 1, 2, 13, 100, 2**31 - 1))
            struct.pack_into("=i", places, at + field, value)
            made.buffers[1] = bytes(places)
    else:
        width, code = (4, "=i") if format in b"uz" else (8, "=q")
        places = bytearray(made.buffers[1])
        most = len(made.buffers[2]) if made.buffers[2] is not None else 0
        at = width * rng.randrange(len(places) // width)
        struct.pack_into(code, places, at, rng.choice((-(2 ** (8 * width - 1)), -1, 0, most, rng.randint(0, most))))
        made.buffers[1] = bytes(places)


def arrow_array(rng: random.Random):
    format = rng.choice(FORMATS) if rng.random() < 0.95 else rng.choice(BAD_FORMATS)
    made = honest_array(rng, format if format in FORMATS else b"u")
    if rng.random() < 0.5:
        spoil_array(rng, format if format in FORMATS else b"u", made)
    taken = rng.random() < 0.05
    names = rng.choice(((b"arrow_schema", b"used_arrow_array"), (b"arrow_array", b"arrow_schema"), (None, None)))
    if rng.random() < 0.95:
        names = (b"arrow_schema", b"arrow_array")
    refused = taken or names != (b"arrow_schema", b"arrow_array")
    return lambda: Offer(format, made, taken, names), None if refused else arrow_keys(format, made)


def arrow_stream(rng: random.Random):
    format = rng.choice(FORMATS) if rng.random() < 0.95 else rng.choice((None, *BAD_FORMATS))
    arrays = [honest_array(rng, format if format in FORMATS else b"u") for _ in range(rng.choice((0, 1, 1, 2, 5)))]
    if arrays and rng.random() < 0.3:
        spoil_array(rng, format if format in FORMATS else b"u", rng.choice(arrays))
    taken, fails, schema_fails = (rng.random() < 0.05 for _ in range(3))
    says_why = rng.random() < 0.5
    name = b"arrow_array_stream" if rng.random() < 0.97 else rng.choice((None, b"used_arrow_array_stream"))
    read = [arrow_keys(format, made) for made in arrays]
    expected = [key for keys in read for key in keys] if None not in read and format in FORMATS else None
    if taken or fails or schema_fails or name != b"arrow_array_stream":
        expected = None
    return lambda: StreamOffer(MadeStream(format, arrays, fails, schema_fails, says_why), taken, name), expected


class Says:
    """Offers whatever it is told to."""

    def __init__(self, name: str, answer):
        setattr(type(self), name, lambda self: answer)

    def drop(self) -> None:
        pass


def arrow_nonsense(rng: random.Random):
    answer = rng.choice(((), (1,), (None, None), (1, 2, 3), None, 5, b"capsule", [], "no", object()))
    name = rng.choice(("__arrow_c_array__", "__arrow_c_stream__"))
    return lambda: type("Nonsense", (Says,), {})(name, answer), None


def arrow_real(rng: random.Random):
    keys = some_keys(rng, some_number(rng))
    kind = rng.choice((pa.binary(), pa.large_binary(), pa.binary_view()))
    cut = rng.randint(0, len(keys))
    made = pa.array([b"before", *keys, None], kind).slice(1, len(keys))
    if rng.random() < 0.5:
        made = pa.chunked_array([made.slice(0, cut), made.slice(cut)], kind)
    return lambda: made, keys


class Liar(np.ndarray):
    """An array that says anything about itself."""

    ndim = property(lambda self: 1)
    shape = property(lambda self: (10**6,))
    itemsize = property(lambda self: 10**6)
    strides = property(lambda self: (10**6,))

    def __len__(self):
        return 10**6

    def __iter__(self):
        return iter([b"a lie"])


def numpy_batch(rng: random.Random):
    keys = some_keys(rng, some_number(rng))
    kind = rng.randrange(6)
    if kind == 0:
        made = np.array([key.hex() for key in keys], dtype=np.str_)
    elif kind == 1:
        made = np.array([some_object(rng) for _ in keys] + [None], dtype=object)[:-1]
    elif kind == 2:
        made = np.frombuffer(rng.randbytes(8 * len(keys)), dtype=rng.choice(("i8", "f8", "V8", "M8[s]", "c8")))
    else:
        width = rng.choice((1, 2, 7, 8, 9, 16, 41))
        made = np.array(keys, dtype=f"S{width}")
        if rng.random() < 0.3:
            made = np.frombuffer(b"x" + made.tobytes(), dtype=made.dtype, offset=1)
    if rng.random() < 0.1:
        made = made.reshape(rng.choice(((1, -1), (-1, 1), (-1, 1, 1)))) if made.size else made.reshape(0, 3)
    elif rng.random() < 0.5:
        made = made[:: rng.choice((-3, -1, 2, 3))]
    honest = made
    masked = False
    if rng.random() < 0.2:
        made = made.view(Liar)
    elif rng.random() < 0.2 and kind != 1:
        mask = np.array([rng.random() < 0.05 for _ in range(made.size)], dtype=bool).reshape(made.shape)
        masked = mask.any()
        made = np.ma.MaskedArray(made, mask=mask)
    if honest.ndim != 1 or honest.dtype.kind not in "SUO" or masked:
        return lambda: made, None
    return lambda: made, object_keys(honest.tolist())


def some_object(rng: random.Random):
    key = rng.randbytes(rng.choice((0, 1, 8, 24)))
    kind = rng.randrange(40)
    if kind == 0:
        return rng.choice(
            (None, 5, 1.5, float("nan"), "\ud800", ["a"], object(), np.int64(4), np.zeros((), "u1"), True)
        )
    if kind == 1:
        return memoryview(key + b"xx")[::2]
    if kind == 2:
        return np.zeros((4, 6), dtype="u1")[:, 1:3]
    others = (
        bytearray(key),
        memoryview(key),
        key.hex(),
        array.array("B", key),
        np.frombuffer(key, "u1"),
        memoryview(key)[1:],
        (ctypes.c_char * len(key))(*key),
        np.bytes_(key),
        memoryview(key * 8).cast("q"),
        np.zeros((2, 3), dtype="i2"),
    )
    return others[kind % 10] if kind < 25 else key


def objects(rng: random.Random):
    things = [some_object(rng) for _ in range(rng.choice((0, 1, 2, 5, 20, 60)))]
    if rng.random() < 0.6:
        things = [thing for thing in things if object_key(thing) is not None]
    kind = rng.choice((list, tuple, iter, lambda things: (thing for thing in things)))
    return lambda: kind(things), object_keys(things)


MAKERS = (
    arrow_array,
    arrow_array,
    arrow_array,
    arrow_stream,
    arrow_stream,
    arrow_nonsense,
    arrow_real,
    numpy_batch,
    objects,
)


def check_batches(first: int, n: int) -> tuple[int, int]:
    """How many of the batches with these seeds were right and how many were refused."""
    right = refused = 0
    bloom = dlbf.BloomFilter(1000)
    for seed in range(first, first + n):
        rng = random.Random(seed)
        make, expected = rng.choice(MAKERS)(rng)
        for read in (read_keys, bloom.contains_many if seed % 2 else hash64_many):
            batch = make()
            try:
                found = read(batch)
            except (TypeError, ValueError) as error:
                found = error
            if expected is None:
                assert isinstance(found, Exception), f"batch {seed}: {found} where an error was due"
            elif read is read_keys:
                assert not isinstance(found, Exception), f"batch {seed}: {found!r}"
                assert found == expected, f"batch {seed}"
            else:
                answers = bloom.contains_many(expected) if seed % 2 else hash64_many(expected)
                assert len(found) == len(expected), f"batch {seed}"
                assert (found == answers).all(), f"batch {seed}"
            if isinstance(batch, Offer):
                del found  # an error keeps the reader
                batch.drop()
                assert not ALIVE, f"batch {seed}: {len(ALIVE)} structs were not released"
        right += expected is not None
        refused += expected is None
    return right, refused


def test_batches_of_any_making_are_read_right_or_refused():
    right, refused = check_batches(0, 400)
    assert right > 100
    assert refused > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 51_000, 5000))
def test_many_batches_of_any_making_are_read_right_or_refused(first):
    check_batches(first, 5000)
