import numpy as np
import numpy.typing as npt

from dlbf.kernels.core import FilterCore

_Room = npt.NDArray[np.uint8] | bytearray | memoryview

class RibbonCore(FilterCore):
    def _set_geometry(self, n_shards: int, n_rows: int, n_columns: int, n_wide: int) -> None: ...

def ribbon_sort(hashes: npt.NDArray[np.uint64], filter_id: int = 0) -> int: ...
def ribbon_halve(hashes: npt.NDArray[np.uint64], filter_id: int = 0) -> int: ...
def ribbon_close_gap(hashes: npt.NDArray[np.uint64], to: int, start: int, n: int) -> None: ...
def ribbon_partition(hashes: npt.NDArray[np.uint64], regions: npt.NDArray[np.uint8], n_regions: int) -> list[int]: ...
def ribbon_bounds(hashes: npt.NDArray[np.uint64], n: int, n_shards: int) -> npt.NDArray[np.int64]: ...
def ribbon_solve(
    hashes: npt.NDArray[np.uint64],
    bounds: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    n_columns: int,
    n_wide: int,
    data: _Room,
    first: int,
    last: int,
) -> tuple[int, npt.NDArray[np.uint64]]: ...
def ribbon_put_head(
    rows: npt.NDArray[np.int64], n_columns: int, n_wide: int, data: _Room, first: int, head: npt.NDArray[np.uint64]
) -> None: ...
