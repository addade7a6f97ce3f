"""Names for the types of keys, batches of keys and memory, for signatures."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ArrowArray", "ArrowStream", "Integers", "Key", "Keys", "Memory"]

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = bytes | bytearray | memoryview

# Bytes as they are, str as UTF-8, any other contiguous buffer.
Key: TypeAlias = Buffer | str
# What a filter works on.
Memory: TypeAlias = Buffer | npt.NDArray[np.uint8]


class ArrowArray(Protocol):
    """An array by the Arrow PyCapsule interface, as of pyarrow, polars and pandas."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Capsules of its schema and of itself."""


class ArrowStream(Protocol):
    """A stream of arrays by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A capsule of it."""


# Numpy integers of every width.
Integers: TypeAlias = npt.NDArray[
    np.int8 | np.int16 | np.int32 | np.int64 | np.uint8 | np.uint16 | np.uint32 | np.uint64
]
# What the kernels read as a batch; numpy arrays of dtype S, U or object are iterables of keys, those of integers
# are read as dlbf.int_key says.
Keys: TypeAlias = Iterable[Key] | Integers | ArrowArray | ArrowStream
