import numpy as np
import numpy.typing as npt

def descend(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    labels: npt.NDArray[np.uint8],
    order: int,
    split_byte: int,
    log2_weights: int,
    weights: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
    rate: float,
) -> None: ...
