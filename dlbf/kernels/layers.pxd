"""Three layers as one filter: what a store asks.

::

    query(x) = (base(x) or delta(x)) and x not in absent

*base* is a static filter of the keys there were when it was made; nothing ever changes it, and it may be shared.
*delta* are cuckoo tables of keys that were added since and that the base denies.  *absent* are keys known not to be
there although base or delta let them pass (see ``absent.pxd``): a cache, in memory only, which decides nothing about
the other two.  So the same operations on the same bytes give the same bytes, whatever was read in between.

What keeps a key from being denied:

* **the base decides**: adding a key that the base lets pass changes no table, and neither does removing it.  The base
  never changes, so both always decide alike, and what is taken out of a table was put into it.
* **the first table that matches**: an added key goes into the first table that lets it pass already, and into the last
  one if none does.  Tables before the one that has a key therefore never match it: they did not when it came, and what
  they take in later equals what they had.  So the key is taken out of the first table that matches, which has it.
  That tables see the same hash, so that a key has the same place in all of them, changes nothing about this; but
  most questions for other keys end with a look at the suffixes there, table beside table (``may_match``).
* **absent last**: a key is struck before anything else happens to it.
"""

from dlbf.kernels.absent cimport AbsentSet
from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.cuckoo cimport Cuckoo
from dlbf.kernels.types cimport uint8_t, uint32_t, uint64_t

cdef enum:
    # Tables that are planned for are half of that: the rest is for keys that come while the next base is being made.
    MAX_TABLES = 8

ctypedef struct Table:
    Cuckoo cuckoo
    uint8_t* data
    uint64_t filter_id
    uint64_t n_keys


# What is asked of all tables at once; see alike.h.
ctypedef struct Suffixes:
    bint in_step              # a key has the same place in all tables, and its suffix there says something
    int at_once               # that a word of a bucket has: all four, or two
    uint64_t mask
    uint64_t ones[8]          # for words in which they start at each of the lowest eight bits
    uint64_t tops[8]
    const uint8_t* data[MAX_TABLES]


cdef class LayeredCore(FilterCore):
    cdef readonly FilterCore base
    cdef bint is_plain              # the base is a ribbon filter, without a model
    cdef readonly AbsentSet absent
    cdef Table table[MAX_TABLES]
    cdef int n_tables
    cdef Suffixes suffixes
    cdef uint64_t table_room        # keys after which another table is begun
    cdef list tables                # the filters over the same bytes; they keep them alive

    cdef void _set_suffixes(self, uint32_t n_bits) noexcept
    cdef int _match(self, uint64_t h) noexcept nogil
    cdef void _prefetch_tables(self, uint64_t h) noexcept nogil
    cdef int _remember(self, const uint8_t* key, size_t n) noexcept


cdef inline void layered_remember(LayeredCore filter, const uint8_t* key, size_t n) noexcept:
    """A key that passes was read and is not there, and nothing was changed since the position that it was read at."""
    filter._remember(key, n)
