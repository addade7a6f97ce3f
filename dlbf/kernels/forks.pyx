"""Which process this is: a count that rises in every child of fork()."""

cdef extern from *:
    """
    #ifndef _WIN32
    #include <pthread.h>
    static int dlbf_at_fork(void (*in_child)(void)) { return pthread_atfork(NULL, NULL, in_child); }
    #else
    static int dlbf_at_fork(void (*in_child)(void)) { (void)in_child; return 0; }
    #endif
    """
    int at_fork "dlbf_at_fork"(void (*in_child)() noexcept nogil)

fork_count = 0


cdef void count_fork() noexcept nogil:
    global fork_count
    fork_count += 1


at_fork(count_fork)


def forks():
    """How often this process, or one that it was forked from, was made by fork() since dlbf was imported."""
    return fork_count
