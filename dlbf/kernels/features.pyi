import numpy as np
import numpy.typing as npt

from dlbf.typenames import Keys

LEXICAL_NAMES: tuple[str, ...]
NUMERIC_NAMES: tuple[str, ...]

def check_ngram(order: int, split_byte: int, log2_weights: int) -> None: ...
def pack_keys(keys: Keys) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]: ...
def ngram_rows(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    order: int,
    split_byte: int,
    log2_weights: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...
def value_rows(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    view: str,
    split_byte: int = 47,
) -> npt.NDArray[np.uint16]: ...
