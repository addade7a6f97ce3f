"""One file of a guard's log: a mapped header with the newest position, and frames of records behind it.

What the bytes mean is in :mod:`dlbf.storage.filelog`.  Whoever writes has the writers' lock; readers look at the word,
then at frames that were complete before it was raised.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy

from dlbf.kernels.hashing cimport xxh3
from dlbf.kernels.journal cimport RECORD_HEAD_BYTES, reached
from dlbf.kernels.ledger cimport load_shared64
from dlbf.kernels.types cimport load32, load64, store32, store64, unlikely

import mmap
import os
from bisect import bisect_right

from dlbf.errors import FormatError

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define dlbf_store_shared64(p, x) __atomic_store_n((uint64_t *)(p), (x), __ATOMIC_RELEASE)
    #else
    #define dlbf_store_shared64(p, x) (*(volatile uint64_t *)(p) = (x))
    #endif
    #include <errno.h>
    #ifdef _WIN32
    static int dlbf_to_disk(int fd) { (void)fd; return ENOSYS; }
    #else
    #include <unistd.h>
    static int dlbf_to_disk(int fd) {
    #ifdef __linux__
        return fdatasync(fd) == 0 ? 0 : errno;
    #else
        return fsync(fd) == 0 ? 0 : errno;
    #endif
    }
    #endif
    """
    void store_shared64 "dlbf_store_shared64"(uint8_t* p, uint64_t x) noexcept nogil
    int to_disk "dlbf_to_disk"(int fd) nogil

cdef enum:
    HEAD_BYTES = 4096
    SUM_AT = 8
    BASE_AT = 16
    SNAPSHOT_BYTES_AT = 24
    FIXED_END = 64
    WORD_AT = 64
    END_AT = 72
    STAGED_AT = 80
    NOTE_AT = 88
    BOOT_AT = 96
    CLEAN_AT = 112
    FRAME_HEAD_BYTES = 16
    CHANGE_HEAD_BYTES = 10
    # The kinds of frames.
    KIND_RECORD = 0x44524F43
    KIND_STAGED = 0x47415453
    # Between two marks, in positions.
    MARK_EVERY = 256
    # By so many bytes a file grows.
    CHUNK_BYTES = 1 << 20
    # About so many bytes of records are read at once.
    RUN_BYTES = 1 << 18

cdef uint64_t MAGIC = <uint64_t>0x01002D676F6C6C64   # "dllog-", version 1
cdef uint64_t RETIRED = <uint64_t>1 << 63
# The check of a note: whichever bit of it is flipped, the product's highest ones differ.
cdef uint64_t NOTE_FACTOR = <uint64_t>0x9E3779B97F4A7C15
cdef uint64_t NOTE_MASK = (<uint64_t>1 << 50) - 1

ADDING, REMOVING, LATE, NOTHING = NOTE_ADDING, NOTE_REMOVING, NOTE_LATE, NOTE_NOTHING


cdef inline Py_ssize_t padded(Py_ssize_t n) noexcept nogil:
    return (n + 7) & ~<Py_ssize_t>7


cdef inline uint64_t checked_note(uint64_t note) noexcept nogil:
    return note | (note * NOTE_FACTOR) >> 50 << 50


cdef class LogHead:
    """The mapped header of a log's file: the newest position, a writer's note, and what a power failure may undo."""

    def __init__(self, file, bint writable):
        self.map = mmap.mmap(
            file.fileno(), HEAD_BYTES, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        )
        PyObject_GetBuffer(self.map, &self.taken.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.at = <uint8_t*>self.taken.view.buf

    def __dealloc__(self):
        if self.at != NULL:
            PyBuffer_Release(&self.taken.view)

    @staticmethod
    def new(
        uint64_t base, bytes snapshot, uint64_t position, Py_ssize_t n_frames_bytes, bytes boot, uint64_t clean,
        uint64_t note=0
    ):
        """The header of a new file whose frames are of so many bytes and end with ``position``.

        ``note`` is that of the file before it (:attr:`whole_note`).
        """
        cdef bytearray out = bytearray(HEAD_BYTES)
        cdef uint8_t[::1] view = out
        cdef uint8_t* head = &view[0]
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(snapshot)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(snapshot)
        cdef uint8_t both[FIXED_END - BASE_AT + 8]
        store64(head, MAGIC)
        store64(head + BASE_AT, base)
        store64(head + SNAPSHOT_BYTES_AT, n)
        memcpy(both, head + BASE_AT, FIXED_END - BASE_AT)
        store64(both + FIXED_END - BASE_AT, xxh3(data, n))
        store64(head + SUM_AT, xxh3(both, FIXED_END - BASE_AT + 8))
        store64(head + WORD_AT, position)
        store64(head + END_AT, HEAD_BYTES + padded(n) + n_frames_bytes)
        out[BOOT_AT:BOOT_AT + 16] = boot
        store64(head + CLEAN_AT, clean)
        store64(head + NOTE_AT, note)
        store64(head + STAGED_AT, HEAD_BYTES + padded(n) + n_frames_bytes)
        return bytes(out)

    @staticmethod
    def packed_note(uint64_t intent, uint64_t position):
        """A note as it is in the header."""
        return checked_note(position << 2 | intent)

    def watch(self, word):
        """Let a :class:`dlbf.kernels.ledger.Word` show the newest position, and whether something is noted."""
        word.attach(self.map, WORD_AT, WORD_AT, NOTE_AT)

    # --- positions

    cdef uint64_t word(self) noexcept:
        return load_shared64(self.at + WORD_AT)

    def newest(self):
        """The newest position."""
        return self.word() & ~RETIRED

    @property
    def is_retired(self):
        """Whether another file has taken its place, or is about to."""
        return bool(self.word() & RETIRED)

    def retire(self):
        """Nobody answers from it any more."""
        store_shared64(self.at + WORD_AT, self.word() | RETIRED)

    def restore(self):
        """The file that was to take its place never came."""
        store_shared64(self.at + WORD_AT, self.word() & ~RETIRED)

    cdef bint ends_at(self, uint64_t end) noexcept:
        """Whether the newest frame is said to end there."""
        return load64(self.at + END_AT) == end

    cdef void show(self, uint64_t position, uint64_t end) noexcept:
        """The frame that ends at ``end`` is complete: it is the newest."""
        store_shared64(self.at + END_AT, end)
        store_shared64(self.at + WORD_AT, position)

    # --- what a writer is about to do

    cdef void set_note(self, uint64_t intent, uint64_t position) noexcept:
        store_shared64(self.at + NOTE_AT, checked_note(position << 2 | intent) if intent else 0)

    def note(self, uint64_t intent, uint64_t position):
        """Note what is about to happen; with ``NOTHING`` that it has happened, or never will."""
        self.set_note(intent, position)

    @property
    def staged_at(self):
        """Where a record was last staged."""
        return load64(self.at + STAGED_AT)

    @property
    def whole_note(self):
        """The note as it is in the header."""
        return load64(self.at + NOTE_AT)

    def noted(self):
        """The intent and position that are noted; ``NOTHING`` and 0 if nothing is, or it cannot be read."""
        cdef uint64_t note = load64(self.at + NOTE_AT)
        if note == 0 or note != checked_note(note & NOTE_MASK):
            return NOTE_NOTHING, 0
        return note & 3, (note & NOTE_MASK) >> 2

    cdef bint is_idle(self, bytes boot) noexcept:
        """Whether nothing is noted, and this boot is marked as one whose records are not synced (None: any)."""
        return load64(self.at + NOTE_AT) == 0 and (
            boot is None
            or load64(self.at + CLEAN_AT) == 0 and memcmp(self.at + BOOT_AT, PyBytes_AS_STRING(boot), 16) == 0
        )

    # --- what a power failure may undo

    @property
    def boot(self):
        """In which boot of the machine records were not synced; zeros: none."""
        return (<const char*>self.at + BOOT_AT)[:16]

    @property
    def clean(self):
        """The newest position that is on disk all the same; 0: not known."""
        return load64(self.at + CLEAN_AT)

    def mark(self, bytes boot, uint64_t clean=0):
        """Note both; to be synced."""
        memcpy(self.at + BOOT_AT, PyBytes_AS_STRING(boot), min(16, PyBytes_GET_SIZE(boot)))
        store64(self.at + CLEAN_AT, clean)


cdef class LogFile:
    """See the module.

    Parameters
    ----------
    path : path
    file : FileIO
        Open for reading, or for both if ``writable``; closed by :meth:`close`.
    writable : bool

    Raises
    ------
    FormatError
        If it is not the whole header and snapshot of a log.
    """

    def __init__(self, path, file, bint writable):
        cdef uint64_t n_snapshot
        cdef Py_ssize_t size = os.fstat(file.fileno()).st_size
        self.path = path
        self.file = file
        self.descriptor = file.fileno()
        self.writable = writable
        self.marks = []
        if size < HEAD_BYTES:
            raise FormatError(f"{path}: expected a log with a header of {HEAD_BYTES} bytes, found {size}")
        self.head = LogHead(file, writable)
        if load64(self.head.at) != MAGIC:
            raise FormatError(f"{path}: this is no log of a guard, or one of another version")
        self._map_body()
        n_snapshot = load64(self.head.at + SNAPSHOT_BYTES_AT)
        if n_snapshot > <uint64_t>(self.n_mapped - HEAD_BYTES):
            raise FormatError(f"{path}: the log ends inside of its snapshot")
        if load64(self.head.at + SUM_AT) != self._sum(n_snapshot):
            raise FormatError(f"{path}: the log's header and snapshot do not match their checksum")
        self.base = self.position = load64(self.head.at + BASE_AT)
        self.start = self.end = HEAD_BYTES + padded(n_snapshot)

    cdef uint64_t _sum(self, uint64_t n_snapshot) noexcept:
        cdef uint8_t both[FIXED_END - BASE_AT + 8]
        memcpy(both, self.head.at + BASE_AT, FIXED_END - BASE_AT)
        store64(both + FIXED_END - BASE_AT, xxh3(self.body + HEAD_BYTES, n_snapshot))
        return xxh3(both, FIXED_END - BASE_AT + 8)

    @staticmethod
    def frame(bytes record):
        """The bytes of a record's frame."""
        return whole_frame(KIND_RECORD, record)

    @staticmethod
    def staged_frame(bytes record):
        """The bytes of a staged record's frame."""
        return whole_frame(KIND_STAGED, record)

    cdef int _map_body(self) except -1:
        """Map as much of the file as there is now, if that is more than before.

        Other threads may come in whenever Python is called: the new map is put in without, and the old one let go last.
        """
        cdef Py_ssize_t size = os.fstat(self.descriptor).st_size
        cdef Export made, before
        map = mmap.mmap(self.descriptor, size, access=mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ)
        PyObject_GetBuffer(map, &made.view, PyBUF_WRITABLE if self.writable else PyBUF_SIMPLE)
        if self.body != NULL and size <= self.n_mapped:
            PyBuffer_Release(&made.view)
            return 0
        cdef bint had = self.body != NULL
        before = self.body_taken
        self.body_taken = made
        self.body = <uint8_t*>made.view.buf
        self.n_mapped = size
        self.body_map = map
        if had:
            PyBuffer_Release(&before.view)
        return 0

    def close(self):
        """Let go of the file; its maps go with this object, which somebody may just be reading."""
        self.descriptor = -1
        self.file.close()

    def __del__(self):
        if self.file is not None:
            self.file.close()

    def __dealloc__(self):
        if self.body != NULL:
            PyBuffer_Release(&self.body_taken.view)

    @property
    def nbytes(self):
        """Bytes of the file, as far as this process knows."""
        return self.n_mapped

    @property
    def number(self):
        """Which file it is: device and inode."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    def snapshot(self, int n_tables):
        """The tables when the file was made, as changes: runs as :meth:`changes_since` tells them."""
        cdef Py_ssize_t n_bytes = <Py_ssize_t>load64(self.head.at + SNAPSHOT_BYTES_AT)
        return runs_at(self.body, HEAD_BYTES, HEAD_BYTES + n_bytes, n_tables)

    def part(self, Py_ssize_t start, Py_ssize_t end):
        """Bytes of the file, from what was walked."""
        if not HEAD_BYTES <= start <= end <= self.n_mapped:
            raise FormatError(f"{self.path}: the log has no bytes {start} to {end}")
        return (<const char*>self.body)[start:end]

    # --- positions

    cdef Py_ssize_t _frame(self, Py_ssize_t at, uint64_t position, uint32_t kind) except -1:
        """Where the frame at ``at``, of ``position``, ends; FormatError if there is none."""
        cdef Py_ssize_t end
        cdef uint8_t* frame
        if unlikely(at + FRAME_HEAD_BYTES + RECORD_HEAD_BYTES > self.n_mapped):
            self._map_body()
            if at + FRAME_HEAD_BYTES + RECORD_HEAD_BYTES > self.n_mapped:
                raise FormatError(f"{self.path}: the log ends before record {position}")
        frame = self.body + at
        if unlikely(
            load32(frame) != kind or load32(frame + 12) != <uint32_t>xxh3(frame, 12)
            or load32(frame + 4) < RECORD_HEAD_BYTES or load64(frame + FRAME_HEAD_BYTES + 8) != position
        ):
            raise FormatError(f"{self.path}: there is no record {position} where it should be")
        end = at + padded(FRAME_HEAD_BYTES + <Py_ssize_t>load32(frame + 4) + <Py_ssize_t>load32(frame + 8))
        if unlikely(end > self.n_mapped):
            self._map_body()
            if end > self.n_mapped:
                raise FormatError(f"{self.path}: the log ends inside of record {position}")
        return end

    def advance(self):
        """Walk to the newest position.

        Raises
        ------
        FormatError
            At a frame that is not whole; everything before it has been walked.
        """
        cdef uint64_t newest = self.head.word() & ~RETIRED
        cdef uint64_t position
        cdef Py_ssize_t at, end
        while self.position < newest:
            position, at = self.position, self.end
            end = self._frame(at, position + 1, KIND_RECORD)
            if self.position == position and self.end == at:  # else another thread has walked meanwhile
                self._walked(end)

    def changes_since(self, uint64_t position, Py_ssize_t at, int n_tables):
        """What has changed in the tables behind the frame of ``position``, which ends at ``at``.

        Returns
        -------
        list of (int, int, int)
            Runs of changes of one table: which, and where they begin and end in the file (:meth:`part`).
        int, int
            The newest position, and where its frame ends.

        Raises
        ------
        FormatError
            At a frame that is not whole, or changes that do not match their checksum.
        """
        cdef uint64_t newest = self.head.word() & ~RETIRED
        cdef Py_ssize_t end, start, n
        cdef list out = []
        while position < newest:
            position += 1
            end = self._frame(at, position, KIND_RECORD)
            n = load32(self.body + at + 8)
            if n:
                start = at + FRAME_HEAD_BYTES + <Py_ssize_t>load32(self.body + at + 4)
                if n < 8 or load64(self.body + start) != xxh3(self.body + start + 8, n - 8):
                    raise FormatError(f"{self.path}: changes with record {position} do not match their checksum")
                out += runs_at(self.body, start + 8, start + n, n_tables)
            at = end
        return out, position, at

    cdef int _walked(self, Py_ssize_t end) except -1:
        cdef Py_ssize_t at = self.end
        self.position += 1
        self.end = end
        if unlikely(self.position % MARK_EVERY == 0):
            self.marks.append((self.position, at))
        return 0

    def ends_well(self):
        """After walking to the newest position: whether that is where the header says the frames end.

        A writer that died between two steps has left one whole frame behind it: False, and :meth:`adopt` takes it.

        Raises
        ------
        FormatError
            If it is neither.
        """
        cdef uint64_t end = load64(self.head.at + END_AT)
        if end == <uint64_t>self.end:
            return True
        if end == <uint64_t>self._frame(self.end, self.position + 1, KIND_RECORD):
            return False
        raise FormatError(f"{self.path}: the log's frames end at {self.end}, the header says {end}")

    def adopt(self):
        """Take the frame behind the newest: it was complete before its writer died, and says nothing untrue."""
        self.head.show(self.position + 1, load64(self.head.at + END_AT))

    def tidy(self):
        """Before anything is written: take the frame of a writer that died before the word showed it.

        Raises
        ------
        FormatError
            If the frames end nowhere near where the header says.
        """
        self.advance()
        if not self.ends_well():
            self.adopt()
            self.advance()

    def read_run(self, uint64_t position, Py_ssize_t n_bytes=RUN_BYTES):
        """Records from ``position`` on, not checked, as many as about ``n_bytes`` hold; none if it has none."""
        cdef list out = []
        cdef uint64_t at_position = self.base + 1
        cdef Py_ssize_t at = self.start, end, n_record
        if not self.base < position <= self.position:
            return out
        if self.marks and self.marks[0][0] <= position:
            at_position, at = self.marks[bisect_right(self.marks, (position, self.n_mapped)) - 1]
        while at_position <= self.position and n_bytes > 0:
            end = self._frame(at, at_position, KIND_RECORD)
            if at_position >= position:
                n_record = load32(self.body + at + 4)
                out.append((at_position, (<const char*>self.body + at + FRAME_HEAD_BYTES)[:n_record]))
                n_bytes -= n_record
            at = end
            at_position += 1
        return out

    # --- writing

    cdef bint has_room(self, Py_ssize_t n_bytes) noexcept:
        """Whether a frame of so many bytes can be written at once."""
        return self.end + n_bytes + FRAME_HEAD_BYTES + 8 <= self.n_mapped

    def make_room(self, Py_ssize_t n_bytes):
        """Make the file longer, so that a frame of so many bytes has room; its place on the disk is taken now."""
        cdef Py_ssize_t wanted = (self.end + n_bytes + FRAME_HEAD_BYTES + 8 + 4095) & ~<Py_ssize_t>4095
        if wanted <= self.n_mapped:
            return
        self._map_body()  # another process may have made it longer
        if wanted > self.n_mapped:
            try:
                reserve(self.descriptor, self.n_mapped, max(wanted - self.n_mapped, <Py_ssize_t>CHUNK_BYTES))
            except OSError:
                reserve(self.descriptor, self.n_mapped, wanted - self.n_mapped)
            self._map_body()

    cdef uint8_t* space(self) noexcept:
        """Where a record that is written in place goes, behind the newest; there is room for it."""
        return self.body + self.end + FRAME_HEAD_BYTES

    cdef void place_record(self, Py_ssize_t size) noexcept:
        """A record of so many bytes was written there: :meth:`show` may follow."""
        put_frame(self.body + self.end, KIND_RECORD, size, 0)

    cdef void stage_in_place(self, Py_ssize_t size) noexcept:
        """The same, for whoever comes after a crash, and nobody else."""
        put_frame(self.body + self.end, KIND_STAGED, size, 0)
        store_shared64(self.head.at + STAGED_AT, self.end)

    cdef int show(self, uint64_t position) except -1:
        """The frame behind the newest is complete: it is the newest."""
        cdef uint8_t* frame = self.body + self.end
        cdef Py_ssize_t end = self.end + padded(
            FRAME_HEAD_BYTES + <Py_ssize_t>load32(frame + 4) + <Py_ssize_t>load32(frame + 8)
        )
        self.head.show(position, end)
        return self._walked(end)

    cpdef write(self, uint64_t position, bytes record, bytes changes):
        """Write a record's frame, for which there is room; :meth:`publish` shows it."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(record), n_changes = PyBytes_GET_SIZE(changes)
        cdef uint8_t* out = self.space()
        memcpy(out, PyBytes_AS_STRING(record), n)
        memcpy(out + n, PyBytes_AS_STRING(changes), n_changes)
        put_frame(self.body + self.end, KIND_RECORD, n, n_changes)

    cpdef publish(self, uint64_t position):
        """Show the frame that was written as the newest."""
        self._frame(self.end, position, KIND_RECORD)
        self.show(position)

    cpdef sync(self):
        """Wait until everything is on disk."""
        cdef int problem
        cdef int descriptor = self.descriptor
        with nogil:
            problem = to_disk(descriptor)
        if problem:
            raise OSError(problem, os.strerror(problem), str(self.path))

    # --- what a writer is about to do

    def stage(self, bytes record, Py_ssize_t gap=0):
        """Write a record ``gap`` bytes behind the newest, there to be read by who comes after a crash, and nobody else.

        There is room for it.  Frames that are written before it is settled leave it alone if they fit into the gap.
        """
        cdef uint8_t* frame = self.body + self.end + padded(gap)
        memcpy(frame + FRAME_HEAD_BYTES, PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record))
        put_frame(frame, KIND_STAGED, PyBytes_GET_SIZE(record), 0)
        store_shared64(self.head.at + STAGED_AT, self.end + padded(gap))

    def staged(self, uint64_t position):
        """The record that was staged as ``position``, not checked; None: there is no such.

        Right behind the newest it may have become the record that it announced, and not be shown yet.
        """
        cdef uint64_t place = load64(self.head.at + STAGED_AT)
        cdef Py_ssize_t at
        if not <uint64_t>self.end <= place < <uint64_t>1 << 62:
            return None
        at = <Py_ssize_t>place
        for kind in (KIND_STAGED, KIND_RECORD):
            try:
                if kind == KIND_STAGED or at == self.end:
                    self._frame(at, position, kind)
                    return (<const char*>self.body + at + FRAME_HEAD_BYTES)[:load32(self.body + at + 4)]
            except FormatError:
                pass
        return None

cdef void put_frame(uint8_t* out, uint32_t kind, Py_ssize_t n_record, Py_ssize_t n_changes) noexcept:
    store32(out, kind)
    store32(out + 4, <uint32_t>n_record)
    store32(out + 8, <uint32_t>n_changes)
    store32(out + 12, <uint32_t>xxh3(out, 12))


cdef bytes whole_frame(uint32_t kind, bytes record):
    cdef bytearray out = bytearray(padded(FRAME_HEAD_BYTES + PyBytes_GET_SIZE(record)))
    cdef uint8_t[::1] view = out
    put_frame(&view[0], kind, PyBytes_GET_SIZE(record), 0)
    out[FRAME_HEAD_BYTES:FRAME_HEAD_BYTES + len(record)] = record
    return bytes(out)


cdef list runs_at(const uint8_t* data, Py_ssize_t at, Py_ssize_t stop, int n_tables):
    """Where changes of one table follow each other in the bytes of :mod:`dlbf.storage.tables`: (table, start, end)."""
    cdef Py_ssize_t start = at
    cdef uint64_t length
    cdef int table, before = -1
    cdef list out = []
    while at < stop:
        if stop - at < CHANGE_HEAD_BYTES:
            raise FormatError(f"a change of tables at byte {at} is not whole")
        table = data[at]
        length = <uint64_t>CHANGE_HEAD_BYTES + load32(data + at + 2) + load32(data + at + 6)
        if table >= n_tables or data[at + 1] > 2 or length > <uint64_t>(stop - at):
            raise FormatError(f"a change of tables at byte {at} cannot be read")
        if table != before:
            if before >= 0:
                out.append((before, start, at))
            before, start = table, at
        at += length
    if before >= 0:
        out.append((before, start, at))
    return out


def sync_path(path):
    """Wait until a file, or the names in a directory, are on disk; compiled, so that no interruption leaves it open."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


cdef reserve(int descriptor, Py_ssize_t start, Py_ssize_t n_bytes):
    """Make a file longer by bytes that have a place on the disk: to write them through a map cannot fail then."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, n_bytes)
    else:
        while n_bytes:
            done = os.pwrite(descriptor, bytes(n_bytes), start)
            start += done
            n_bytes -= done


cdef class FileLogCore(LogCore):
    """Base of :class:`dlbf.storage.filelog.FileLog`, which brings ``commit_slowly``."""

    cpdef commit(
        self, WritesCore writes, txn, uint64_t position, bytes record, str written="journal-written",
        str done="commit-done"
    ):
        """Append the record, and what the transaction has changed, and show both."""
        self.commit_slowly(txn, position, record, written)
        writes.give_turn()
        reached(done)
