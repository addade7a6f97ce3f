"""Bit fields of up to 32 bits at any bit offset of a byte buffer, little-endian.

The buffer must have at least 8 readable and writable bytes from the byte in which a field starts;
tables end with that much padding.
"""

from dlbf.kernels.types cimport load64, store64, uint8_t, uint32_t, uint64_t

cdef enum:
    PACKED_PADDING_BYTES = 8


cdef inline uint32_t packed_get(const uint8_t* data, uint64_t bit, uint32_t width) noexcept nogil:
    return <uint32_t>((load64(data + (bit >> 3)) >> (bit & 7)) & ((<uint64_t>1 << width) - 1))


cdef inline void packed_put(uint8_t* data, uint64_t bit, uint32_t width, uint32_t value) noexcept nogil:
    cdef uint64_t mask = ((<uint64_t>1 << width) - 1) << (bit & 7)
    cdef uint64_t word = load64(data + (bit >> 3))
    store64(data + (bit >> 3), (word & ~mask) | (<uint64_t>value << (bit & 7)))
