from typing import Any, final

import numpy as np
import numpy.typing as npt

from dlbf.kernels.keychunks import KeyReader
from dlbf.typenames import Keys

class ObjectReader(KeyReader): ...

@final
class IteratorReader(ObjectReader): ...

@final
class SequenceReader(ObjectReader): ...

@final
class ArrayReader(KeyReader):
    def __new__(cls, array: npt.NDArray[np.bytes_]) -> ArrayReader: ...

@final
class IntegerReader(KeyReader):
    def __new__(cls, array: npt.NDArray[np.int64 | np.uint64]) -> IntegerReader: ...

@final
class HashReader(KeyReader):
    def __new__(cls, hashes: npt.NDArray[np.uint64], regions: npt.NDArray[np.uint8] | None = None) -> HashReader: ...

def read_keys(keys: Keys) -> list[bytes]: ...
def read_key(key: object) -> bytes: ...
def are_pairs_of_bytes(pairs: list[Any]) -> bool: ...
