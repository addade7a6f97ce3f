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

Arrow arrays come from other libraries by bare pointers.  What they say is checked before it is followed, as far as it
can be: nothing in the interface tells how long the buffers of offsets and fixed-width values are.

Two threads that read lists take turns at the references, so these must cost little beside the rest: nothing else is
done with the GIL, and the objects were fetched into the cache while the keys ahead of them were read.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_STRIDES, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.list cimport PyList_Check, PyList_GET_SIZE
from cpython.object cimport PyObject_GetIter
from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.string cimport memcpy, memset

from dlbf.kernels.types cimport int32_t, int64_t, likely, load64, prefetch, unlikely

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

cdef enum:
    FAULT_NULL = 1
    FAULT_OFFSETS = 2
    FAULT_VIEW = 3

# Places in buffers are at most 16 bytes times this, far from where they would overflow.
cdef int64_t MOST_ITEMS = <int64_t>1 << 50
# Where the keys of an array without values are: all of them are empty.
cdef const uint8_t* NO_VALUES = <const uint8_t*>b""


cdef inline int32_t native32(const uint8_t* p) noexcept nogil:
    # Buffers need not be aligned.
    cdef int32_t x
    memcpy(&x, p, 4)
    return x


cdef inline int64_t native64(const uint8_t* p) noexcept nogil:
    cdef int64_t x
    memcpy(&x, p, 8)
    return x


cdef void* capsule_pointer(object capsule, const char* name) except NULL:
    """What a capsule of that name holds."""
    if not PyCapsule_IsValid(capsule, name):
        found = "another capsule, or one that was used" if PyCapsule_CheckExact(capsule) else type(capsule).__name__
        raise TypeError(f"expected a PyCapsule {name.decode()!r} of the Arrow C data interface, found {found}")
    return PyCapsule_GetPointer(capsule, name)


cdef inline bint is_null(object key):
    """What Python, numpy and pandas have in the place of a missing value."""
    return key is None or type(key).__name__ in ("NAType", "NaTType") or (isinstance(key, float) and key != key)


cdef int key_open_other(object key, KeyRef* ref) except -1:
    cdef Py_ssize_t n = 0
    ref.has_view = False
    if PyUnicode_Check(key):
        ref.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(key, &n)
        ref.n_bytes = n
        return 0
    if not PyObject_CheckBuffer(key):
        hint = "encode it first, for example with str(key) or key.to_bytes(8, 'little')"
        if is_null(key):
            hint = "drop nulls first, those of a pandas Series with series.dropna()"
        raise TypeError(f"a key must be bytes, str or another buffer, not {type(key).__name__}; {hint}")
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
        self.opened = False
        self.fault = 0
        self.views = []
        self.has_array_view = False
        memset(&self.stream, 0, sizeof(ArrowArrayStream))
        memset(&self.array, 0, sizeof(ArrowArray))
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
        if self.array.release != NULL:
            self.array.release(&self.array)
        if self.stream.release != NULL:
            self.stream.release(&self.stream)

    def _open_iterator(self, keys):
        try:
            self.iterator = PyObject_GetIter(keys)
        except TypeError:
            raise TypeError(
                f"expected an iterable of keys, a numpy array or an Arrow array, found {type(keys).__name__}"
            ) from None
        self.mode = MODE_ITERATOR

    def _open_numpy(self, keys):
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
        cdef ArrowArrayStream* stream
        cdef ArrowSchema* schema
        cdef ArrowArray* array
        cdef ArrowSchema own_schema
        try:
            has_stream = hasattr(keys, "__arrow_c_stream__")
            offered = keys.__arrow_c_stream__() if has_stream else keys.__arrow_c_array__()
        except ImportError:
            # pandas makes Arrow arrays with pyarrow, if that is installed.
            if getattr(keys, "ndim", 1) != 1:
                raise TypeError(f"expected one column of keys, found a {type(keys).__name__}; pass one of its columns")
            self._open_iterator(keys)
            return
        if has_stream:
            stream = <ArrowArrayStream*>capsule_pointer(offered, "arrow_array_stream")
            if stream.release == NULL:
                raise ValueError("this Arrow stream was read before, which can be done once; make it again")
            self.stream = stream[0]
            stream.release = NULL
            memset(&own_schema, 0, sizeof(ArrowSchema))
            if self.stream.get_schema(&self.stream, &own_schema) != 0:
                raise ValueError(f"the Arrow stream gave no schema: {self._stream_error()}")
            if own_schema.release == NULL:
                raise ValueError("the Arrow stream gave no schema, and no error; make the stream again")
            try:
                self._open_arrow_schema(&own_schema)
            finally:
                own_schema.release(&own_schema)
        else:
            if not isinstance(offered, tuple) or len(offered) != 2:
                raise TypeError(
                    "expected the two capsules of a schema and an array from __arrow_c_array__, found "
                    + (f"a tuple of {len(offered)}" if isinstance(offered, tuple) else type(offered).__name__)
                )
            schema = <ArrowSchema*>capsule_pointer(offered[0], "arrow_schema")
            array = <ArrowArray*>capsule_pointer(offered[1], "arrow_array")
            if schema.release == NULL or array.release == NULL:
                raise ValueError("this Arrow array was taken by somebody else; ask for it again")
            self._open_arrow_schema(schema)
            self.array = array[0]
            array.release = NULL
            self._check_arrow_array()
        self.mode = MODE_ARROW

    def _stream_error(self):
        """What the stream says about its last error."""
        cdef const char* message = self.stream.get_last_error(&self.stream)
        return "no reason given" if message == NULL else (<bytes>message).decode(errors="replace")

    cdef int _open_arrow_schema(self, const ArrowSchema* schema) except -1:
        cdef bytes name
        if schema.format == NULL:
            raise ValueError("an Arrow schema without a type; make the array again")
        name = schema.format
        if schema.dictionary != NULL:
            raise TypeError("dictionary-encoded Arrow arrays are not keys; decode first (array.dictionary_decode())")
        if name in (b"u", b"z"):
            self.arrow_layout = ARROW_OFFSETS32
        elif name in (b"U", b"Z"):
            self.arrow_layout = ARROW_OFFSETS64
        elif name in (b"vu", b"vz"):
            self.arrow_layout = ARROW_VIEW
        elif name.startswith(b"w:") and name[2:].isdigit() and int(name[2:]) < 1 << 31:
            self.arrow_layout = ARROW_FIXED
            self.arrow_width = int(name[2:])
        else:
            raise TypeError(
                "expected an Arrow array of strings or binaries, found the Arrow type "
                f"{name.decode(errors='replace')!r}; pass one string column, not a table or numbers"
            )
        return 0

    cdef int _check_arrow_array(self) except -1:
        """See that the array can be read by its type; what is in the buffers is checked as it is read."""
        cdef const ArrowArray* array = &self.array
        cdef int64_t n_buffers = 2 if self.arrow_layout == ARROW_FIXED else 3
        cdef int64_t most = MOST_ITEMS
        if self.arrow_layout == ARROW_FIXED:
            most = most // max(self.arrow_width, 1)
        if not (0 <= array.length <= most and 0 <= array.offset <= most and -1 <= array.null_count <= array.length):
            raise ValueError(
                f"an Arrow array of {array.length} keys from number {array.offset} on, of which {array.null_count} are "
                "null, makes no sense; make it again"
            )
        if array.n_buffers != n_buffers and not (self.arrow_layout == ARROW_VIEW and array.n_buffers > n_buffers):
            raise ValueError(f"expected {n_buffers} buffers in an Arrow array of this type, found {array.n_buffers}")
        if array.length and (
            array.buffers == NULL
            or (array.buffers[1] == NULL and (self.arrow_layout != ARROW_FIXED or self.arrow_width))
            or (array.buffers[0] == NULL and array.null_count > 0)
            or (self.arrow_layout == ARROW_VIEW and n_buffers < array.n_buffers
                and array.buffers[array.n_buffers - 1] == NULL)
        ):
            raise ValueError("an Arrow array lacks a buffer that it needs; make it again")
        return 0

    cdef int _raise_fault(self) except -1:
        """Say why next_chunk() has stopped."""
        if self.fault == FAULT_NULL:
            raise ValueError(f"key number {self.n_read} is null; drop nulls first, for example with array.drop_null()")
        what = "ends before it begins" if self.fault == FAULT_OFFSETS else "lies outside of its buffer"
        raise ValueError(
            f"key number {self.n_read} of an Arrow array {what}; the array is damaged, and pyarrow's "
            "array.validate(full=True) says where"
        )

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
        if self.fault:
            self._raise_fault()
        while self.array.release == NULL or self.position >= self.array.length:
            if self.stream.release == NULL:
                return 0
            if self.array.release != NULL:
                self.array.release(&self.array)
            memset(&self.array, 0, sizeof(ArrowArray))
            self.position = 0
            if self.stream.get_next(&self.stream, &self.array) != 0:
                self.array.release = NULL  # whatever is there is no array
                raise ValueError(f"the Arrow stream failed: {self._stream_error()}")
            if self.array.release == NULL:
                return 0
            self._check_arrow_array()
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
        cdef const ArrowArray* array = &self.array
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef const uint8_t* validity
        cdef const uint8_t* places
        cdef const uint8_t* values
        cdef const uint8_t* view
        cdef int layout = self.arrow_layout
        cdef int64_t width = self.arrow_width
        cdef int64_t begin, end, number, n_values, first = array.offset + self.position
        cdef Py_ssize_t i, n = min(array.length - self.position, <Py_ssize_t>CHUNK_KEYS)
        if n <= 0:
            # An empty array need not have buffers.
            return 0
        validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
        if validity != NULL:
            for i in range(n):
                if not (validity[(first + i) >> 3] >> ((first + i) & 7)) & 1:
                    self.fault = FAULT_NULL
                    n = i
                    break
        places = <const uint8_t*>array.buffers[1]
        if layout == ARROW_FIXED:
            values = places + first * width if width else NO_VALUES
            for i in range(n):
                pointers[i] = values + i * width
                lengths[i] = width
        elif layout == ARROW_VIEW:
            # 16 bytes each: length, then the string itself if it fits in 12, else prefix, buffer number, offset.  The
            # last buffer has the sizes of those between.
            n_values = array.n_buffers - 3
            view = places + 16 * first
            for i in range(n):
                end = native32(view)
                pointers[i] = view + 4
                if not 0 <= end <= 12:
                    number, begin = native32(view + 8), native32(view + 12)
                    if (
                        end < 0 or begin < 0 or not 0 <= number < n_values or array.buffers[2 + number] == NULL
                        or begin + end > native64(<const uint8_t*>array.buffers[2 + n_values] + 8 * number)
                    ):
                        self.fault = FAULT_VIEW
                        n = i
                        break
                    pointers[i] = <const uint8_t*>array.buffers[2 + number] + begin
                lengths[i] = end
                view += 16
        else:
            values = <const uint8_t*>array.buffers[2]
            width = 4 if layout == ARROW_OFFSETS32 else 8
            places += width * first
            begin = native32(places) if width == 4 else native64(places)
            if begin < 0:
                self.fault = FAULT_OFFSETS
                n = 0
            for i in range(n):
                places += width
                end = native32(places) if width == 4 else native64(places)
                if unlikely(end < begin or (values == NULL and end != begin)):
                    self.fault = FAULT_OFFSETS if end < begin else FAULT_VIEW
                    n = i
                    break
                pointers[i] = values + begin if values != NULL else NO_VALUES
                lengths[i] = end - begin
                begin = end
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
