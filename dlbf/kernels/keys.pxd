"""Batches of keys of every kind, each read by a ``KeyReader`` of its own."""

from dlbf.kernels.keychunks cimport (
    CHUNK_KEYS, HELD_KEYS, KeyChunk, KeyReader, KeyRef, key_close, key_open, key_open_other,
)


# The reader of a batch.  A single ``bytes`` or ``str`` is refused: it would be read as a batch of its parts.
cdef KeyReader open_keys(object keys)
