import lmdb

from dlbf.kernels.environment import WritesCore
from dlbf.kernels.journal import Tail

class LmdbLogCore:
    @property
    def tail(self) -> Tail: ...
    def __init__(self, transaction: type[lmdb.Transaction], main_db: lmdb._Database, tail_key: bytes) -> None: ...
    def append(self, txn: lmdb.Transaction, position: int, record: bytes) -> None: ...
    def commit(
        self,
        writes: WritesCore,
        txn: lmdb.Transaction,
        position: int,
        record: bytes,
        written: str = "journal-written",
        done: str = "commit-done",
    ) -> None: ...
