from typing import final

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

def read_keys(keys: Keys) -> list[bytes]: ...
def read_key(key: object) -> bytes: ...
