from typing import Any

from dlbf.kernels.environment import WritesCore
from dlbf.kernels.journal import Tail

class LmdbLogCore:
    @property
    def tail(self) -> Tail: ...
    def __init__(self, transaction: Any, main_db: Any, tail_key: bytes) -> None: ...
    def append(self, txn: Any, position: int, record: bytes) -> None: ...
    def commit(
        self,
        writes: WritesCore,
        txn: Any,
        position: int,
        record: bytes,
        written: str = "journal-written",
        done: str = "commit-done",
    ) -> None: ...
