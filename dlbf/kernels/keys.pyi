from collections.abc import Iterable
from typing import Any

class KeyReader:
    n_read: int
    def __init__(self, keys: Iterable[Any]) -> None: ...

def read_keys(keys: Iterable[Any]) -> list[bytes]: ...
