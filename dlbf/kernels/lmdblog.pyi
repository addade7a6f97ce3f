import lmdb

from dlbf.kernels.journal import Tail
from dlbf.kernels.log import LogCore

class LmdbLogCore(LogCore):
    @property
    def tail(self) -> Tail: ...
    def __init__(self, transaction: type[lmdb.Transaction], main_db: lmdb._Database, tail_key: bytes) -> None: ...
    def append(self, txn: lmdb.Transaction, position: int, record: bytes) -> None: ...
