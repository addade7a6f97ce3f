from collections.abc import Callable
from typing import Any, TypeAlias

from dlbf.kernels.core import FilterCore
from dlbf.kernels.environment import EnvironmentCore
from dlbf.kernels.filelock import FileLock
from dlbf.kernels.filelog import FileLogCore
from dlbf.kernels.ledger import LedgerCore
from dlbf.kernels.locks import OwnLock
from dlbf.kernels.lookup import LookupCore
from dlbf.kernels.traffic import TrafficCore

_Key: TypeAlias = bytes | str | bytearray | memoryview
_Value: TypeAlias = bytes | bytearray | memoryview

class PairBatch:
    def __new__(cls, pairs: list[Any], filter: FilterCore) -> PairBatch: ...  # made by store_batch only

class GuardChanges:
    def __init__(
        self,
        environment: EnvironmentCore,
        log: FileLogCore,
        ledger: LedgerCore,
        traffic: TrafficCore,
        mutex: OwnLock,
        writer: FileLock,
        engine: Any,  # an Adapter, which this layer does not know
        failed: Callable[[BaseException], object],
        grow: Callable[[int], object],
        boot: bytes | None = None,
        watch: Callable[[], object] | None = None,
    ) -> None: ...
    @property
    def is_open(self) -> bool: ...
    def allow(self, n_changes: int) -> None: ...
    def store_batch(self, pairs: list[Any]) -> bool: ...  # of anything: what is not bytes is refused
    def let_go(self) -> bool: ...
    def keep_no_more(self) -> None: ...

class GuardCore(LookupCore):
    _changes: GuardChanges | None
    def __setitem__(self, key: _Key, value: _Value, /) -> None: ...
    def __delitem__(self, key: _Key, /) -> None: ...
    def put(self, key: _Key, value: _Value, new: bool = False, ttl: float | None = None) -> None: ...
    def delete(self, key: _Key) -> bool: ...
