"""Arrow arrays and streams made by hand, so that they can lie: the C data interface in ctypes, in capsules."""

import ctypes
import itertools
from dataclasses import dataclass, field


class Schema(ctypes.Structure):
    """``struct ArrowSchema``."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class Array(ctypes.Structure):
    """``struct ArrowArray``."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class Stream(ctypes.Structure):
    """``struct ArrowArrayStream``."""

    _fields_ = (
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


# What is not released yet, by number; a number that is not there any more was released twice.
ALIVE: dict[int, object] = {}
_numbers = itertools.count(1)
_ERROR = ctypes.c_char_p(b"the stream is broken \xff")


def _remember(thing: object) -> int:
    number = next(_numbers)
    ALIVE[number] = thing
    return number


def _release(pointer):
    del ALIVE[pointer.contents.private_data]
    pointer.contents.release = None


_release_schema = ctypes.CFUNCTYPE(None, ctypes.POINTER(Schema))(_release)
_release_array = ctypes.CFUNCTYPE(None, ctypes.POINTER(Array))(_release)
_release_stream = ctypes.CFUNCTYPE(None, ctypes.POINTER(Stream))(_release)


def _address(function) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Stream), ctypes.POINTER(Schema))
def _get_schema(stream, out):
    made = ALIVE[stream.contents.private_data]
    if made.schema_fails:
        return 5
    if made.format is not None:
        fill_schema(out.contents, made.format)
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Stream), ctypes.POINTER(Array))
def _get_next(stream, out):
    made = ALIVE[stream.contents.private_data]
    if made.n_given < len(made.arrays):
        made.arrays[made.n_given].fill(out.contents)
        made.n_given += 1
        return 0
    if made.fails:
        # Garbage that nobody may release.
        out.contents.release = 1
        return 5
    out.contents.release = None
    return 0


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Stream))
def _get_last_error(stream):
    made = ALIVE[stream.contents.private_data]
    return ctypes.cast(_ERROR, ctypes.c_void_p).value if made.says_why else None


def fill_schema(schema: Schema, format: bytes) -> None:
    """Make a schema of a type without children."""
    name = ctypes.create_string_buffer(format)
    schema.format = ctypes.cast(name, ctypes.c_char_p)
    schema.release = _address(_release_schema)
    schema.private_data = _remember(name)


@dataclass
class MadeArray:
    """An array as it is to be: numbers and the contents of its buffers, None for a NULL."""

    length: int
    buffers: list[bytes | None]
    offset: int = 0
    null_count: int = 0
    n_buffers: int | None = None
    has_buffers: bool = True
    misaligned: bool = False

    def fill(self, array: Array) -> None:
        """Write it to a struct; every buffer has exactly its bytes, so that a sanitizer sees what is read beyond."""
        memory = []
        pointers = (ctypes.c_void_p * max(1, len(self.buffers)))()
        for number, data in enumerate(self.buffers):
            if data is not None:
                lead = b"x" if self.misaligned else b""
                memory.append((ctypes.c_char * (len(lead) + len(data))).from_buffer_copy(lead + data))
                pointers[number] = ctypes.addressof(memory[-1]) + len(lead)
        array.length, array.offset, array.null_count = self.length, self.offset, self.null_count
        array.n_buffers = len(self.buffers) if self.n_buffers is None else self.n_buffers
        array.buffers = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)) if self.has_buffers else None
        array.release = _address(_release_array)
        array.private_data = _remember((pointers, memory))


@dataclass
class MadeStream:
    """A stream as it is to be; a format of None gives no schema and no error."""

    format: bytes | None
    arrays: list[MadeArray]
    fails: bool = False
    schema_fails: bool = False
    says_why: bool = True
    n_given: int = field(default=0, init=False)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Offer:
    """Something with ``__arrow_c_array__``: structs in capsules, which it releases itself if nobody took them."""

    def __init__(self, format: bytes, array: MadeArray, taken: bool = False, names=(b"arrow_schema", b"arrow_array")):
        self.schema, self.array = Schema(), Array()
        fill_schema(self.schema, format)
        array.fill(self.array)
        self._structs = [(self.schema, _release_schema), (self.array, _release_array)]
        self._names = names
        if taken:
            self.drop()

    def __arrow_c_array__(self, requested_schema=None):
        return tuple(
            _new_capsule(ctypes.addressof(struct), name, None)
            for (struct, _), name in zip(self._structs, self._names, strict=True)
        )

    def drop(self) -> None:
        """Release what is still there."""
        for struct, release in self._structs:
            if struct.release:
                release(ctypes.pointer(struct))


class StreamOffer(Offer):
    """Something with ``__arrow_c_stream__``."""

    def __init__(self, stream: MadeStream, taken: bool = False, name: bytes = b"arrow_array_stream"):
        self.stream = Stream(*map(_address, (_get_schema, _get_next, _get_last_error, _release_stream)))
        self.stream.private_data = _remember(stream)
        self._structs = [(self.stream, _release_stream)]
        self._name = name
        if taken:
            self.drop()

    def __arrow_c_stream__(self, requested_schema=None):
        return _new_capsule(ctypes.addressof(self.stream), self._name, None)
