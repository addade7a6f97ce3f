"""Filters for other Cython programs: asked by pointer and length, without the GIL and without Python objects.

::

    from dlbf cimport FilterReader

    cdef FilterReader reader = FilterReader(filter)     # any filter: made here, or by dlbf.open_filter
    with nogil:
        found = reader.contains(key, n_bytes)           # False: certainly absent.  True: maybe there.
    reader.close()

The contract, in full in ``docs/cython.md``:

* **Lifetime.**  A reader keeps its filter alive.  Keys are only read during the call.  After ``close()`` (or when the
  reader is freed) every answer is "maybe".
* **Writers wait.**  From its making to its ``close()`` a reader keeps the filter as it is: ``add`` and the like wait in
  other threads, and raise ``DlbfError`` in the thread that made the reader, which would wait for itself.
* **GIL.**  Making and closing need it; ``contains`` and ``contains_many`` never take it.
* **Threads.**  Any number of them may ask one reader at once.  None may ask while another closes it.
* **Compatibility.**  Only what is in this file is promised to stay: within a major version fields keep their places and
  new methods come last, so a program compiled against an older minor version goes on working.
"""


cdef class FilterReader:
    cdef object filter          # kept alive; None once closed
    cdef void* core             # NULL once closed
    cdef size_t thread          # that made it

    # Whether the key may be in the filter; never False for a key that is.
    cdef bint contains(self, const char* key, size_t n_bytes) noexcept nogil
    # The same for n_keys of them: answers[i] becomes 0 or 1.  Faster than one by one where the filter exceeds the
    # caches.
    cdef void contains_many(
        self, const char* const* keys, const size_t* n_bytes, size_t n_keys, unsigned char* answers,
    ) noexcept nogil
