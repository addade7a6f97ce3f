"""Reading keys: one object, or any batch of them as chunks of pointers.

A batch may be a list, tuple, set, generator or other iterable of keys, a numpy array of dtype ``S`` or
``object``, or anything with the Arrow PyCapsule interface (``__arrow_c_array__``,
``__arrow_c_stream__``) that holds strings or binaries; pyarrow itself is never imported.

Invariant: between two calls of ``next_chunk`` every pointer of the chunk stays valid, whatever other
threads do to the source.  Objects are kept by a reference each (a list can change while the GIL is
released); arrays and Arrow buffers are kept whole.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_STRIDES, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.list cimport PyList_Check, PyList_GET_SIZE
from cpython.object cimport PyObject_GetIter
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.string cimport memset

from dlbf.kernels.types cimport int32_t, int64_t, likely, prefetch

import numpy as np

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* n) except NULL
    bint PyUnicode_Check(object o)
    PyObject* list_item "PyList_GET_ITEM"(object seq, Py_ssize_t i)
    PyObject* tuple_item "PyTuple_GET_ITEM"(object seq, Py_ssize_t i)
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


cdef class _View:
    """Owns one buffer of the current chunk."""
    cdef KeyRef ref

    def __dealloc__(self):
        key_close(&self.ref)


cdef class KeyReader:
    """Reads any batch of keys in chunks; see the module's docstring.

    Parameters
    ----------
    keys : iterable, numpy array or Arrow array
        The batch.  A single ``bytes`` or ``str`` is refused: it would be read as a batch of its parts.
    """

    def __cinit__(self, keys):
        self.pointer_bytes = bytearray(CHUNK_KEYS * sizeof(void*))
        self.length_bytes = bytearray(CHUNK_KEYS * sizeof(size_t))
        self.reference_bytes = bytearray(CHUNK_KEYS * sizeof(PyObject*))
        self.chunk.data = <const uint8_t**><char*>self.pointer_bytes
        self.chunk.n_bytes = <size_t*><char*>self.length_bytes
        self.chunk.n = 0
        self.references = <PyObject**><char*>self.reference_bytes
        self.n_references = 0
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
        # Not _drop(): that may touch Python objects already cleared.
        while self.n_references:
            self.n_references -= 1
            decref(self.references[self.n_references])
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

    cdef int _drop(self) except -1:
        """Let go of what the last chunk held."""
        while self.n_references:
            self.n_references -= 1
            decref(self.references[self.n_references])
        if self.views:
            self.views = []
        return 0

    cdef Py_ssize_t next_chunk(self) except -1:
        """Fill ``self.chunk`` with the next keys; 0 at the end."""
        cdef Py_ssize_t n
        self._drop()
        self.chunk.n = 0
        if self.mode == MODE_LIST or self.mode == MODE_TUPLE:
            n = self._fill_sequence()
        elif self.mode == MODE_ITERATOR:
            n = self._fill_iterator()
        elif self.mode == MODE_ARRAY:
            n = self._fill_array()
        else:
            n = self._fill_arrow()
        self.n_read += n
        return n

    cdef int _take(self, PyObject* item) except -1:
        """Append one key object to the chunk."""
        cdef Py_ssize_t n = self.chunk.n
        cdef Py_ssize_t size = 0
        cdef _View view
        if likely(PyBytes_Check(<object>item)):
            self.chunk.data[n] = <const uint8_t*>PyBytes_AS_STRING(<object>item)
            self.chunk.n_bytes[n] = PyBytes_GET_SIZE(<object>item)
        elif PyUnicode_Check(<object>item):
            self.chunk.data[n] = <const uint8_t*>PyUnicode_AsUTF8AndSize(<object>item, &size)
            self.chunk.n_bytes[n] = size
        else:
            view = _View()
            try:
                key_open_other(<object>item, &view.ref)
            except TypeError as error:
                raise TypeError(f"key number {self.n_read + n}: {error}") from None
            self.views.append(view)
            self.chunk.data[n] = view.ref.data
            self.chunk.n_bytes[n] = view.ref.n_bytes
        self.chunk.n = n + 1
        return 0

    cdef Py_ssize_t _fill_sequence(self) except -1:
        cdef bint is_list = self.mode == MODE_LIST
        cdef Py_ssize_t i, n, end
        cdef PyObject* item
        cdef object source = self.source
        # The list may have shrunk or grown since the last chunk: ask again.
        end = min(PyList_GET_SIZE(source) if is_list else PyTuple_GET_SIZE(source), self.position + CHUNK_KEYS)
        n = 0
        i = self.position
        while i < end:
            if i + AHEAD < end:
                item = list_item(source, i + AHEAD) if is_list else tuple_item(source, i + AHEAD)
                # An ordinary key of some fifty bytes lies in two cache lines.
                prefetch(item)
                prefetch(<const char*>item + 64)
            item = list_item(source, i) if is_list else tuple_item(source, i)
            if is_list:
                # A list can drop the object while the GIL is released; a tuple cannot.
                incref(item)
                self.references[self.n_references] = item
                self.n_references += 1
            if likely(PyBytes_Check(<object>item)):
                self.chunk.data[n] = <const uint8_t*>PyBytes_AS_STRING(<object>item)
                self.chunk.n_bytes[n] = PyBytes_GET_SIZE(<object>item)
                n += 1
            else:
                self.chunk.n = n
                self._take(item)
                n += 1
                if is_list:
                    # An object that exports a buffer may do so in Python, and change the list.
                    end = min(PyList_GET_SIZE(source), self.position + CHUNK_KEYS)
            i += 1
        self.chunk.n = n
        self.position = max(i, self.position)
        return self.chunk.n

    cdef Py_ssize_t _fill_iterator(self) except -1:
        cdef PyObject* item
        while self.chunk.n < CHUNK_KEYS:
            item = PyIter_Next(self.iterator)
            if item == NULL:
                break
            self.references[self.n_references] = item
            self.n_references += 1
            self._take(item)
        return self.chunk.n

    cdef Py_ssize_t _fill_array(self) except -1:
        cdef Py_ssize_t total = self.array_view.shape[0]
        cdef Py_ssize_t stride = self.array_view.strides[0]
        cdef Py_ssize_t width = self.array_view.itemsize
        cdef const uint8_t* base = <const uint8_t*>self.array_view.buf
        cdef const uint8_t* item
        cdef Py_ssize_t i, n = 0, length
        cdef Py_ssize_t end = min(total, self.position + CHUNK_KEYS)
        with nogil:
            for i in range(self.position, end):
                item = base + i * stride
                length = width
                # numpy pads with zeros and drops them on reading; so do we.
                while length and item[length - 1] == 0:
                    length -= 1
                self.chunk.data[n] = item
                self.chunk.n_bytes[n] = length
                n += 1
        self.chunk.n = n
        self.position = end
        return n

    cdef Py_ssize_t _fill_arrow(self) except -1:
        cdef Py_ssize_t i, at, n = 0, end, null_at = -1
        cdef const uint8_t* validity
        cdef const int32_t* offsets32
        cdef const int64_t* offsets64
        cdef const uint8_t* values
        cdef const int32_t* view
        while self.array == NULL or self.position >= self.array.length:
            if self.stream == NULL:
                if self.array == NULL or self.position >= self.array.length:
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
        end = min(self.array.length, self.position + CHUNK_KEYS)
        validity = <const uint8_t*>self.array.buffers[0] if self.array.null_count != 0 else NULL
        offsets32 = <const int32_t*>self.array.buffers[1]
        offsets64 = <const int64_t*>self.array.buffers[1]
        values = <const uint8_t*>self.array.buffers[1]
        if self.arrow_layout == ARROW_OFFSETS32 or self.arrow_layout == ARROW_OFFSETS64:
            values = <const uint8_t*>self.array.buffers[2]
        with nogil:
            for i in range(self.position, end):
                at = self.array.offset + i
                if validity != NULL and not (validity[at >> 3] >> (at & 7)) & 1:
                    null_at = i
                    break
                if self.arrow_layout == ARROW_OFFSETS32:
                    self.chunk.data[n] = values + offsets32[at]
                    self.chunk.n_bytes[n] = offsets32[at + 1] - offsets32[at]
                elif self.arrow_layout == ARROW_OFFSETS64:
                    self.chunk.data[n] = values + offsets64[at]
                    self.chunk.n_bytes[n] = offsets64[at + 1] - offsets64[at]
                elif self.arrow_layout == ARROW_FIXED:
                    self.chunk.data[n] = values + at * self.arrow_width
                    self.chunk.n_bytes[n] = self.arrow_width
                else:
                    # 16 bytes: length, then the string itself if it fits in 12,
                    # else prefix, buffer number, offset.
                    view = <const int32_t*>(values + 16 * at)
                    self.chunk.n_bytes[n] = view[0]
                    if view[0] <= 12:
                        self.chunk.data[n] = <const uint8_t*>(view + 1)
                    else:
                        self.chunk.data[n] = <const uint8_t*>self.array.buffers[2 + view[2]] + view[3]
                n += 1
        if null_at >= 0:
            raise ValueError(f"key number {self.n_read + null_at - self.position} is null; drop nulls first")
        self.chunk.n = n
        self.position = end
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
    while reader.next_chunk():
        for i in range(reader.chunk.n):
            out.append((<const char*>reader.chunk.data[i])[:reader.chunk.n_bytes[i]])
    return out
