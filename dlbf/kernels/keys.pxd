"""Keys as C sees them: a pointer and a length.

One key (``KeyRef``): bytes as they are, str as UTF-8, any other contiguous buffer.
Many keys (``KeyReader``): a stream of batches, each readable chunk by chunk without the GIL.
"""

from cpython.buffer cimport Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.ref cimport PyObject

from dlbf.kernels.types cimport ArrowArray, ArrowArrayStream, ArrowSchema, uint8_t

cdef enum:
    # Keys per chunk: large enough to fill the pipelines of hashing and probing, small enough that what
    # they keep for each key stays in the first-level cache.
    CHUNK_KEYS = 2048
    # Objects taken in one hold of the GIL.  Two threads that ask for it wait for each other, which costs as much as
    # a few thousand keys, so the more the better, as long as those that are let go and those that are
    # taken next are in the second-level cache together.
    HELD_KEYS = 8192

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
    cdef KeyChunk chunk                  # what next_chunk() gave
    cdef readonly Py_ssize_t n_read      # keys handed out in all chunks so far
    cdef object source
    cdef object iterator
    cdef int mode
    cdef Py_ssize_t position             # of the next key in a list, array or Arrow array
    # The batch is open: its pointers are in the arrays below.  Else next_chunk() reads the source, and they have
    # room for a chunk.
    cdef bint opened
    cdef int fault                       # why next_chunk() has stopped in an Arrow array, FAULT_* of keys.pyx
    cdef bytearray pointer_bytes, length_bytes, reference_bytes, coming_bytes
    cdef const uint8_t** pointers
    cdef size_t* lengths
    cdef Py_ssize_t n_room
    cdef Py_ssize_t n_open, n_given      # keys in the arrays, and how many of them next_chunk() has given
    cdef list views                      # buffers opened for the batch
    # Objects that stay alive: a tuple's own, or the references.
    cdef PyObject** items
    cdef Py_ssize_t n_items, n_seen
    cdef PyObject** references
    cdef Py_ssize_t n_references
    cdef PyObject** coming               # where the list's next objects were; only to prefetch them
    cdef Py_ssize_t n_coming
    # numpy arrays of fixed-width bytes
    cdef Py_buffer array_view
    cdef bint has_array_view
    # Arrow: taken from whoever offered them, so nobody else can free them; ours to release
    cdef ArrowArrayStream stream
    cdef ArrowArray array
    cdef int arrow_layout
    cdef Py_ssize_t arrow_width

    cdef Py_ssize_t next_batch(self) except -1
    cdef Py_ssize_t next_chunk(self) noexcept nogil
    cdef int _make_room(self, Py_ssize_t n) except -1
    cdef void _let_go(self) noexcept
    cdef int _open_arrow_schema(self, const ArrowSchema* schema) except -1
    cdef int _check_arrow_array(self) except -1
    cdef int _raise_fault(self) except -1
    cdef int _take_list(self) except -1
    cdef Py_ssize_t _open_iterated(self) except -1
    cdef Py_ssize_t _open_items(self) except -1
    cdef int _open_item(self, PyObject* item, Py_ssize_t i) except -1
    cdef Py_ssize_t _open_arrow_array(self) except -1
    cdef Py_ssize_t _read_items(self) noexcept nogil
    cdef Py_ssize_t _read_array(self) noexcept nogil
    cdef Py_ssize_t _read_arrow(self) noexcept nogil
