"""Readers of filters for other Cython programs; the contract is in ``capi.pxd``."""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.string cimport memset

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.hashing cimport hash_for_filter, hash_key
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk, KeyRef, key_close, key_open
from dlbf.kernels.payload cimport payload_check, payload_hold
from dlbf.kernels.types cimport gate_hold, gate_hold_done, uint8_t, uint64_t


# Never cleared by the collector: __dealloc__ needs the filter that the reader keeps alive.
@cython.no_gc_clear
cdef class FilterReader:
    """A filter held still, to be asked without the GIL by other Cython programs (or by Python ones).

    Parameters
    ----------
    filter : any filter of dlbf
        It cannot be changed until the reader is closed: other threads wait, this one gets an error.

    Raises
    ------
    TypeError
        If it is not a filter.
    ValueError
        If the filter is closed.
    ChecksumError
        If it is mapped from a file that was changed: all of a mapped filter is checked here, once.

    Notes
    -----
    What C code sees is in ``dlbf/capi.pxd``: ``contains(key, n_bytes)`` and ``contains_many(keys, n_bytes, n_keys,
    answers)``, both without the GIL and from any number of threads.

    Examples
    --------
    >>> import dlbf
    >>> f = dlbf.CuckooFilter(100)
    >>> f.add(b"key")
    >>> with FilterReader(f) as reader:
    ...     b"key" in reader, b"other" in reader
    (True, False)
    """

    def __cinit__(self, filter):
        cdef FilterCore core
        if not isinstance(filter, FilterCore):
            raise TypeError(f"expected a filter of dlbf, found {type(filter).__name__}")
        core = filter
        # Waits for writers, gives the GIL up meanwhile, and keeps later ones out.
        gate_hold(&core.gate)
        try:
            payload_check(core)
        except BaseException:
            gate_hold_done(&core.gate)
            raise
        self.filter = filter
        self.core = <void*>core
        self.thread = PyThread_get_thread_ident()
        payload_hold(core, self.thread, 1)

    def __dealloc__(self):
        if self.core != NULL:
            payload_hold(<FilterCore>self.core, self.thread, -1)
            gate_hold_done(&(<FilterCore>self.core).gate)
            self.core = NULL

    def close(self):
        """Let the filter go; writers that waited go on.  No thread may be asking the reader at this moment."""
        cdef FilterCore core
        if self.core != NULL:
            core = self.filter
            self.core = NULL
            self.filter = None
            payload_hold(core, self.thread, -1)
            gate_hold_done(&core.gate)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __contains__(self, key):
        cdef KeyRef ref
        cdef bint found
        key_open(key, &ref)
        found = self.contains(<const char*>ref.data, ref.n_bytes)
        key_close(&ref)
        return found

    cdef bint contains(self, const char* key, size_t n_bytes) noexcept nogil:
        cdef void* at = self.core
        cdef uint64_t h
        if at == NULL:
            return True
        h = hash_key(&(<FilterCore>at).hash_key, <const uint8_t*>key, n_bytes)
        return (<FilterCore>at)._contains(
            hash_for_filter(h, (<FilterCore>at).filter_id), <const uint8_t*>key, n_bytes
        )

    cdef void contains_many(
        self, const char* const* keys, const size_t* n_bytes, size_t n_keys, unsigned char* answers,
    ) noexcept nogil:
        cdef void* at = self.core
        cdef uint64_t hashes[CHUNK_KEYS]
        cdef KeyChunk chunk
        cdef size_t done = 0
        if at == NULL:
            memset(answers, 1, n_keys)
            return
        chunk.hashes = NULL
        chunk.regions = NULL
        while done < n_keys:
            chunk.n = <Py_ssize_t>min(n_keys - done, <size_t>CHUNK_KEYS)
            chunk.data = <const uint8_t**>(keys + done)
            chunk.n_bytes = <size_t*>(n_bytes + done)
            (<FilterCore>at)._hash_chunk(&chunk, hashes)
            (<FilterCore>at)._contains_chunk(&chunk, hashes, answers + done)
            done += chunk.n
