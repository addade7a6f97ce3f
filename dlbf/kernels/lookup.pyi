from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

from dlbf.kernels.ledger import LedgerCore
from dlbf.kernels.traffic import TrafficCore

_Key: TypeAlias = bytes | str | bytearray | memoryview
_T = TypeVar("_T")

class SourceCore:
    direct: Callable[[bytes], bytes | None] | None

class LookupCore:
    @property
    def ledger(self) -> LedgerCore: ...
    @property
    def traffic(self) -> TrafficCore: ...
    source: Any  # SourceCore; faces say of what kind
    def _wire(self, ledger: LedgerCore, traffic: TrafficCore, source: SourceCore) -> None: ...
    @overload
    def get(self, key: _Key) -> bytes | None: ...
    @overload
    def get(self, key: _Key, default: _T) -> bytes | _T: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: _Key, /) -> bytes: ...
