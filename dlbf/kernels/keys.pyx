"""Readers of lists, tuples, iterators and numpy arrays of keys, and which reader a batch gets.

Many keys may be a list, tuple, set, generator or other iterable of keys, a numpy array of dtype ``S``,
``object`` or integers (``IntegerReader``), or anything with the Arrow PyCapsule interface (``__arrow_c_array__``,
``__arrow_c_stream__``) that holds strings or binaries (``arrowkeys``).

A tuple of bytes, an array or an Arrow array is one batch, however long: nothing in it needs the GIL.  The objects of a
list are taken ``HELD_KEYS`` at a time, those of an iterator ``CHUNK_KEYS`` (it may make them as they are asked for).
What is not bytes is opened with the GIL before it is read.

The objects of a list are kept by a reference each (the list can change while the GIL is released); tuples, arrays and
Arrow buffers are kept whole.

Two threads that read lists take turns at the references, so these must cost little beside the rest: nothing else is
done with the GIL, and the objects were fetched into the cache while the keys ahead of them were read.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_CheckExact
from cpython.list cimport PyList_Check, PyList_CheckExact, PyList_GET_SIZE
from cpython.object cimport PyObject_GetIter
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.string cimport memcpy, memset

from dlbf.kernels.types cimport Export, likely, load64, prefetch, store64, uint8_t, uint64_t

import numpy as np

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* n) except NULL
    bint PyUnicode_Check(object o)
    # The objects of a list or tuple; those of a list move when it changes.
    PyObject** sequence_items "PySequence_Fast_ITEMS"(object seq)
    # Reading the type and size of an object that somebody keeps alive needs no GIL.
    bint is_bytes "PyBytes_Check"(PyObject* o) nogil
    const char* bytes_data "PyBytes_AS_STRING"(PyObject* o) nogil
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject* o) nogil
    PyObject* PyIter_Next(object it) except? NULL
    void incref "Py_INCREF"(PyObject* o)
    void decref "Py_DECREF"(PyObject* o)

cdef enum:
    # Objects between a prefetch and the look at it.
    AHEAD = 16

cdef enum:
    # Room for an integer as a key.
    INTEGER_BYTES = 9


cdef inline void prefetch_object(const void* item) noexcept nogil:
    # An ordinary key of some fifty bytes lies in two cache lines.
    prefetch(item)
    prefetch(<const char*>item + 64)


cdef class _View:
    """Owns one buffer of the current batch."""
    cdef KeyRef ref

    def __dealloc__(self):
        key_close(&self.ref)


cdef class ObjectReader(KeyReader):
    """Keys that are Python objects, each kept alive by a reference."""

    # The batch is open: its pointers are in the room, and next_chunk() gives them.
    cdef bint opened
    cdef Py_ssize_t n_open, n_given      # keys in the room, and how many of them next_chunk() has given
    cdef list views                      # buffers opened for the batch, or None
    cdef bytearray reference_bytes
    cdef PyObject** references
    cdef Py_ssize_t n_references

    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self) noexcept:
        """Give the references back."""
        cdef PyObject** references = self.references
        cdef Py_ssize_t i, n = self.n_references
        self.n_references = 0
        for i in range(n):
            decref(references[i])

    cdef Py_ssize_t begin(self, Py_ssize_t n) noexcept:
        """The next ``n`` keys are open."""
        self.opened = True
        self.n_open = n
        self.n_given = 0
        return n

    cdef Py_ssize_t left_over(self) noexcept:
        """Keys of a batch that was left early; if there are none it is closed."""
        self.chunk.n = 0
        if self.n_given < self.n_open:
            return self.n_open - self.n_given
        if self.opened:
            self.opened = False
            self.n_open = self.n_given = 0
            self.views = None
        return 0

    cdef Py_ssize_t give_opened(self) noexcept nogil:
        cdef Py_ssize_t first = self.n_given
        cdef Py_ssize_t n = min(self.n_open - first, <Py_ssize_t>CHUNK_KEYS)
        self.n_given += n
        return self.give(first, n)

    cdef int open_item(self, PyObject* item, Py_ssize_t i) except -1:
        """Open one object as number ``i`` of the batch."""
        cdef Py_ssize_t size = 0
        cdef _View view
        if is_bytes(item):
            self.pointers[i] = <const uint8_t*>bytes_data(item)
            self.lengths[i] = bytes_size(item)
        elif PyUnicode_Check(<object>item):
            self.pointers[i] = <const uint8_t*>PyUnicode_AsUTF8AndSize(<object>item, &size)
            self.lengths[i] = size
        else:
            view = _View()
            try:
                key_open_other(<object>item, &view.ref)
            except TypeError as error:
                raise TypeError(f"key number {self.n_read + i}: {error}") from None
            if self.views is None:
                self.views = []
            self.views.append(view)
            self.pointers[i] = view.ref.data
            self.lengths[i] = view.ref.n_bytes
        return 0


@cython.final
cdef class IteratorReader(ObjectReader):
    """Keys of anything that can be iterated over."""

    cdef object iterator

    cdef Py_ssize_t next_batch(self) except -1:
        """Open the next objects of the iterator, each before the next is asked for, in place of the last."""
        cdef PyObject* item
        cdef Py_ssize_t n = self.left_over()
        if n:
            return n
        self.let_go()
        self.make_room(CHUNK_KEYS)
        if self.reference_bytes is None:
            self.reference_bytes = bytearray(CHUNK_KEYS * sizeof(PyObject*))
            self.references = <PyObject**>PyByteArray_AS_STRING(self.reference_bytes)
        while self.n_references < CHUNK_KEYS:
            item = PyIter_Next(self.iterator)
            if item == NULL:
                break
            self.references[self.n_references] = item
            self.n_references += 1
            self.open_item(item, self.n_references - 1)
        return self.begin(self.n_references)

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        return self.give_opened()


@cython.final
cdef class SequenceReader(ObjectReader):
    """Keys of a list or tuple."""

    cdef object source
    cdef bint is_list
    cdef Py_ssize_t position             # of the next object to be taken from a list
    # Objects that stay alive: a tuple's own, or the references.
    cdef PyObject** items
    cdef Py_ssize_t n_items, n_seen
    cdef bytearray coming_bytes
    cdef PyObject** coming               # where the list's next objects were; only to prefetch them
    cdef Py_ssize_t n_coming

    cdef Py_ssize_t next_batch(self) except -1:
        cdef Py_ssize_t n = self.left_over()
        if n:
            return n
        if self.is_list and self.n_seen == self.n_items:
            self._take_list()
        n = self.n_items - self.n_seen
        if n and not is_bytes(self.items[self.n_seen]):
            return self._open_items()
        self.make_room(min(n, <Py_ssize_t>CHUNK_KEYS))
        return n

    cdef int _take_list(self) except -1:
        """References to the next objects of the list in place of those to the last."""
        cdef PyObject** items
        cdef PyObject** references
        cdef Py_ssize_t i, n
        self.let_go()
        self.n_items = self.n_seen = 0
        # The list may have shrunk or grown since the last batch: ask again.
        n = min(PyList_GET_SIZE(self.source) - self.position, <Py_ssize_t>HELD_KEYS)
        if n <= 0:
            return 0
        if self.reference_bytes is None:
            self.reference_bytes, self.coming_bytes = bytearray(), bytearray()
        if n > PyByteArray_GET_SIZE(self.reference_bytes) // <Py_ssize_t>sizeof(PyObject*):
            PyByteArray_Resize(self.reference_bytes, n * sizeof(PyObject*))
            PyByteArray_Resize(self.coming_bytes, n * sizeof(PyObject*))
            self.references = <PyObject**>PyByteArray_AS_STRING(self.reference_bytes)
            self.coming = <PyObject**>PyByteArray_AS_STRING(self.coming_bytes)
        items = sequence_items(self.source) + self.position
        references = self.references
        for i in range(n):
            if i + AHEAD < n:
                prefetch(items[i + AHEAD])
            references[i] = items[i]
            incref(items[i])
        self.items = references
        self.n_items = self.n_references = n
        self.position += n
        self.n_coming = min(PyList_GET_SIZE(self.source) - self.position, n)
        memcpy(self.coming, items + n, self.n_coming * sizeof(PyObject*))
        return 0

    cdef Py_ssize_t _open_items(self) except -1:
        """Open objects of a list or tuple, whatever they are, so that those that are not bytes need the GIL once."""
        cdef Py_ssize_t i, n = min(self.n_items - self.n_seen, <Py_ssize_t>HELD_KEYS)
        self.make_room(n)
        for i in range(n):
            if i + AHEAD < n:
                prefetch_object(self.items[self.n_seen + i + AHEAD])
            self.open_item(self.items[self.n_seen + i], i)
        self.n_seen += n
        return self.begin(n)

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        if self.opened:
            return self.give_opened()
        return self.give(0, self._read_items())

    cdef Py_ssize_t _read_items(self) noexcept nogil:
        cdef PyObject** items = self.items + self.n_seen
        cdef PyObject** coming = self.coming
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef Py_ssize_t seen = self.n_seen, left = self.n_items - seen, n_coming = self.n_coming
        cdef Py_ssize_t i, n = min(left, <Py_ssize_t>CHUNK_KEYS)
        cdef PyObject* item
        for i in range(n):
            if i + AHEAD < left:
                prefetch_object(items[i + AHEAD])
            if seen + i < n_coming:
                # Perhaps no object any more: this reads nothing and cannot fail.
                prefetch(coming[seen + i])
            item = items[i]
            if not likely(is_bytes(item)):
                # The next batch opens it.
                n = i
                break
            pointers[i] = <const uint8_t*>bytes_data(item)
            lengths[i] = bytes_size(item)
        self.n_seen = seen + n
        return n


@cython.final
cdef class ArrayReader(KeyReader):
    """Keys of a numpy array of fixed-width bytes."""

    cdef Export taken
    cdef Py_ssize_t position             # of the next key

    def __cinit__(self, array):
        PyObject_GetBuffer(array, &self.taken.view, PyBUF_STRIDES)

    def __dealloc__(self):
        PyBuffer_Release(&self.taken.view)     # which does nothing if there is none

    cdef Py_ssize_t next_batch(self) except -1:
        cdef Py_ssize_t n = self.taken.view.shape[0] - self.position
        self.chunk.n = 0
        self.make_room(min(n, <Py_ssize_t>CHUNK_KEYS))
        return n

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        cdef Py_ssize_t stride = self.taken.view.strides[0]
        cdef Py_ssize_t width = self.taken.view.itemsize
        cdef const uint8_t* item = <const uint8_t*>self.taken.view.buf + self.position * stride
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef Py_ssize_t i, length
        cdef Py_ssize_t n = min(self.taken.view.shape[0] - self.position, <Py_ssize_t>CHUNK_KEYS)
        for i in range(n):
            length = width
            # numpy pads with zeros and drops them on reading; so do we.
            while length >= 8 and load64(item + length - 8) == 0:
                length -= 8
            while length and item[length - 1] == 0:
                length -= 1
            pointers[i] = item
            lengths[i] = length
            item += stride
        self.position += n
        return self.give(0, n)


@cython.final
cdef class IntegerReader(KeyReader):
    """Keys of a numpy array of 64-bit integers: 8 bytes, little-endian, and a ninth, 0xFF, behind negative ones."""

    cdef Export taken
    cdef bint is_signed
    cdef Py_ssize_t position             # of the next key
    cdef bytearray room                  # the bytes of a chunk's keys
    cdef uint8_t* encoded

    def __cinit__(self, array):
        PyObject_GetBuffer(array, &self.taken.view, PyBUF_STRIDES)
        self.is_signed = array.dtype.kind == "i"
        self.room = bytearray(CHUNK_KEYS * INTEGER_BYTES)
        self.encoded = <uint8_t*>PyByteArray_AS_STRING(self.room)

    def __dealloc__(self):
        PyBuffer_Release(&self.taken.view)

    cdef Py_ssize_t next_batch(self) except -1:
        cdef Py_ssize_t n = self.taken.view.shape[0] - self.position
        self.chunk.n = 0
        self.make_room(min(n, <Py_ssize_t>CHUNK_KEYS))
        return n

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        cdef Py_ssize_t stride = self.taken.view.strides[0]
        cdef const uint8_t* item = <const uint8_t*>self.taken.view.buf + self.position * stride
        cdef uint8_t* out = self.encoded
        cdef Py_ssize_t i, n = min(self.taken.view.shape[0] - self.position, <Py_ssize_t>CHUNK_KEYS)
        cdef uint64_t value
        cdef bint is_negative
        for i in range(n):
            memcpy(&value, item, sizeof(uint64_t))     # in the machine's own order, perhaps not aligned
            is_negative = self.is_signed and value >> 63
            store64(out, value)
            out[8] = 0xFF
            self.pointers[i] = out
            self.lengths[i] = 8 + is_negative
            out += INTEGER_BYTES
            item += stride
        self.position += n
        return self.give(0, n)


@cython.final
cdef class HashReader(KeyReader):
    """A batch of hashes, perhaps with the regions of their keys, for filters that look at nothing else.

    Whoever makes one has seen to it that the filter does not, that the hashes are its own, and the regions too.

    Parameters
    ----------
    hashes : numpy.ndarray of uint64
        Contiguous.
    regions : numpy.ndarray of uint8, optional
        As many, contiguous.
    """

    cdef Export hashes, regions
    cdef Py_ssize_t n_keys, position     # how many, and the next one's number

    def __cinit__(self, hashes, regions=None):
        PyObject_GetBuffer(hashes, &self.hashes.view, PyBUF_SIMPLE)
        self.n_keys = self.hashes.view.len // <Py_ssize_t>sizeof(uint64_t)
        if regions is not None:
            PyObject_GetBuffer(regions, &self.regions.view, PyBUF_SIMPLE)
            if self.regions.view.len != self.n_keys:
                raise ValueError(f"expected a region for each of {self.n_keys} hashes, found {self.regions.view.len}")
        self.make_room(min(self.n_keys, <Py_ssize_t>CHUNK_KEYS))
        if self.n_room:
            # Leaves are handed the key as well; it is no key.
            memset(self.pointers, 0, self.n_room * sizeof(void*))
            memset(self.lengths, 0, self.n_room * sizeof(size_t))

    def __dealloc__(self):
        PyBuffer_Release(&self.hashes.view)
        PyBuffer_Release(&self.regions.view)

    cdef Py_ssize_t next_batch(self) except -1:
        self.chunk.n = 0
        return self.n_keys - self.position

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        cdef Py_ssize_t n = min(self.n_keys - self.position, <Py_ssize_t>CHUNK_KEYS)
        self.chunk.hashes = <const uint64_t*>self.hashes.view.buf + self.position
        if self.regions.view.buf != NULL:
            self.chunk.regions = <const uint8_t*>self.regions.view.buf + self.position
        self.position += n
        return self.give(0, n)


# --- which reader


cdef KeyReader open_keys(object keys):
    cdef SequenceReader sequence
    cdef KeyReader reader
    if PyList_Check(keys):
        sequence = SequenceReader()
        sequence.source = keys
        sequence.is_list = True
        return sequence
    if PyTuple_Check(keys):
        sequence = SequenceReader()
        sequence.source = keys
        sequence.items = sequence_items(keys)
        sequence.n_items = PyTuple_GET_SIZE(keys)
        return sequence
    if isinstance(keys, np.ndarray):
        return open_array(keys)
    if isinstance(keys, (bytes, bytearray, memoryview, str)):
        raise TypeError(
            f"expected a batch of keys, found a single {type(keys).__name__}; "
            "wrap it in a list, or use the method for one key"
        )
    if isinstance(keys, KeyReader):
        return keys
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
        reader = read_arrow(keys)
        if reader is not None:
            return reader
    return open_iterator(keys)


# arrowkeys.arrow_reader, once somebody has Arrow arrays: most programs have none, and need not load that module.
cdef object arrow_reader = None


cdef KeyReader read_arrow(object keys):
    global arrow_reader
    if arrow_reader is None:
        from dlbf.kernels import arrowkeys
        arrow_reader = arrowkeys.arrow_reader
    return arrow_reader(keys)


cdef KeyReader open_iterator(object keys):
    cdef IteratorReader reader = IteratorReader()
    try:
        reader.iterator = PyObject_GetIter(keys)
    except TypeError:
        raise TypeError(
            f"expected an iterable of keys, a numpy array or an Arrow array, found {type(keys).__name__}"
        ) from None
    return reader


cdef KeyReader open_array(object keys):
    if type(keys) is not np.ndarray:
        if isinstance(keys, np.ma.MaskedArray):
            masked = np.flatnonzero(np.ma.getmaskarray(keys))
            if masked.size:
                raise ValueError(
                    f"{masked.size} keys are masked, the first is number {masked[0]}; drop them first, with "
                    "keys.compressed()"
                )
        # Subclasses may say anything about themselves.
        keys = np.ndarray.view(keys, np.ndarray)
    if keys.ndim != 1:
        raise ValueError(f"expected a one-dimensional array of keys, found {keys.ndim} dimensions")
    if keys.dtype.kind in "OUT":
        return open_iterator(keys)
    if keys.dtype.kind == "S":
        return ArrayReader(keys) if keys.dtype.itemsize else open_iterator([b""] * len(keys))
    if keys.dtype.kind in "iu":
        # 64 bits in the machine's own order, whatever they were: no copy if they are that already.
        return IntegerReader(keys.astype(np.int64 if keys.dtype.kind == "i" else np.uint64, copy=False))
    raise TypeError(
        f"expected an array of dtype S, U, object or integers, found {keys.dtype}; "
        "pass [key.tobytes() for key in keys], or integers, which are read as dlbf.int_key says"
    )


# --- for Python


def read_keys(keys):
    """All keys of a batch as a list of bytes, read the way the filters read them.

    Examples
    --------
    >>> read_keys(["a", b"b", bytearray(b"c")])
    [b'a', b'b', b'c']
    """
    cdef KeyReader reader
    cdef Py_ssize_t i
    if PyList_CheckExact(keys):
        # Most often they are bytes already.  A list of our own, because another thread may change that one.
        out = list(keys)
        for key in <list>out:
            if not PyBytes_CheckExact(key):
                break
        else:
            return out
    reader = open_keys(keys)
    out = []
    while reader.next_batch():
        while reader.next_chunk():
            for i in range(reader.chunk.n):
                out.append((<const char*>reader.chunk.data[i])[:reader.chunk.n_bytes[i]])
    return out


def read_key(key):
    """One key as bytes, read the way the filters read it.

    Examples
    --------
    >>> read_key("a")
    b'a'
    """
    cdef KeyRef ref
    key_open(key, &ref)
    try:
        return (<const char*>ref.data)[:ref.n_bytes]
    finally:
        key_close(&ref)


def are_pairs_of_bytes(list pairs):
    """Whether all are tuples of a key and a value that are bytes."""
    for pair in pairs:
        if type(pair) is not tuple or len(<tuple>pair) != 2:
            return False
        if type((<tuple>pair)[0]) is not bytes or type((<tuple>pair)[1]) is not bytes:
            return False
    return True
