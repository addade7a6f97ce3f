"""Keys and batches of keys: everything that is accepted, and what is said about the rest."""

import array
import collections
import struct
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arrow_structs import ALIVE, MadeArray, MadeStream, Offer, StreamOffer
from support.samples import SECRET, url_keys

import dlbf
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.keys import read_key, read_keys
from dlbf.storage.keys import as_key

# More than two chunks, and not a multiple of one.
MANY = url_keys(5003, seed=11)
TEXT = [key.decode() for key in MANY]


def loaded(keys):
    f = dlbf.BloomFilter(10_000, 0.001)
    f.update(keys)
    return f


BATCHES = {
    "list": lambda: list(MANY),
    "tuple": lambda: tuple(MANY),
    "generator": lambda: (key for key in MANY),
    "iterator": lambda: iter(MANY),
    "dict": lambda: dict.fromkeys(MANY),
    "deque": lambda: collections.deque(MANY),
    "map": lambda: map(bytes, MANY),
    "str list": lambda: list(TEXT),
    "str tuple": lambda: tuple(TEXT),
    "bytearrays": lambda: [bytearray(key) for key in MANY],
    "memoryviews": lambda: [memoryview(key) for key in MANY],
    "mixed": lambda: [(key, key.decode(), bytearray(key), memoryview(key))[i % 4] for i, key in enumerate(MANY)],
    "numpy S": lambda: np.array(MANY),
    "numpy S strided": lambda: np.repeat(np.array(MANY), 3)[::3],
    "numpy S reversed": lambda: np.array(MANY[::-1])[::-1],
    "numpy S read-only": lambda: np.frombuffer(np.array(MANY).tobytes(), dtype=np.array(MANY).dtype),
    "numpy S field": lambda: np.array([(1, key) for key in MANY], dtype=[("n", "i1"), ("key", "S80")])["key"],
    "numpy S unaligned": lambda: np.frombuffer(b"x" + np.array(MANY).tobytes(), dtype=np.array(MANY).dtype, offset=1),
    "numpy U": lambda: np.array(TEXT),
    "numpy object": lambda: np.array(MANY, dtype=object),
    "numpy object str": lambda: np.array(TEXT, dtype=object),
    "numpy T": lambda: np.array(TEXT, dtype=np.dtypes.StringDType()),
    "arrow string": lambda: pa.array(TEXT, pa.string()),
    "arrow large_string": lambda: pa.array(TEXT, pa.large_string()),
    "arrow binary": lambda: pa.array(MANY, pa.binary()),
    "arrow large_binary": lambda: pa.array(MANY, pa.large_binary()),
    "arrow string_view": lambda: pa.array(TEXT, pa.string_view()),
    "arrow binary_view": lambda: pa.array(MANY, pa.binary_view()),
    "arrow sliced": lambda: pa.array([b"before"] * 13 + MANY + [b"after"] * 9, pa.binary()).slice(13, len(MANY)),
    "arrow sliced view": lambda: pa.array([b"x"] * 13 + MANY + [b"y"] * 9, pa.binary_view()).slice(13, len(MANY)),
    "arrow chunked": lambda: pa.chunked_array([MANY[:10], [], MANY[10:3000], MANY[3000:]], pa.binary()),
    "arrow chunked sliced": lambda: pa.chunked_array([[b"x", *MANY[:10]], MANY[10:]], pa.large_binary()).slice(1),
    "arrow scalar-free nulls cut off": lambda: pa.array([None, *MANY, None], pa.binary()).slice(1, len(MANY)),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batch_of_every_kind_is_read_whole_and_in_order(kind):
    assert read_keys(BATCHES[kind]()) == MANY
    f = loaded(BATCHES[kind]())
    assert len(f) == len(MANY)
    assert f == loaded(MANY)
    answers = f.contains_many(BATCHES[kind]())
    assert answers.dtype == np.bool_
    assert answers.shape == (len(MANY),)
    assert answers.all()
    counting = dlbf.CountingBloomFilter(10_000, 0.001)
    counting.update(MANY)
    assert counting.remove_many(BATCHES[kind]()).sum() >= 0.99 * len(MANY)
    assert len(counting) == 0
    assert counting.fill == 0


@pytest.mark.parametrize(
    "empty",
    [
        [],
        (),
        iter(()),
        np.array([], dtype="S5"),
        np.array([], dtype=object),
        pa.array([], pa.string()),
        pa.array([], pa.string_view()),
        pa.chunked_array([], pa.binary()),
        {},
        set(),
    ],
)
def test_batch_empty_gives_empty_answers(empty):
    f = dlbf.CuckooFilter(100)
    f.update(empty)
    assert len(f) == 0
    assert f.contains_many(empty).shape == (0,)
    assert f.remove_many(empty).dtype == np.bool_


@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 4095, 4096, 4097])
def test_batch_at_the_edges_of_a_chunk(n):
    keys = url_keys(n)
    for batch in (keys, tuple(keys), iter(keys), np.array(keys), pa.array(keys)):
        assert read_keys(batch) == keys


@given(st.lists(st.binary(max_size=40)))
def test_batch_of_any_bytes_equals_the_keys(keys):
    assert read_keys(keys) == keys
    assert read_keys(iter(keys)) == keys
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert read_keys(pa.array(keys, kind)) == keys


@given(st.lists(st.text(max_size=20)))
def test_batch_of_any_text_equals_its_utf8(keys):
    expected = [key.encode() for key in keys]
    assert read_keys(keys) == expected
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert read_keys(pa.array(keys, kind)) == expected


@given(st.lists(st.binary(min_size=7, max_size=7)))
def test_arrow_fixed_size_binary_keeps_every_byte(keys):
    assert read_keys(pa.array(keys, pa.binary(7))) == keys


def test_arrow_empty_strings_only_are_keys():
    f = dlbf.ExactSet()
    for kind in (pa.string(), pa.large_binary(), pa.string_view()):
        f.update(pa.array(["", ""], kind))
    assert len(f) == 1
    assert f.contains_many(pa.array([""])).all()
    assert b"" in f


def test_arrow_array_interface_without_stream_is_enough():
    class Only:
        def __init__(self, array):
            self.array = array

        def __arrow_c_array__(self, requested_schema=None):
            return self.array.__arrow_c_array__(requested_schema)

    assert read_keys(Only(pa.array(MANY).slice(5))) == MANY[5:]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_arrow_null_is_refused_by_number(kind):
    keys = pa.array(["a"] * 3000 + [None, "b"], kind)
    with pytest.raises(ValueError, match="key number 3000 is null; drop nulls first"):
        read_keys(keys)
    with pytest.raises(ValueError, match="key number 2990 is null"):
        read_keys(keys.slice(10))
    with pytest.raises(ValueError, match="key number 3001 is null"):
        read_keys(pa.chunked_array([pa.array(["z"], kind), keys]))


@pytest.mark.parametrize(
    "batch",
    [
        pa.array([1, 2]),
        pa.array([1.5]),
        pa.array([None]),
        pa.array([["a"]]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.table({"a": ["x"]}),
        pa.record_batch({"a": ["x"]}),
        pa.chunked_array([[1], [2]]),
    ],
)
def test_arrow_of_other_types_refused(batch):
    with pytest.raises(TypeError, match=r"expected an Arrow array of strings or binaries|dictionary"):
        read_keys(batch)


def test_arrow_stream_that_fails_raises():
    def batches():
        yield pa.record_batch([pa.array(["a"])], names=["k"])

    reader = pa.RecordBatchReader.from_batches(pa.schema([("k", pa.string())]), batches())
    with pytest.raises(TypeError, match="pass one string column"):
        read_keys(reader)


def test_numpy_bytes_drop_trailing_but_keep_embedded_nuls():
    keys = np.array([b"a\0b", b"a\0b\0", b"\0", b"", b"\0x"], dtype="S6")
    assert read_keys(keys) == [b"a\0b", b"a\0b", b"", b"", b"\0x"]
    assert read_keys(keys[::2]) == [b"a\0b", b"", b"\0x"]
    assert read_keys(np.array([b"", b""])) == [b"", b""]
    assert read_keys(np.zeros(3, dtype="S0")) == [b"", b"", b""]


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (b"bytes", TypeError, "found a single bytes"),
        ("text", TypeError, "found a single str"),
        (bytearray(b"x"), TypeError, "found a single bytearray"),
        (memoryview(b"x"), TypeError, "found a single memoryview"),
        (5, TypeError, "expected an iterable of keys, a numpy array or an Arrow array, found int"),
        (None, TypeError, "found NoneType"),
        (np.array([1.0, 2.0]), TypeError, "expected an array of dtype S, U, object or integers, found float64"),
        (np.array([[b"a"]]), ValueError, "found 2 dimensions"),
        (np.array(b"a"), ValueError, "found 0 dimensions"),
        (np.array([True]), TypeError, "found bool"),
        (np.array(["2020"], dtype="M8[Y]"), TypeError, "datetime64"),
        ([b"a", 7], TypeError, "key number 1: a key must be bytes, str or another buffer, not int"),
        ((b"a", None), TypeError, "key number 1: .* not NoneType"),
        ((key for key in [b"a"] * 3000 + [1.5]), TypeError, "key number 3000: .* not float"),
        (np.array([b"a", 3], dtype=object), TypeError, "key number 1: .* not int"),
        ([np.int64(4)], TypeError, "key number 0: .* scalar int64"),
        ([["a"]], TypeError, "key number 0: .* not list"),
    ],
)
def test_batch_of_something_else_refused(batch, error, message):
    f = dlbf.CountingBloomFilter(100)
    with pytest.raises(error, match=message):
        read_keys(batch)
    if not hasattr(batch, "__next__"):
        for method in (f.update, f.contains_many, f.remove_many):
            with pytest.raises(error, match=message):
                method(batch)
        assert b"z" not in f


@pytest.mark.parametrize("key", [1, 1.5, None, True, [b"a"], (b"a",), {b"a"}, object(), np.int64(3), ..., type])
def test_key_of_another_type_refused(key, make_filter):
    f = make_filter()
    with pytest.raises(TypeError, match="a key must be bytes, str or another buffer"):
        f.add(key)
    with pytest.raises(TypeError, match="a key must be"):
        key in f  # noqa: B015
    assert len(f) == 0


def test_key_that_is_not_contiguous_refused():
    f = dlbf.BloomFilter(10)
    for key in (memoryview(b"abcdef")[::2], np.zeros((4, 4), dtype=np.uint8)[:, 1]):
        with pytest.raises(TypeError, match="contiguous"):
            f.add(key)
        with pytest.raises(TypeError, match=r"key number 0: .*contiguous"):
            f.update([key])


def test_key_released_memoryview_refused():
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(ValueError, match="released"):
        dlbf.BloomFilter(10).add(view)


def test_key_buffers_of_any_item_type_are_their_bytes():
    f = dlbf.ExactSet()
    f.add(array.array("i", [1, 2]))
    assert array.array("i", [1, 2]).tobytes() in f
    f.add(np.arange(4, dtype=np.int16).reshape(2, 2))
    assert np.arange(4, dtype=np.int16).tobytes() in f
    assert np.bytes_(b"zz") not in f
    f.add(np.str_("zz"))
    assert np.bytes_(b"zz") in f


@pytest.mark.parametrize("batch", [lambda keys: keys, tuple, iter, lambda keys: np.array(keys, dtype=object)])
def test_surrogates_are_refused_and_nothing_is_added(batch):
    f = dlbf.CountingBloomFilter(100)
    with pytest.raises(UnicodeEncodeError, match="surrogates"):
        f.add("\ud800")
    with pytest.raises(UnicodeEncodeError, match="surrogates"):
        "\udfff" in f  # noqa: B015
    with pytest.raises(UnicodeEncodeError, match="surrogates"):
        f.update(batch(["a", "b\ud800"]))
    assert len(f) == 0


def test_batch_error_of_a_generator_passes_through():
    def keys():
        yield from MANY
        raise RuntimeError("mine")

    f = dlbf.BloomFilter(10_000)
    with pytest.raises(RuntimeError, match="mine"):
        f.update(keys())
    assert f.contains_many(MANY[:4096]).all()  # whole chunks before the error


def test_generator_that_uses_the_filter_itself(make_filter):
    f = make_filter()
    keys = [b"%d" % i for i in range(60)]

    def lazy():
        for key in keys:
            if b"inside" not in f:
                f.add(b"inside")
            list(f.contains_many([key]))
            yield key

    f.update(lazy())
    assert f.contains_many(key for key in [b"inside", *keys] if key in f).shape == (61,)


def test_generator_that_closes_the_filter_raises_value_error():
    for name in ("update", "contains_many", "remove_many"):
        f = dlbf.CuckooFilter(10_000)

        def keys(f=f):
            yield from MANY[:3000]
            f.close()
            yield b"x"

        with pytest.raises(ValueError, match="closed"):
            getattr(f, name)(keys())


def test_list_that_shrinks_during_a_batch_is_read_as_it_is():
    keys = [bytes(key) for key in url_keys(50_000, seed=3)]
    f = dlbf.BloomFilter(100_000)
    stop = threading.Event()

    def shrink():
        while keys and not stop.is_set():
            # Objects leave the list and, but for the batch's references, the world.
            del keys[-1]

    thread = threading.Thread(target=shrink)
    thread.start()
    try:
        for _ in range(200):
            f.update(keys)
            f.contains_many(keys)
    finally:
        stop.set()
        thread.join()


def test_list_that_is_emptied_while_its_keys_are_hashed_keeps_them_alive():
    # A thread empties the list in the middle of a batch: the keys must die by the batch's hand, not by the thread's.
    died_in = []

    class Key(bytes):
        def __del__(self):
            died_in.append(threading.get_ident())

    f = dlbf.BloomFilter(1000, secret=SECRET)
    overlaps = 0
    end = time.monotonic() + 60
    while overlaps < 5 and time.monotonic() < end:
        keys = [Key(b"%05d" % i * 4000) for i in range(500)]
        ready, inside = threading.Event(), threading.Event()
        seen = []

        def drop(keys=keys, ready=ready, inside=inside, seen=seen):
            ready.set()
            inside.wait()
            keys.clear()
            seen.append(inside.is_set())

        thread = threading.Thread(target=drop)
        thread.start()
        ready.wait()
        died_in.clear()
        inside.set()
        answers = f.contains_many(keys)
        inside.clear()
        thread.join()
        # All were read, and the list was empty before the batch came back: it was emptied in between.
        if len(answers) == 500 and seen == [True]:
            overlaps += 1
            assert died_in == [threading.get_ident()] * 500
    assert overlaps > 0


def test_list_that_is_replaced_during_a_batch_keeps_its_keys_alive():
    keys = [b"%d-key" % i for i in range(2048)]
    expected = hash64_many(list(keys))
    done = threading.Event()

    def replace():
        while not done.is_set():
            for i in range(len(keys)):
                keys[i] = b"%d-key" % i  # equal, but another object

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        f = dlbf.BloomFilter(5000, 1e-6)
        for _ in range(100):
            f.update(keys)
            assert f.contains_many(keys).all()
    finally:
        done.set()
        thread.join()
    assert (hash64_many(keys) == expected).all()
    assert len(f) == 100 * 2048
    assert f.approximate_count() < 2200


def test_bytearray_cannot_change_size_while_a_batch_holds_it():
    seen = []

    def keys():
        key = bytearray(b"abc")
        yield key
        try:
            key.append(1)
        except BufferError:
            seen.append("held")
        yield b"d"

    assert read_keys(keys()) == [b"abc", b"d"]
    assert seen == ["held"]


@pytest.mark.parametrize("read", [read_key, as_key, lambda key: key in dlbf.BloomFilter(10)])
def test_error_about_one_key_does_not_number_it(read):
    with pytest.raises(TypeError, match=r"^a key must be bytes, str or another buffer, not int"):
        read(5)
    with pytest.raises(TypeError, match=r"^a key must be a contiguous buffer"):
        read(memoryview(b"abcd")[::2])


@pytest.mark.parametrize("key", [b"a\0b", "\u00e4", bytearray(b"x"), memoryview(b"abc"), b"", ""])
def test_one_key_is_read_as_in_a_batch(key):
    assert read_key(key) == as_key(key) == read_keys([key])[0]


@pytest.mark.parametrize("n_first", [0, 1, 2047, 2048, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_first_key_that_is_not_bytes_may_be_anywhere(kind, n_first):
    keys = [b"%d" % i for i in range(n_first)] + ["text", bytearray(b"buffer")] + [b"last %d" % i for i in range(9000)]
    assert read_keys(kind(keys)) == [key.encode() if isinstance(key, str) else bytes(key) for key in keys]


def test_references_to_the_keys_of_a_list_are_given_back():
    keys = url_keys(20_000, seed=31)
    keys[9000] = "text"
    counts = [sys.getrefcount(key) for key in keys]
    f = dlbf.BloomFilter(30_000)
    f.update(keys)
    f.contains_many(keys)
    with pytest.raises(TypeError, match="key number 20000"):
        f.contains_many([*keys, 5])
    assert [sys.getrefcount(key) for key in keys] == counts


# --- batches that are not what they say


def test_arrow_array_taken_by_another_is_refused():
    offer = Offer(b"u", MadeArray(1, [None, struct.pack("=2i", 0, 3), b"abc"]))
    assert read_keys(offer) == [b"abc"]  # and now it is taken
    with pytest.raises(ValueError, match=r"taken by somebody else; ask for it again"):
        read_keys(offer)
    offer.drop()
    assert not ALIVE


def test_arrow_stream_read_before_is_refused():
    made = MadeArray(1, [None, struct.pack("=2i", 0, 3), b"abc"])
    offer = StreamOffer(MadeStream(b"z", [made, made]))
    assert read_keys(offer) == [b"abc", b"abc"]
    with pytest.raises(ValueError, match=r"read before, which can be done once; make it again"):
        read_keys(offer)
    assert not ALIVE


def test_arrow_stream_that_breaks_says_why_after_the_keys_before():
    offer = StreamOffer(MadeStream(b"z", [MadeArray(1, [None, struct.pack("=2i", 0, 3), b"abc"])], fails=True))
    f = dlbf.BloomFilter(10)
    with pytest.raises(ValueError, match="the Arrow stream failed: the stream is broken"):
        f.update(offer)
    assert b"abc" in f


@pytest.mark.parametrize("answer", [(), (1,), (None, None), (1, 2, 3), None, 5])
def test_arrow_capsules_that_are_none_are_refused(answer):
    class Says:
        def __arrow_c_array__(self):
            return answer

    with pytest.raises(TypeError, match=r"expected the two capsules|expected a PyCapsule 'arrow_schema'"):
        read_keys(Says())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()])
def test_arrow_descending_offsets_are_refused_by_number(kind):
    offsets = np.array([0, 4, 2, 6], dtype="i4" if kind == pa.string() else "i8")
    keys = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcdef")])
    f = dlbf.BloomFilter(100)
    with pytest.raises(ValueError, match=r"key number 1 of an Arrow array ends before it begins"):
        f.update(keys)
    assert b"abcd" in f
    assert read_keys(keys.slice(2)) == [b"cdef"]


def test_arrow_view_outside_of_its_buffer_is_refused():
    views = struct.pack("=i4sii", 20, b"abcd", 0, 0)
    keys = pa.Array.from_buffers(pa.binary_view(), 1, [None, pa.py_buffer(views), pa.py_buffer(b"x" * 19)])
    with pytest.raises(ValueError, match=r"key number 0 of an Arrow array lies outside of its buffer"):
        read_keys(keys)


def test_numpy_subclass_that_lies_is_read_by_its_buffer():
    class Liar(np.ndarray):
        ndim = property(lambda self: 1)

    assert read_keys(np.array([b"a", b"bc"]).view(Liar)) == [b"a", b"bc"]
    with pytest.raises(ValueError, match="found 2 dimensions"):
        read_keys(np.array([[b"a", b"b"], [b"c", b"d"]]).view(Liar))


@pytest.mark.parametrize("dtype", ["S5", "U5", object])
def test_numpy_masked_keys_are_refused_by_number(dtype):
    keys = np.ma.MaskedArray(np.array(["a", "b", "c"], dtype=dtype), mask=[False, True, True])
    with pytest.raises(ValueError, match=r"2 keys are masked, the first is number 1; .* keys.compressed\(\)"):
        read_keys(keys)
    assert read_keys(keys.compressed()) == [b"a"]
    assert read_keys(np.ma.MaskedArray(["a", "b"], mask=False)) == [b"a", b"b"]


def test_null_objects_say_to_drop_them():
    for null in (None, float("nan")):
        with pytest.raises(TypeError, match=r"key number 1: .*; drop nulls first, .*dropna\(\)"):
            read_keys(["a", null])


@pytest.mark.parametrize("name", ["NA", "NaT"])
def test_null_of_pandas_says_to_drop_it(name):
    pd = pytest.importorskip("pandas")
    null = getattr(pd, name)
    with pytest.raises(TypeError, match=r"key number 1: .*; drop nulls first, .*dropna\(\)"):
        read_keys(["a", null])
    with pytest.raises((TypeError, ValueError), match="drop nulls first"):
        read_keys(pd.Series(["a", null]))


@pytest.mark.parametrize("dtype", ["str", "string", "object", "category"])
def test_pandas_series_without_pyarrow_is_iterated(monkeypatch, dtype):
    pd = pytest.importorskip("pandas")

    def missing(*arguments, **more):
        raise ImportError("Missing optional dependency 'pyarrow'")

    series = pd.Series(["a", "b", "c"], dtype=dtype)[::2]
    monkeypatch.setattr(pd.Series, "__arrow_c_stream__", missing)
    monkeypatch.setattr(pd.DataFrame, "__arrow_c_stream__", missing)
    assert read_keys(series) == [b"a", b"c"]
    # Iterating these would give the names of the columns.
    with pytest.raises(TypeError, match="expected one column of keys, found a DataFrame"):
        read_keys(pd.DataFrame({"key": series}))
