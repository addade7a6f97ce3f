from typing import Any

from dlbf.kernels.environment import WritesCore

class LogCore:
    def commit(
        self,
        writes: WritesCore,
        txn: Any,  # of the log's own kind
        position: int,
        record: bytes,
        written: str = "journal-written",
        done: str = "commit-done",
    ) -> None: ...
