from collections.abc import Iterable
from typing import Any

class KeyReader:
    n_read: int
    def __new__(cls, keys: Iterable[Any]) -> KeyReader: ...

def read_keys(keys: Iterable[Any]) -> list[bytes]: ...
