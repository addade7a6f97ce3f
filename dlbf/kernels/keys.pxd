"""Keys as C sees them: a pointer and a length.

One key (``KeyRef``): bytes as they are, str as UTF-8, any other contiguous buffer.
Many keys (``KeyReader``): a stream of chunks that stay valid without the GIL.
"""

from cpython.buffer cimport Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.ref cimport PyObject

from dlbf.kernels.types cimport ArrowArray, ArrowArrayStream, ArrowSchema, uint8_t

cdef enum:
    # Keys per chunk: large enough that taking the GIL back is rare, small enough that
    # a chunk of ordinary keys stays in the second-level cache.
    CHUNK_KEYS = 2048

ctypedef struct KeyRef:
    const uint8_t* data
    size_t n_bytes
    bint has_view
    Py_buffer view

ctypedef struct KeyChunk:
    Py_ssize_t n
    const uint8_t** data
    size_t* n_bytes

cdef int key_open_other(object key, KeyRef* ref) except -1
cdef void key_close_view(KeyRef* ref) noexcept


cdef inline int key_open(object key, KeyRef* ref) except -1:
    """Fill ``ref`` from a key object; pair with ``key_close``.  ``key`` must outlive ``ref``."""
    if PyBytes_Check(key):
        ref.data = <const uint8_t*>PyBytes_AS_STRING(key)
        ref.n_bytes = PyBytes_GET_SIZE(key)
        ref.has_view = False
        return 0
    return key_open_other(key, ref)


cdef inline void key_close(KeyRef* ref) noexcept:
    if ref.has_view:
        key_close_view(ref)


cdef class KeyReader:
    cdef KeyChunk chunk
    cdef readonly Py_ssize_t n_read      # keys handed out in all chunks so far
    cdef object source
    cdef object iterator
    cdef bytearray pointer_bytes, length_bytes, reference_bytes
    cdef PyObject** references
    cdef Py_ssize_t n_references
    cdef list views                      # buffers opened for the current chunk
    cdef int mode
    cdef Py_ssize_t position
    # numpy arrays of fixed-width bytes
    cdef Py_buffer array_view
    cdef bint has_array_view
    # Arrow
    cdef object capsules
    cdef ArrowArrayStream* stream
    cdef ArrowSchema* schema
    cdef ArrowSchema own_schema
    cdef ArrowArray* array
    cdef ArrowArray own_array
    cdef int arrow_layout
    cdef Py_ssize_t arrow_width

    cdef Py_ssize_t next_chunk(self) except -1
    cdef int _drop(self) except -1
    cdef int _take(self, PyObject* item) except -1
    cdef int _open_arrow_schema(self, ArrowSchema* schema) except -1
    cdef Py_ssize_t _fill_sequence(self) except -1
    cdef Py_ssize_t _fill_iterator(self) except -1
    cdef Py_ssize_t _fill_array(self) except -1
    cdef Py_ssize_t _fill_arrow(self) except -1
