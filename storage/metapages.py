"""LMDB's pages as they lie in its file: the two meta pages, of each version of LMDB that there is.

LMDB 0.9 writes data format 1, LMDB 1.0 data format 3; an environment is of one of the two for ever, and the first bytes
of its file tell of which.  What differs here is the head of a page, to which LMDB 1.0 adds the transaction that wrote
it.  Behind the head, a meta page is the same in both::

    offset  bytes
    0       4      magic number
    4       4      data format
    8       8      address of the map
    16      8      size of the map
    24      48     record of the free list's database; its first four bytes are the page size
    72      48     record of the main database
    120     8      number of the last page in use
    128     8      transaction id, the last thing that a commit writes

In machine byte order.
"""

import os
import struct
from dataclasses import dataclass

__all__ = ["MAGIC", "META_BYTES", "Meta", "PageFormat", "format_of", "read_metas"]

MAGIC = 0xBEEFC0DE
# Of a page, from its start, as far as anything is read here.
META_BYTES = 160


@dataclass(frozen=True, slots=True)
class PageFormat:
    """How one version of LMDB lays out its pages."""

    name: str
    data_version: int
    head_bytes: int  # of every page, before its content
    places_from: int  # where a page counts the places of its nodes from

    @property
    def page_size_offset(self) -> int:
        return self.head_bytes + 24

    @property
    def free_root_offset(self) -> int:
        """The root of the first database, LMDB's list of free pages."""
        return self.head_bytes + 64

    @property
    def last_page_offset(self) -> int:
        return self.head_bytes + 120

    @property
    def txn_id_offset(self) -> int:
        return self.head_bytes + 128

    @property
    def flags_offset(self) -> int:
        """Of a page: what it is, and behind that where its list of nodes ends."""
        return self.head_bytes - 6


FORMATS = (
    PageFormat("LMDB 0.9", data_version=1, head_bytes=16, places_from=0),
    PageFormat("LMDB 1.0", data_version=3, head_bytes=24, places_from=24),
)


@dataclass(frozen=True, slots=True, order=True)
class Meta:
    """What one meta page says."""

    txn_id: int
    page_bytes: int
    last_page: int
    free_root: int


def format_of(page: bytes) -> PageFormat | None:
    """The format of the file that begins with this page; None: none that is known."""
    for candidate in FORMATS:
        end = candidate.head_bytes + 8
        if len(page) >= end and struct.unpack("=II", page[end - 8 : end]) == (MAGIC, candidate.data_version):
            return candidate
    return None


def read_metas(file: int) -> tuple[PageFormat, Meta, Meta] | None:
    """The two meta pages of an open file, by system calls; None if LMDB would refuse it, or does not know it here."""
    metas = []
    offset = 0
    kind = None
    for _ in range(2):
        page = os.pread(file, META_BYTES, offset)
        found = format_of(page)
        if found is None or len(page) < META_BYTES or (kind is not None and found is not kind):
            return None
        kind = found
        offset = struct.unpack_from("=I", page, kind.page_size_offset)[0]
        places = kind.txn_id_offset, kind.last_page_offset, kind.free_root_offset
        txn_id, last, root = (struct.unpack_from("=Q", page, place)[0] for place in places)
        metas.append(Meta(txn_id, offset, last, root))
    assert kind is not None
    return kind, metas[0], metas[1]
