"""Reading keys: one object, or any number of them as batches of chunks of pointers.

Many keys may be a list, tuple, set, generator or other iterable of keys, a numpy array of dtype ``S`` or
``object``, or anything with the Arrow PyCapsule interface (``__arrow_c_array__``,
``__arrow_c_stream__``) that holds strings or binaries; pyarrow itself is never imported.

Whoever reads them calls ``next_batch`` with the GIL, and then ``next_chunk`` without it until that has no more:

    while reader.next_batch():
        with nogil:
            while reader.next_chunk():
                ...                      # reader.chunk; leaving early is allowed, the next batch goes on from there

A tuple of bytes, an array or an Arrow array is one batch, however long: nothing in it needs the GIL.  The objects of a
list are taken ``HELD_KEYS`` at a time, those of an iterator ``CHUNK_KEYS`` (it may make them as they are asked for).
What is not bytes is opened with the GIL before it is read.

Invariant: between two calls of ``next_chunk`` every pointer of the chunk stays valid, whatever other
threads do to the source.  The objects of a list are kept by a reference each (the list can change while the GIL is
released); tuples, arrays and Arrow buffers are kept whole.

Two threads that read lists take turns at the references, so these must cost little beside the rest: nothing else is
done with the GIL, and the objects were fetched into the cache while the keys ahead of them were read.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_STRIDES, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.list cimport PyList_Check, PyList_GET_SIZE
from cpython.object cimport PyObject_GetIter
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.string cimport memcpy, memset

from dlbf.kernels.types cimport int32_t, int64_t, likely, load64, prefetch

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
    MODE_LIST = 1
    MODE_TUPLE = 2
    MODE_ITERATOR = 3
    MODE_ARRAY = 4
    MODE_ARROW = 5

cdef enum:
    ARROW_OFFSETS32 = 1
    ARROW_OFFSETS64 = 2
    ARROW_FIXED = 3
    ARROW_VIEW = 4


cdef int key_open_other(object key, KeyRef* ref) except -1:
    cdef Py_ssize_t n = 0
    ref.has_view = False
    if PyUnicode_Check(key):
        ref.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(key, &n)
        ref.n_bytes = n
        return 0
    if not PyObject_CheckBuffer(key):
        raise TypeError(
            f"a key must be bytes, str or another buffer, not {type(key).__name__}; "
            "encode it first, for example with str(key) or key.to_bytes(8, 'little')"
        )
    try:
        PyObject_GetBuffer(key, &ref.view, PyBUF_CONTIG_RO)
    except (BufferError, ValueError) as error:  # numpy raises the latter
        if "contiguous" not in str(error):
            raise
        raise TypeError(f"a key must be a contiguous buffer; copy it with bytes(key) ({error})") from None
    if ref.view.ndim == 0:
        PyBuffer_Release(&ref.view)
        raise TypeError(f"a key must be bytes, str or another buffer, not the scalar {type(key).__name__}")
    ref.has_view = True
    ref.data = <const uint8_t*>ref.view.buf
    ref.n_bytes = ref.view.len
    return 0


cdef void key_close_view(KeyRef* ref) noexcept:
    PyBuffer_Release(&ref.view)
    ref.has_view = False


cdef inline void prefetch_object(const void* item) noexcept nogil:
    # An ordinary key of some fifty bytes lies in two cache lines.
    prefetch(item)
    prefetch(<const char*>item + 64)


cdef class _View:
    """Owns one buffer of the current batch."""
    cdef KeyRef ref

    def __dealloc__(self):
        key_close(&self.ref)


cdef class KeyReader:
    """Reads keys from anything; see the module's docstring.

    Parameters
    ----------
    keys : iterable, numpy array or Arrow array
        The batch.  A single ``bytes`` or ``str`` is refused: it would be read as a batch of its parts.
    """

    def __cinit__(self, keys):
        self.chunk.n = 0
        self.n_room = self.n_open = self.n_given = 0
        self.n_items = self.n_seen = self.n_references = self.n_coming = 0
        self.opened = self.met_null = False
        self.views = []
        self.has_array_view = False
        self.stream = NULL
        self.schema = NULL
        self.array = NULL
        memset(&self.own_schema, 0, sizeof(ArrowSchema))
        memset(&self.own_array, 0, sizeof(ArrowArray))
        self.position = 0
        self.n_read = 0
        self.source = keys
        if PyList_Check(keys):
            self.mode = MODE_LIST
        elif PyTuple_Check(keys):
            self.mode = MODE_TUPLE
            self.items = sequence_items(keys)
            self.n_items = PyTuple_GET_SIZE(keys)
        elif isinstance(keys, np.ndarray):
            self._open_numpy(keys)
        elif isinstance(keys, (bytes, bytearray, memoryview, str)):
            raise TypeError(
                f"expected a batch of keys, found a single {type(keys).__name__}; "
                "wrap it in a list, or use the method for one key"
            )
        elif hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
            self._open_arrow(keys)
        else:
            self._open_iterator(keys)

    def __dealloc__(self):
        self._let_go()
        if self.has_array_view:
            PyBuffer_Release(&self.array_view)
        if self.own_array.release != NULL:
            self.own_array.release(&self.own_array)
        if self.own_schema.release != NULL:
            self.own_schema.release(&self.own_schema)

    def _open_iterator(self, keys):
        try:
            self.iterator = PyObject_GetIter(keys)
        except TypeError:
            raise TypeError(
                f"expected an iterable of keys, a numpy array or an Arrow array, found {type(keys).__name__}"
            ) from None
        self.mode = MODE_ITERATOR

    def _open_numpy(self, keys):
        if keys.ndim != 1:
            raise ValueError(f"expected a one-dimensional array of keys, found {keys.ndim} dimensions")
        if keys.dtype.kind in "OUT":
            self._open_iterator(keys)
        elif keys.dtype.kind == "S":
            if keys.dtype.itemsize == 0:
                self._open_iterator([b""] * len(keys))
                return
            PyObject_GetBuffer(keys, &self.array_view, PyBUF_STRIDES)
            self.has_array_view = True
            self.mode = MODE_ARRAY
        else:
            raise TypeError(
                f"expected an array of dtype S, U or object, found {keys.dtype}; "
                "turn numbers into fixed-width bytes with keys.view(f'S{keys.itemsize}') only if no key ends in a "
                "zero byte, or pass [key.tobytes() for key in keys]"
            )

    def _open_arrow(self, keys):
        if hasattr(keys, "__arrow_c_stream__"):
            self.capsules = keys.__arrow_c_stream__()
            self.stream = <ArrowArrayStream*>PyCapsule_GetPointer(self.capsules, "arrow_array_stream")
            if self.stream.get_schema(self.stream, &self.own_schema) != 0:
                raise ValueError("the Arrow stream gave no schema")
            self._open_arrow_schema(&self.own_schema)
        else:
            self.capsules = keys.__arrow_c_array__()
            self._open_arrow_schema(<ArrowSchema*>PyCapsule_GetPointer(self.capsules[0], "arrow_schema"))
            self.array = <ArrowArray*>PyCapsule_GetPointer(self.capsules[1], "arrow_array")
        self.mode = MODE_ARROW

    cdef int _open_arrow_schema(self, ArrowSchema* schema) except -1:
        cdef bytes name = schema.format
        self.schema = schema
        if schema.dictionary != NULL:
            raise TypeError("dictionary-encoded Arrow arrays are not keys; decode first (array.dictionary_decode())")
        if name in (b"u", b"z"):
            self.arrow_layout = ARROW_OFFSETS32
        elif name in (b"U", b"Z"):
            self.arrow_layout = ARROW_OFFSETS64
        elif name in (b"vu", b"vz"):
            self.arrow_layout = ARROW_VIEW
        elif name.startswith(b"w:"):
            self.arrow_layout = ARROW_FIXED
            self.arrow_width = int(name[2:])
        else:
            raise TypeError(
                f"expected an Arrow array of strings or binaries, found the Arrow type {name.decode()!r}; "
                "pass one string column, not a table or numbers"
            )
        return 0

    cdef int _make_room(self, Py_ssize_t n) except -1:
        """Room for the pointers of ``n`` keys; only when no chunk is in use."""
        if n > self.n_room:
            if self.pointer_bytes is None:
                self.pointer_bytes, self.length_bytes = bytearray(), bytearray()
            PyByteArray_Resize(self.pointer_bytes, n * sizeof(void*))
            PyByteArray_Resize(self.length_bytes, n * sizeof(size_t))
            self.pointers = <const uint8_t**>PyByteArray_AS_STRING(self.pointer_bytes)
            self.lengths = <size_t*>PyByteArray_AS_STRING(self.length_bytes)
            self.n_room = n
        return 0

    cdef void _let_go(self) noexcept:
        """Give the references back."""
        cdef PyObject** references = self.references
        cdef Py_ssize_t i, n = self.n_references
        self.n_references = 0
        for i in range(n):
            decref(references[i])

    cdef Py_ssize_t next_batch(self) except -1:
        """Prepare keys for ``next_chunk``; returns an upper bound of their number, 0 at the end."""
        cdef Py_ssize_t n
        self.chunk.n = 0
        if self.n_given < self.n_open:
            # The last batch was left early.
            return self.n_open - self.n_given
        if self.opened:
            self.opened = False
            self.n_open = self.n_given = 0
            self.views = []
        if self.mode == MODE_ITERATOR:
            return self._open_iterated()
        if self.mode == MODE_ARRAY:
            n = self.array_view.shape[0] - self.position
        elif self.mode == MODE_ARROW:
            n = self._open_arrow_array()
        else:
            if self.mode == MODE_LIST and self.n_seen == self.n_items:
                self._take_list()
            n = self.n_items - self.n_seen
            if n and not is_bytes(self.items[self.n_seen]):
                return self._open_items()
        self._make_room(min(n, <Py_ssize_t>CHUNK_KEYS))
        return n

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        """Point ``self.chunk`` at the next keys of the batch; 0 when there are no more that need no GIL."""
        cdef Py_ssize_t n
        if self.opened:
            n = min(self.n_open - self.n_given, <Py_ssize_t>CHUNK_KEYS)
            self.chunk.data = self.pointers + self.n_given
            self.chunk.n_bytes = self.lengths + self.n_given
            self.n_given += n
        else:
            self.chunk.data = self.pointers
            self.chunk.n_bytes = self.lengths
            if self.mode == MODE_ARRAY:
                n = self._read_array()
            elif self.mode == MODE_ARROW:
                n = self._read_arrow()
            else:
                n = self._read_items()
        self.chunk.n = n
        self.n_read += n
        return n

    cdef int _take_list(self) except -1:
        """References to the next objects of the list in place of those to the last."""
        cdef PyObject** items
        cdef PyObject** references
        cdef Py_ssize_t i, n
        self._let_go()
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

    cdef Py_ssize_t _open_iterated(self) except -1:
        """Open the next objects of the iterator, each before the next is asked for, in place of the last."""
        cdef PyObject* item
        self._let_go()
        self._make_room(CHUNK_KEYS)
        if self.reference_bytes is None:
            self.reference_bytes = bytearray(CHUNK_KEYS * sizeof(PyObject*))
            self.references = <PyObject**>PyByteArray_AS_STRING(self.reference_bytes)
        while self.n_references < CHUNK_KEYS:
            item = PyIter_Next(self.iterator)
            if item == NULL:
                break
            self.references[self.n_references] = item
            self.n_references += 1
            self._open_item(item, self.n_references - 1)
        self.opened = True
        self.n_open = self.n_references
        return self.n_open

    cdef Py_ssize_t _open_items(self) except -1:
        """Open objects of a list or tuple, whatever they are, so that those that are not bytes need the GIL once."""
        cdef Py_ssize_t i, n = min(self.n_items - self.n_seen, <Py_ssize_t>HELD_KEYS)
        self._make_room(n)
        for i in range(n):
            if i + AHEAD < n:
                prefetch_object(self.items[self.n_seen + i + AHEAD])
            self._open_item(self.items[self.n_seen + i], i)
        self.opened = True
        self.n_seen += n
        self.n_open = n
        return n

    cdef int _open_item(self, PyObject* item, Py_ssize_t i) except -1:
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
            self.views.append(view)
            self.pointers[i] = view.ref.data
            self.lengths[i] = view.ref.n_bytes
        return 0

    cdef Py_ssize_t _open_arrow_array(self) except -1:
        """How many keys the present Arrow array still has; the next one of a stream is opened if it has none."""
        if self.met_null:
            raise ValueError(f"key number {self.n_read} is null; drop nulls first")
        while self.array == NULL or self.position >= self.array.length:
            if self.stream == NULL:
                return 0
            if self.own_array.release != NULL:
                self.own_array.release(&self.own_array)
                self.own_array.release = NULL
            self.array = NULL
            if self.stream.get_next(self.stream, &self.own_array) != 0:
                message = self.stream.get_last_error(self.stream)
                reason = (<bytes>message).decode() if message != NULL else "no reason given"
                raise ValueError(f"the Arrow stream failed: {reason}")
            if self.own_array.release == NULL:
                return 0
            self.array = &self.own_array
            self.position = 0
        return self.array.length - self.position

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

    cdef Py_ssize_t _read_array(self) noexcept nogil:
        cdef Py_ssize_t stride = self.array_view.strides[0]
        cdef Py_ssize_t width = self.array_view.itemsize
        cdef const uint8_t* item = <const uint8_t*>self.array_view.buf + self.position * stride
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef Py_ssize_t i, length
        cdef Py_ssize_t n = min(self.array_view.shape[0] - self.position, <Py_ssize_t>CHUNK_KEYS)
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
        return n

    cdef Py_ssize_t _read_arrow(self) noexcept nogil:
        cdef const ArrowArray* array = self.array
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef const uint8_t* validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
        cdef const int32_t* offsets32 = <const int32_t*>array.buffers[1]
        cdef const int64_t* offsets64 = <const int64_t*>array.buffers[1]
        cdef const uint8_t* values = <const uint8_t*>array.buffers[1]
        cdef const int32_t* view
        cdef int layout = self.arrow_layout
        cdef Py_ssize_t width = self.arrow_width
        cdef Py_ssize_t first = array.offset + self.position
        cdef Py_ssize_t i, at, n = min(array.length - self.position, <Py_ssize_t>CHUNK_KEYS)
        if layout == ARROW_OFFSETS32 or layout == ARROW_OFFSETS64:
            values = <const uint8_t*>array.buffers[2]
        if validity != NULL:
            for i in range(n):
                at = first + i
                if not (validity[at >> 3] >> (at & 7)) & 1:
                    self.met_null = True
                    n = i
                    break
        for i in range(n):
            at = first + i
            if layout == ARROW_OFFSETS32:
                pointers[i] = values + offsets32[at]
                lengths[i] = offsets32[at + 1] - offsets32[at]
            elif layout == ARROW_OFFSETS64:
                pointers[i] = values + offsets64[at]
                lengths[i] = offsets64[at + 1] - offsets64[at]
            elif layout == ARROW_FIXED:
                pointers[i] = values + at * width
                lengths[i] = width
            else:
                # 16 bytes: length, then the string itself if it fits in 12,
                # else prefix, buffer number, offset.
                view = <const int32_t*>(values + 16 * at)
                lengths[i] = view[0]
                if view[0] <= 12:
                    pointers[i] = <const uint8_t*>(view + 1)
                else:
                    pointers[i] = <const uint8_t*>array.buffers[2 + view[2]] + view[3]
        self.position += n
        return n


def read_keys(keys):
    """All keys of a batch as a list of bytes, read the way the filters read them.

    Examples
    --------
    >>> read_keys(["a", b"b", bytearray(b"c")])
    [b'a', b'b', b'c']
    """
    cdef KeyReader reader = KeyReader(keys)
    cdef Py_ssize_t i
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
