"""The log in LMDB's own transaction: the common append, and the commit."""

from cpython.bytes cimport PyBytes_GET_SIZE

from dlbf.kernels.environment cimport WritesCore
from dlbf.kernels.journal cimport reached
from dlbf.kernels.types cimport likely


cdef class LmdbLogCore(LogCore):
    """Base of :class:`dlbf.storage.lmdblog.LmdbLog`, which brings ``append_slowly``."""

    def __init__(self, transaction, main_db, bytes tail_key):
        self.tail = Tail()
        self.put_record = transaction.put
        self.commit_txn = transaction.commit
        self.main_db = main_db
        self.tail_key = tail_key

    cpdef append(self, txn, uint64_t position, bytes record):
        """Write the record of the transaction that ``txn`` is; set ``tail.known`` when it is committed."""
        cdef Tail tail = self.tail
        if likely(
            tail.known == position - 1 and (tail.last == 0 or tail.last == position - 1)
            and PyBytes_GET_SIZE(record) <= tail.room()
        ):
            tail.known = 0
            tail.stage(record, position)
            self.put_record(txn, self.tail_key, tail.value, True, True, False, self.main_db)
        else:
            self.append_slowly(txn, position, record)

    cpdef commit(
        self, WritesCore writes, txn, uint64_t position, bytes record, str written="journal-written",
        str done="commit-done"
    ):
        """Append the record, commit and let another process write; ``written`` and ``done`` name the two steps."""
        self.append(txn, position, record)
        reached(written)
        self.commit_txn(txn)
        writes.give_turn()
        self.tail.known = position
        reached(done)
