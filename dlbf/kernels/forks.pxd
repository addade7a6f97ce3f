"""Which process this is: a count that rises in every child of fork()."""

from dlbf.kernels.types cimport uint64_t

# Whoever holds what a child must not use keeps the count of the moment it was made, and compares.
cdef uint64_t fork_count
