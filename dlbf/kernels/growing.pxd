"""A filter that grows by itself, without its keys: pages of fingerprints that split in two.

The top bits of a key's hash name its page, the next 8 its bucket in the page, and as many of those that follow as the
page's depth gives new entries are its fingerprint.  Which page has a key is a matter of the *directory*: 2^D pointers,
D the depth of the deepest page; a page of depth d has 2^(D - d) of them.  A page with more than ``MOST_ENTRIES``
becomes two of depth d + 1: the top bit of a bucket's number says in which of the two an entry goes on, and the first
bit of its fingerprint becomes the lowest of its bucket's number.  So an entry loses a bit with each split, while new
ones are made as long as their page's depth says (``lengths``, from ``dlbf.filters.growing``).

An entry that has no bits left is *void*: it stands for two buckets after the next split, for four after another one.
Pages keep those in a list of their own, one item however many buckets it stands for; from 2^8 on, the whole page, both
pages of a split get it.  So nothing is ever lost, and the rate that an entry was given never changes.

**Removing** takes the longest entry that matches.  It may be another key's, whose bits begin with those of the removed
key's own: then that one, which stays, stands for both.  A shorter one need not match the other key.

::

    page, in words of 64 bits, little-endian:
        0     u16 entries n, u16 void items, u8 depth, u8 width of an entry w, u16 zero
        1     entries in the first 32, 64, .. 224 buckets, 9 bits each
        2     256 + n bits: for each bucket a one for each of its entries, then a zero
              n entries of w bits, those of a bucket together, ascending: fingerprint, a one, zeros
              void items of 16 bits, ascending: age << 8 | bucket; the age is the logarithm of the buckets it stands for

    payload:  u64 number of pages, u64 zero, then the pages in the order of the hashes they hold

In memory every page has an allocation of its own.  A payload that is mapped is used where it is.
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.growing_pages cimport MOST_DEPTH
from dlbf.kernels.types cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MOST_ENTRIES = 384          # of a page, before it is split
    # How much deeper than the number of pages calls for a page may be.
    DEPTH_TO_SPARE = 8


cdef class GrowingCore(FilterCore):
    cdef uint64_t** pages        # 2^depth pointers
    cdef uint32_t depth
    cdef uint64_t n_pages, n_words
    cdef uint32_t first_depth    # of the pages that an empty filter has
    cdef bint has_own_pages      # else they are in the payload
    cdef uint8_t lengths[MOST_DEPTH + 1]

    cdef void _free_pages(self) noexcept nogil
    cdef bint _make_empty(self) noexcept nogil
    cdef uint64_t _place(self, uint64_t h) noexcept nogil
    cdef int _split(self, uint64_t place) noexcept nogil
    cdef void _set_page(self, uint64_t place, uint64_t* old, uint64_t* new) noexcept nogil
    cdef void _strike_void(self, uint64_t h, uint64_t place, uint32_t item) noexcept nogil
    cdef int _need_pages(self) except -1
    cdef int _index_payload(self) except -1
