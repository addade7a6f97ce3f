"""One key opened, and what all readers of many keys share.

Whoever reads many calls ``next_batch`` with the GIL, and then ``next_chunk`` without it until that has no more:

    while reader.next_batch():
        with nogil:
            while reader.next_chunk():
                ...                      # reader.chunk; leaving early is allowed, the next batch goes on from there

Invariant: between two calls of ``next_chunk`` every pointer of the chunk stays valid, whatever other threads do to the
source.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* n) except NULL
    bint PyUnicode_Check(object o)


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
        hint = "encode it first, for example with str(key), or integers with dlbf.int_key(key)"
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


cdef class KeyReader:
    """Reads one kind of batch; this base has no keys."""

    cdef Py_ssize_t next_batch(self) except -1:
        """Prepare keys for ``next_chunk``; returns an upper bound of their number, 0 at the end."""
        return 0

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        """Point ``self.chunk`` at the next keys of the batch; 0 when there are no more that need no GIL."""
        return 0

    cdef int make_room(self, Py_ssize_t n) except -1:
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

    cdef Py_ssize_t give(self, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
        """Point ``self.chunk`` at ``n`` keys of the room from number ``first`` on."""
        self.chunk.data = self.pointers + first
        self.chunk.n_bytes = self.lengths + first
        self.chunk.n = n
        self.n_read += n
        return n
