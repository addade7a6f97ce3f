"""A lock that processes share: one byte of a file, for one process at a time.

Unlike LMDB's own lock for writers, waiting for it can be interrupted, ends after a time if that is wanted, and tells
whom it waits for.  It is a record lock (``fcntl``): the system gives it back when the process dies, a forked child does
not inherit it, and it is known who has it.  To close any descriptor of the file drops it.

Nobody is woken when it is given back: who waits looks again and again.  A process that writes all the time would
always be faster, so everybody stands in line, at a second byte, when it has not done so for a millisecond.  In between
taking the lock and giving it back is one system call each.

Threads of one process need a lock of their own, taken before this one.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals

import logging
import os
from time import sleep

from dlbf.errors import StoreError

cdef extern from *:
    """
    #include <errno.h>
    #include <time.h>
    #ifdef _WIN32
    #define EXCLUSIVE 1
    #define SHARED 0
    #define UNLOCKED 2
    static int dlbf_lock(int fd, int kind, long long place) { (void)fd; (void)kind; (void)place; return ENOSYS; }
    static int dlbf_found(int fd, int kind, long long place, long long *start, long long *pid) {
        (void)fd; (void)kind; (void)place; *start = 0; *pid = 0; return 0;
    }
    static double dlbf_now(void) { return (double)clock() / CLOCKS_PER_SEC; }
    #else
    #include <fcntl.h>
    #include <unistd.h>
    #define EXCLUSIVE F_WRLCK
    #define SHARED F_RDLCK
    #define UNLOCKED F_UNLCK
    /* 0, or the error's number. */
    static int dlbf_lock(int fd, int kind, long long place) {
        struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = (off_t)place, .l_len = 1};
        while (fcntl(fd, F_SETLK, &lock) != 0)
            if (errno != EINTR) return errno;
        return 0;
    }
    /* Whether another process's lock is in the way; where that begins, and whose it is. */
    static int dlbf_found(int fd, int kind, long long place, long long *start, long long *pid) {
        struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = (off_t)place, .l_len = 1};
        if (fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
        *start = (long long)lock.l_start;
        *pid = (long long)lock.l_pid;
        return 1;
    }
    static double dlbf_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    #endif
    """
    int EACCES, EAGAIN
    int EXCLUSIVE, SHARED, UNLOCKED
    int lock_byte "dlbf_lock"(int fd, int kind, long long place) nogil
    bint lock_found "dlbf_found"(int fd, int kind, long long place, long long* start, long long* pid) nogil
    double now "dlbf_now"() noexcept nogil

logger = logging.getLogger("dlbf.storage")

# So long a process may go on without standing in line.
cdef double TURN_SECONDS = 0.001
# Who waits looks again after an eighth of the time it has waited, within these.
cdef double LEAST_PAUSE = 0.00005
cdef double MOST_PAUSE = 0.05
# Then it is said in the log whom one waits for.
NOTICE_SECONDS = 3.0


class Busy(StoreError):
    """Somebody else is writing, and the caller did not want to wait."""


@cython.final
cdef class FileLock:
    """See the module.

    Parameters
    ----------
    file : file or int
        The file or its descriptor, open for writing; for reading is enough for who only shares the lock.
    place : int
        Which byte; the one before it is where processes stand in line.
    where : path
        What the lock is of, for messages.
    timeout : float, optional
        Most seconds to wait.
    advisory : bool
        There is another lock behind this one.  So where the file system has none, or gives the whole file to
        somebody (NFS makes such locks of ``flock``), it counts as taken.
    """

    def __init__(self, file, long long place, where, timeout=None, bint advisory=False):
        self.file = file
        self.descriptor = file if isinstance(file, int) else file.fileno()
        self.place = place
        self.where = where
        self.timeout = -1 if timeout is None else timeout
        self.advisory = advisory
        self.lined_up = now() - TURN_SECONDS

    cdef bint _try(self, long long place, bint shared) except -1:
        cdef int kind = SHARED if shared else EXCLUSIVE
        cdef int problem = lock_byte(self.descriptor, kind, place)
        cdef long long start, pid
        if problem == 0:
            return True
        if problem == EAGAIN or problem == EACCES:
            return self.advisory and lock_found(self.descriptor, kind, place, &start, &pid) and start < self.place - 1
        if self.advisory:
            return True
        raise OSError(problem, os.strerror(problem), str(self.where))

    cpdef bint acquire(self, bint wait=True, bint shared=False) except -1:
        """Take it, alone or with others who share it; False if that is not possible now and the caller does not wait.

        Raises
        ------
        StoreError
            If it was not given back for ``timeout`` seconds.
        """
        if now() - self.lined_up < TURN_SECONDS and self._try(self.place, shared):
            self.taken = True
            return True
        return self._line_up(wait, shared)

    cdef bint _line_up(self, bint wait, bint shared) except -1:
        cdef double began = now()
        cdef double waited = 0, pause
        cdef bint told = False, first = False
        try:
            while True:
                first = first or self._try(self.place - 1, shared)
                if first and self._try(self.place, shared):
                    self.taken = True
                    self.lined_up = now()
                    return True
                if not wait:
                    return False
                waited = now() - began
                if waited >= self.timeout >= 0:
                    raise StoreError(
                        f"{self.where}: {self.holder()} is writing, and has not ended within lock_timeout="
                        f"{self.timeout:g} seconds; nothing has been stored. Wait for that process, or end it"
                    )
                if waited >= NOTICE_SECONDS and not told:
                    told = True
                    logger.warning(
                        "%s: waiting for %s, which is writing; Ctrl-C ends the wait, lock_timeout= limits it",
                        self.where, self.holder(),
                    )
                # The pause alone notices only signals that come in it.
                PyErr_CheckSignals()
                pause = min(max(waited / 8, LEAST_PAUSE), MOST_PAUSE)
                sleep(pause if self.timeout < 0 else min(pause, self.timeout - waited))
        finally:
            if first:
                lock_byte(self.descriptor, UNLOCKED, self.place - 1)

    cpdef release(self):
        """Give it back; a second time nothing happens."""
        if self.taken:
            self.taken = False
            lock_byte(self.descriptor, UNLOCKED, self.place)

    def close(self):
        """The descriptor is about to be closed: it may be of another file soon."""
        self.release()
        self.descriptor = -1

    def holder(self):
        """Who has it, in words."""
        cdef long long start = 0, pid = 0
        if not lock_found(self.descriptor, EXCLUSIVE, self.place, &start, &pid):
            lock_found(self.descriptor, EXCLUSIVE, self.place - 1, &start, &pid)
        if pid <= 0:
            return "another process"
        state = ""
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            state = f" ({name}{', which is stopped' if rest.split()[0] in 'Tt' else ''})"
        except (OSError, IndexError):
            pass  # it has ended, or the system does not tell
        return f"process {pid}{state}"
