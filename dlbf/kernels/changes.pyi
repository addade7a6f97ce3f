from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import lmdb

from dlbf.kernels.environment import WritesCore
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.ledger import LedgerCore
from dlbf.kernels.lmdblog import LmdbLogCore
from dlbf.kernels.log import LogCore
from dlbf.kernels.lookup import LookupCore
from dlbf.kernels.traffic import TrafficCore

_Key: TypeAlias = bytes | str | bytearray | memoryview
_Value: TypeAlias = bytes | bytearray | memoryview

def commit_change(
    writes: WritesCore,
    log: LogCore,
    ledger: LedgerCore,
    txn: Any,  # of the log's own kind
    position: int,
    operations: OperationLog,
) -> None: ...

class SingleChanges:
    n_allowed: int
    def __init__(
        self,
        writes: WritesCore,
        log: LmdbLogCore,
        ledger: LedgerCore,
        traffic: TrafficCore,
        transaction: type[lmdb.Transaction],
        map_errors: tuple[type[Exception], ...],
        max_plain_bytes: int,
    ) -> None: ...
    def allow(self, n_changes: int) -> None: ...

class StoreCore(LookupCore):
    _changes: SingleChanges
    def __setitem__(self, key: _Key, value: _Value, /) -> None: ...
    def __delitem__(self, key: _Key, /) -> None: ...
    def put(self, key: _Key, value: _Value) -> None: ...
    def delete(self, key: _Key) -> bool: ...

class PutPath:
    _dirty: bool
    _torn: bool
    _txn: Any  # lmdb.Transaction[bytes]; None: it has ended
    _redo: list[tuple[bytes, bytes | None]] | None
    @property
    def _ended(self) -> bool: ...
    def _begin(self, writes: WritesCore) -> None: ...
    def _end(self) -> None: ...
    def _check_thread(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def _attach_put(
        self, plain_put: Callable[..., bool], journal: OperationLog, full_error: type[Exception], max_plain_bytes: int
    ) -> None: ...
    def _detach_put(self) -> None: ...
    def put(self, key: _Key, value: _Value) -> bool: ...
