from typing import final

from dlbf.kernels.keychunks import KeyReader

@final
class ArrowReader(KeyReader): ...
