"""A program of its own that asks dlbf's filters: what ``docs/cython.md`` shows, compiled and run by the tests."""

from dlbf cimport FilterReader

from libc.stdlib cimport free, malloc
from libc.string cimport memchr


cdef Py_ssize_t count_lines(FilterReader reader, const char* text, size_t n_bytes) noexcept nogil:
    """How many lines of a text the filter may hold; no Python object is touched."""
    cdef const char* line = text
    cdef const char* end = text + n_bytes
    cdef const char* stop
    cdef Py_ssize_t n = 0
    while line < end:
        stop = <const char*>memchr(line, 10, end - line)
        if stop == NULL:
            stop = end
        n += reader.contains(line, stop - line)
        line = stop + 1
    return n


def count(filter, bytes text):
    """Lines of ``text`` that may be in ``filter``, one by one."""
    cdef FilterReader reader = FilterReader(filter)
    cdef const char* data = text
    cdef size_t n_bytes = len(text)
    cdef Py_ssize_t n
    with nogil:
        n = count_lines(reader, data, n_bytes)
    reader.close()
    return n


def ask_many(filter, list keys):
    """The answers for a list of bytes objects, all at once."""
    cdef FilterReader reader = FilterReader(filter)
    cdef size_t i, n = len(keys)
    cdef const char** data = <const char**>malloc(max(n, 1) * sizeof(char*))
    cdef size_t* n_bytes = <size_t*>malloc(max(n, 1) * sizeof(size_t))
    cdef bytearray answers = bytearray(n)
    cdef unsigned char* out = answers
    if data == NULL or n_bytes == NULL:
        free(data)
        free(n_bytes)
        raise MemoryError
    try:
        for i in range(n):
            data[i] = keys[i]
            n_bytes[i] = len(keys[i])
        with nogil:
            reader.contains_many(data, n_bytes, n, out)
    finally:
        free(data)
        free(n_bytes)
        reader.close()
    return [bool(answer) for answer in answers]


def ask_closed(filter, bytes key):
    """What a reader answers after it was closed, alone and in a batch."""
    cdef FilterReader reader = FilterReader(filter)
    cdef const char* data = key
    cdef size_t n_bytes = len(key)
    cdef unsigned char answer = 7
    reader.close()
    reader.contains_many(&data, &n_bytes, 1, &answer)
    return reader.contains(data, n_bytes), answer
