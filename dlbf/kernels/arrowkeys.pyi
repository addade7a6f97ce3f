from typing import final

from dlbf.kernels.keychunks import KeyReader
from dlbf.typenames import ArrowArray, ArrowStream

@final
class ArrowReader(KeyReader): ...

def arrow_reader(keys: ArrowArray | ArrowStream) -> ArrowReader | None: ...
