"""Shared integer types and the platform leaves of portable.h.

In anything stored or hashed: uint8_t .. uint64_t.  Py_ssize_t only counts things in memory.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from cpython.buffer cimport Py_buffer


cdef struct Export:
    # A buffer that an object has taken.  As a field of its own the collector would forget it without releasing it, and
    # whoever gave the buffer would be freed while it is in use; inside of a struct only PyBuffer_Release lets it go.
    Py_buffer view


cdef extern from "portable.h" nogil:
    void prefetch "dlbf_prefetch"(const void* p) noexcept
    bint likely "dlbf_likely"(bint x) noexcept
    bint unlikely "dlbf_unlikely"(bint x) noexcept
    int popcount64 "dlbf_popcount64"(uint64_t x) noexcept
    uint64_t parity64 "dlbf_parity64"(uint64_t x) noexcept
    bint counts_ones "dlbf_counts_ones"() noexcept
    uint64_t counted_ones "dlbf_counted_ones"(uint64_t x) noexcept
    int ctz64 "dlbf_ctz64"(uint64_t x) noexcept
    int select64 "dlbf_select64"(uint64_t x, int r) noexcept
    bint selects "dlbf_selects"() noexcept
    int selected64 "dlbf_selected64"(uint64_t x, int r) noexcept
    uint64_t bswap64 "dlbf_bswap64"(uint64_t x) noexcept
    uint64_t load64 "dlbf_load64"(const uint8_t* p) noexcept
    uint32_t load32 "dlbf_load32"(const uint8_t* p) noexcept
    void store64 "dlbf_store64"(uint8_t* p, uint64_t x) noexcept
    void store32 "dlbf_store32"(uint8_t* p, uint32_t x) noexcept
    uint64_t mulhi64 "dlbf_mulhi64"(uint64_t a, uint64_t b) noexcept
    uint64_t mulfold64 "dlbf_mulfold64"(uint64_t a, uint64_t b) noexcept
    uint64_t rotl64 "dlbf_rotl64"(uint64_t x, int r) noexcept
    void memory_barrier "dlbf_memory_barrier"() noexcept


cdef extern from "portable.h":
    ctypedef struct Crowd "dlbf_crowd":
        int32_t inside
        unsigned long forker

    ctypedef struct Gate "dlbf_gate":
        int32_t state
        int32_t waiting
        int32_t held
        int32_t wanted
        int32_t wrote
        Crowd* crowd

    # All of these are called with the GIL held; they give it up while they wait.
    void gate_pause "dlbf_gate_pause"() noexcept
    void gate_read "dlbf_gate_read"(Gate* g) noexcept
    void gate_read_done "dlbf_gate_read_done"(Gate* g) noexcept
    void gate_hold "dlbf_gate_hold"(Gate* g) noexcept
    void gate_hold_done "dlbf_gate_hold_done"(Gate* g) noexcept
    void gate_write "dlbf_gate_write"(Gate* g) noexcept
    void gate_write_done "dlbf_gate_write_done"(Gate* g) noexcept
    void gate_read_one "dlbf_gate_read_one"(Gate* g) noexcept
    bint gate_try_read "dlbf_gate_try_read"(Gate* g) noexcept
    void gate_read_one_done "dlbf_gate_read_one_done"(Gate* g) noexcept
    void gate_write_one "dlbf_gate_write_one"(Gate* g) noexcept
    void gate_write_one_done "dlbf_gate_write_one_done"(Gate* g) noexcept
    bint gate_try_write_one "dlbf_gate_try_write_one"(Gate* g) noexcept

    cdef struct ArrowSchema:
        const char* format
        int64_t n_children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*)

    cdef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        const void** buffers
        void (*release)(ArrowArray*)

    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*)
        int (*get_next)(ArrowArrayStream*, ArrowArray*)
        const char* (*get_last_error)(ArrowArrayStream*)
        void (*release)(ArrowArrayStream*)
