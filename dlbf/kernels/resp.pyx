"""Commands to Valkey and Redis servers as bytes, and their answers from bytes (protocols 2 and 3).

Answers are integers, bytes and lists: a missing one is ``b""``, pairs of a map follow each other in a list, fractions
lose what is behind the point.  Messages that a server pushes unasked are left out, unless somebody hears them.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcpy, memmove

from dlbf.errors import FormatError

cdef enum:
    DEEPEST = 32

_MISSING = object()


class ErrorAnswer:
    """An error that a server answered with; it begins with its kind, in capitals."""

    __slots__ = ("text",)

    def __init__(self, str text):
        self.text = text

    @property
    def kind(self):
        """Its first word."""
        return self.text.partition(" ")[0]


cpdef bytes pack(command):
    """A command, words of bytes, text and integers, as servers read it."""
    cdef list parts = [None]
    cdef bytes data
    for word in command:
        if type(word) is bytes:
            data = <bytes>word
        elif isinstance(word, int):
            data = b"%d" % word
        elif isinstance(word, str):
            data = word.encode()
        else:
            data = bytes(word)
        parts.append(b"$%d\r\n" % PyBytes_GET_SIZE(data))
        parts.append(data)
        parts.append(b"\r\n")
    parts[0] = b"*%d\r\n" % (len(parts) // 3)
    return b"".join(parts)


cdef class AnswerReader:
    """Takes bytes as they come and gives answers."""

    cdef public bint hears_pushes  # whether they are answers, too
    cdef bytearray _buffer
    cdef Py_ssize_t _at
    cdef Py_ssize_t _end

    def __cinit__(self):
        self._buffer = bytearray(1 << 14)
        self._at = self._end = 0

    @property
    def is_empty(self):
        """Whether all that came was given out."""
        return self._at == self._end

    cpdef feed(self, bytes data):
        """Take what came."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        cdef char* start
        if self._at == self._end:
            self._at = self._end = 0
        if self._end + n > PyByteArray_GET_SIZE(self._buffer):
            start = PyByteArray_AS_STRING(self._buffer)
            memmove(start, start + self._at, self._end - self._at)
            self._end -= self._at
            self._at = 0
            if self._end + n > PyByteArray_GET_SIZE(self._buffer):
                PyByteArray_Resize(self._buffer, 2 * (self._end + n))
        memcpy(PyByteArray_AS_STRING(self._buffer) + self._end, PyBytes_AS_STRING(data), n)
        self._end += n

    cpdef take(self):
        """The next answer in a list of one; None if not all of it has come.

        Raises
        ------
        FormatError
            If this is no answer.
        """
        cdef Py_ssize_t before
        while True:
            before = self._at
            if before == self._end:
                return None
            pushed = PyByteArray_AS_STRING(self._buffer)[before] == c">"
            found = self._parse(0)
            if found is _MISSING:
                self._at = before
                return None
            if not pushed or self.hears_pushes:
                return [found]

    cdef bytes _line(self):
        """What stands before the next end of a line; None if there is none yet."""
        cdef char* start = PyByteArray_AS_STRING(self._buffer) + self._at
        cdef char* end = <char*>memchr(start, c"\n", self._end - self._at)
        if end == NULL:
            return None
        self._at += end - start + 1
        if end == start or (end - 1)[0] != c"\r":
            raise FormatError(f"a server's answer has a line without its end: {start[:min(80, end - start)]!r}")
        return PyBytes_FromStringAndSize(start, end - start - 1)

    cdef _parse(self, int depth):
        cdef bytes line = self._line()
        cdef char kind
        cdef Py_ssize_t n, _i
        cdef bytes data
        cdef list out
        if line is None:
            return _MISSING
        if depth > DEEPEST or not line:
            raise FormatError("a server's answer is none: it has an empty line, or lists in more than 32 lists")
        kind = PyBytes_AS_STRING(line)[0]
        if kind == c":" or kind == c"(":
            return self._whole(line)
        if kind == c"+":
            return line[1:]
        if kind == c"-":
            return ErrorAnswer(line[1:].decode(errors="replace"))
        if kind == c"_":
            return b""
        if kind == c"#":
            return 1 if line == b"#t" else 0
        if kind == c",":
            return line[1:] if line.endswith((b"inf", b"nan")) else b"%d" % int(float(line[1:]))
        n = self._whole(line)
        if kind == c"$" or kind == c"=" or kind == c"!":
            if n < 0:
                return b""
            if self._end - self._at < n + 2:
                return _MISSING
            data = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self._buffer) + self._at, n)
            self._at += n + 2
            if kind == c"!":
                return ErrorAnswer(data.decode(errors="replace"))
            return data[4:] if kind == c"=" else data
        if kind in b"*~>%|":
            if kind == c"%" or kind == c"|":
                n *= 2
            out = []
            for _i in range(n):
                one = self._parse(depth + 1)
                if one is _MISSING:
                    return _MISSING
                out.append(one)
            if kind == c"|":  # remarks about what follows
                return self._parse(depth + 1)
            return b"" if n < 0 else out
        raise FormatError(f"a server's answer begins with {line[:80]!r}; this is neither protocol 2 nor 3")

    cdef _whole(self, bytes line):
        try:
            return int(line[1:])
        except ValueError:
            raise FormatError(f"a server's answer has {line[:80]!r} where a number belongs") from None
