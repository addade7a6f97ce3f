"""Reading Arrow arrays and streams of strings or binaries.

They come from other libraries by bare pointers.  What they say is checked before it is followed, as far as it can be:
nothing in the interface tells how long the buffers of offsets and fixed-width values are.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetPointer, PyCapsule_IsValid
from libc.string cimport memcpy, memset

from dlbf.kernels.keychunks cimport CHUNK_KEYS, KeyReader
from dlbf.kernels.types cimport ArrowArray, ArrowArrayStream, ArrowSchema, int32_t, int64_t, uint8_t, unlikely

cdef enum:
    ARROW_OFFSETS32 = 1
    ARROW_OFFSETS64 = 2
    ARROW_FIXED = 3
    ARROW_VIEW = 4

cdef enum:
    FAULT_NULL = 1
    FAULT_OFFSETS = 2
    FAULT_VIEW = 3

# Places in buffers are at most 16 bytes times this, far from where they would overflow.
cdef int64_t MOST_ITEMS = <int64_t>1 << 50
# Where the keys of an array without values are: all of them are empty.
cdef const uint8_t* NO_VALUES = <const uint8_t*>b""


cdef inline int32_t native32(const uint8_t* p) noexcept nogil:
    # Buffers need not be aligned.
    cdef int32_t x
    memcpy(&x, p, 4)
    return x


cdef inline int64_t native64(const uint8_t* p) noexcept nogil:
    cdef int64_t x
    memcpy(&x, p, 8)
    return x


cdef void* capsule_pointer(object capsule, const char* name) except NULL:
    """What a capsule of that name holds."""
    if not PyCapsule_IsValid(capsule, name):
        found = "another capsule, or one that was used" if PyCapsule_CheckExact(capsule) else type(capsule).__name__
        raise TypeError(f"expected a PyCapsule {name.decode()!r} of the Arrow C data interface, found {found}")
    return PyCapsule_GetPointer(capsule, name)


@cython.final
cdef class ArrowReader(KeyReader):
    """Keys of one array, or of all arrays of a stream."""

    # Taken from whoever offered them, so nobody else can free them; ours to release.
    cdef ArrowArrayStream stream
    cdef ArrowArray array
    cdef int layout
    cdef Py_ssize_t width
    cdef Py_ssize_t position             # of the next key in the array
    cdef int fault                       # why next_chunk() has stopped

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)
        if self.stream.release != NULL:
            self.stream.release(&self.stream)

    cdef int take_stream(self, ArrowArrayStream* stream) except -1:
        """Read the arrays of a stream."""
        cdef ArrowSchema schema
        if stream.release == NULL:
            raise ValueError("this Arrow stream was read before, which can be done once; make it again")
        self.stream = stream[0]
        stream.release = NULL
        memset(&schema, 0, sizeof(ArrowSchema))
        if self.stream.get_schema(&self.stream, &schema) != 0:
            raise ValueError(f"the Arrow stream gave no schema: {self._stream_error()}")
        if schema.release == NULL:
            raise ValueError("the Arrow stream gave no schema, and no error; make the stream again")
        try:
            self._open_schema(&schema)
        finally:
            schema.release(&schema)
        return 0

    cdef int take_array(self, const ArrowSchema* schema, ArrowArray* array) except -1:
        """Read one array of that type."""
        if schema.release == NULL or array.release == NULL:
            raise ValueError("this Arrow array was taken by somebody else; ask for it again")
        self._open_schema(schema)
        self.array = array[0]
        array.release = NULL
        return self._check_array()

    def _stream_error(self):
        """What the stream says about its last error."""
        cdef const char* message = self.stream.get_last_error(&self.stream)
        return "no reason given" if message == NULL else (<bytes>message).decode(errors="replace")

    cdef int _open_schema(self, const ArrowSchema* schema) except -1:
        cdef bytes name
        if schema.format == NULL:
            raise ValueError("an Arrow schema without a type; make the array again")
        name = schema.format
        if schema.dictionary != NULL:
            raise TypeError(
                "expected a column of strings, found one of categories; decode it first: column.astype(str) in pandas, "
                "column.cast(polars.String), array.dictionary_decode() in pyarrow"
            )
        if name in (b"u", b"z"):
            self.layout = ARROW_OFFSETS32
        elif name in (b"U", b"Z"):
            self.layout = ARROW_OFFSETS64
        elif name in (b"vu", b"vz"):
            self.layout = ARROW_VIEW
        elif name.startswith(b"w:") and name[2:].isdigit() and int(name[2:]) < 1 << 31:
            self.layout = ARROW_FIXED
            self.width = int(name[2:])
        else:
            raise TypeError(
                "expected an Arrow array of strings or binaries, found the Arrow type "
                f"{name.decode(errors='replace')!r}; pass one string column, not a table, and integers as a numpy "
                "array (column.to_numpy())"
            )
        return 0

    cdef int _check_array(self) except -1:
        """See that the array can be read by its type; what is in the buffers is checked as it is read."""
        cdef const ArrowArray* array = &self.array
        cdef int64_t n_buffers = 2 if self.layout == ARROW_FIXED else 3
        cdef int64_t most = MOST_ITEMS
        if self.layout == ARROW_FIXED:
            most = most // max(self.width, 1)
        if not (0 <= array.length <= most and 0 <= array.offset <= most and -1 <= array.null_count <= array.length):
            raise ValueError(
                f"an Arrow array of {array.length} keys from number {array.offset} on, of which {array.null_count} are "
                "null, makes no sense; make it again"
            )
        if array.n_buffers != n_buffers and not (self.layout == ARROW_VIEW and array.n_buffers > n_buffers):
            raise ValueError(f"expected {n_buffers} buffers in an Arrow array of this type, found {array.n_buffers}")
        if array.length and (
            array.buffers == NULL
            or (array.buffers[1] == NULL and (self.layout != ARROW_FIXED or self.width))
            or (array.buffers[0] == NULL and array.null_count > 0)
            or (self.layout == ARROW_VIEW and n_buffers < array.n_buffers
                and array.buffers[array.n_buffers - 1] == NULL)
        ):
            raise ValueError("an Arrow array lacks a buffer that it needs; make it again")
        return 0

    cdef int _raise_fault(self) except -1:
        """Say why next_chunk() has stopped."""
        if self.fault == FAULT_NULL:
            raise ValueError(f"key number {self.n_read} is null; drop nulls first, for example with array.drop_null()")
        what = "ends before it begins" if self.fault == FAULT_OFFSETS else "lies outside of its buffer"
        raise ValueError(
            f"key number {self.n_read} of an Arrow array {what}; the array is damaged, and pyarrow's "
            "array.validate(full=True) says where"
        )

    cdef Py_ssize_t next_batch(self) except -1:
        cdef Py_ssize_t n = self._open_array()
        self.chunk.n = 0
        self.make_room(min(n, <Py_ssize_t>CHUNK_KEYS))
        return n

    cdef Py_ssize_t _open_array(self) except -1:
        """How many keys the present Arrow array still has; the next one of a stream is opened if it has none."""
        if self.fault:
            self._raise_fault()
        while self.array.release == NULL or self.position >= self.array.length:
            if self.stream.release == NULL:
                return 0
            if self.array.release != NULL:
                self.array.release(&self.array)
            memset(&self.array, 0, sizeof(ArrowArray))
            self.position = 0
            if self.stream.get_next(&self.stream, &self.array) != 0:
                self.array.release = NULL  # whatever is there is no array
                raise ValueError(f"the Arrow stream failed: {self._stream_error()}")
            if self.array.release == NULL:
                return 0
            self._check_array()
        return self.array.length - self.position

    cdef Py_ssize_t next_chunk(self) noexcept nogil:
        cdef const ArrowArray* array = &self.array
        cdef const uint8_t* validity
        cdef int64_t first = array.offset + self.position
        cdef Py_ssize_t i, n = min(array.length - self.position, <Py_ssize_t>CHUNK_KEYS)
        if n <= 0:
            # An empty array need not have buffers.
            return self.give(0, 0)
        validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
        if validity != NULL:
            for i in range(n):
                if not (validity[(first + i) >> 3] >> ((first + i) & 7)) & 1:
                    self.fault = FAULT_NULL
                    n = i
                    break
        if self.layout == ARROW_FIXED:
            n = self._read_fixed(first, n)
        elif self.layout == ARROW_VIEW:
            n = self._read_views(first, n)
        else:
            n = self._read_offsets(first, n, 4 if self.layout == ARROW_OFFSETS32 else 8)
        self.position += n
        return self.give(0, n)

    # Each reads n keys from number first on, into the room; fewer, and a fault, if what it finds makes no sense.

    cdef Py_ssize_t _read_fixed(self, int64_t first, Py_ssize_t n) noexcept nogil:
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef int64_t width = self.width
        cdef const uint8_t* values = NO_VALUES
        cdef Py_ssize_t i
        if width:
            values = <const uint8_t*>self.array.buffers[1] + first * width
        for i in range(n):
            pointers[i] = values + i * width
            lengths[i] = width
        return n

    cdef Py_ssize_t _read_views(self, int64_t first, Py_ssize_t n) noexcept nogil:
        # 16 bytes each: length, then the string itself if it fits in 12, else prefix, buffer number, offset.  The
        # last buffer has the sizes of those between.
        cdef const ArrowArray* array = &self.array
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef const uint8_t* view = <const uint8_t*>array.buffers[1] + 16 * first
        cdef int64_t begin, end, number, n_values = array.n_buffers - 3
        cdef Py_ssize_t i
        for i in range(n):
            end = native32(view)
            pointers[i] = view + 4
            if not 0 <= end <= 12:
                number, begin = native32(view + 8), native32(view + 12)
                if (
                    end < 0 or begin < 0 or not 0 <= number < n_values or array.buffers[2 + number] == NULL
                    or begin + end > native64(<const uint8_t*>array.buffers[2 + n_values] + 8 * number)
                ):
                    self.fault = FAULT_VIEW
                    return i
                pointers[i] = <const uint8_t*>array.buffers[2 + number] + begin
            lengths[i] = end
            view += 16
        return n

    cdef Py_ssize_t _read_offsets(self, int64_t first, Py_ssize_t n, int width) noexcept nogil:
        cdef const uint8_t** pointers = self.pointers
        cdef size_t* lengths = self.lengths
        cdef const uint8_t* values = <const uint8_t*>self.array.buffers[2]
        cdef const uint8_t* places = <const uint8_t*>self.array.buffers[1] + width * first
        cdef int64_t end, begin = native32(places) if width == 4 else native64(places)
        cdef Py_ssize_t i
        if begin < 0:
            self.fault = FAULT_OFFSETS
            return 0
        for i in range(n):
            places += width
            end = native32(places) if width == 4 else native64(places)
            if unlikely(end < begin or (values == NULL and end != begin)):
                self.fault = FAULT_OFFSETS if end < begin else FAULT_VIEW
                return i
            pointers[i] = values + begin if values != NULL else NO_VALUES
            lengths[i] = end - begin
            begin = end
        return n


def arrow_reader(keys):
    """A reader of what has ``__arrow_c_array__`` or ``__arrow_c_stream__``; None if that needs a missing pyarrow."""
    cdef ArrowReader reader = ArrowReader()
    has_stream = hasattr(keys, "__arrow_c_stream__")
    try:
        offered = keys.__arrow_c_stream__() if has_stream else keys.__arrow_c_array__()
    except ImportError:
        # pandas makes Arrow arrays with pyarrow, if that is installed.
        if getattr(keys, "ndim", 1) != 1:
            raise TypeError(f"expected one column of keys, found a {type(keys).__name__}; pass one of its columns")
        return None
    if has_stream:
        reader.take_stream(<ArrowArrayStream*>capsule_pointer(offered, "arrow_array_stream"))
        return reader
    if not isinstance(offered, tuple) or len(offered) != 2:
        raise TypeError(
            "expected the two capsules of a schema and an array from __arrow_c_array__, found "
            + (f"a tuple of {len(offered)}" if isinstance(offered, tuple) else type(offered).__name__)
        )
    reader.take_array(
        <ArrowSchema*>capsule_pointer(offered[0], "arrow_schema"),
        <ArrowArray*>capsule_pointer(offered[1], "arrow_array"),
    )
    return reader
