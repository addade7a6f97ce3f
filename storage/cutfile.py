"""Whether LMDB's file has been cut short: a page that is not there would end the process when LMDB reads it (SIGBUS).

A file may be shorter than its newest transaction says and yet be whole: pages that were used and freed within one
transaction are never written.  So where it is too short LMDB's list of free pages is read, by system calls, and every
page behind the end must be in it.
"""

import os
import struct
import sys
from io import FileIO
from pathlib import Path

from dlbf.storage.layout import (
    META_FREE_ROOT_OFFSET,
    META_LAST_PAGE_OFFSET,
    META_MAGIC,
    META_MAGIC_OFFSET,
    META_PAGE_SIZE_OFFSET,
    META_TXN_ID_OFFSET,
    META_VERSION,
)

__all__ = ["lost_pages"]

# LMDB's pages: a header of 16 bytes, then the places of the nodes, each of which has a head of 8 bytes.
PAGE_HEAD_BYTES = 16
FLAGS_OFFSET = 10
NODE_HEAD = struct.Struct("<4H")
BRANCH_PAGE = 1
LARGE_NODE = 1  # its value is on pages of its own
NO_PAGE = 2**64 - 1
# Another process may commit while the list is read, and use its pages again.
MOST_TRIES = 10


def lost_pages(path: Path) -> int:
    """How many pages in use are behind the end of the file; 0 also where that cannot be told."""
    if sys.byteorder != "little" or struct.calcsize("P") != 8:
        return 0
    with FileIO(path) as file:
        for _ in range(MOST_TRIES):
            # In this order: a file grows before its meta page says so.
            meta = _newest_meta(file.fileno())
            n_lost = _count_lost(file.fileno(), *meta[1:]) if meta is not None else 0
            if not n_lost or meta == _newest_meta(file.fileno()):
                return n_lost
    return 0


def _newest_meta(file: int) -> tuple[int, int, int, int] | None:
    """Transaction, page size, last page, and the root of the free list; None if LMDB will refuse the file."""
    found = []
    offset = 0
    for _ in range(2):
        page = os.pread(file, META_TXN_ID_OFFSET + 8, offset)
        if len(page) < META_TXN_ID_OFFSET + 8:
            return None
        if struct.unpack_from("<II", page, META_MAGIC_OFFSET) != (META_MAGIC, META_VERSION):
            return None
        offset = struct.unpack_from("<I", page, META_PAGE_SIZE_OFFSET)[0]
        places = META_TXN_ID_OFFSET, META_LAST_PAGE_OFFSET, META_FREE_ROOT_OFFSET
        txn_id, last, root = (struct.unpack_from("<Q", page, place)[0] for place in places)
        found.append((txn_id, offset, last, root))
    return max(found)


def _count_lost(file: int, page_bytes: int, last: int, free_root: int) -> int:
    missing = range(os.fstat(file).st_size // page_bytes, last + 1)
    if not missing:
        return 0
    try:
        free = _free_pages(file, page_bytes, free_root)
    except struct.error:  # the list itself is cut
        return len(missing)
    return sum(number not in free for number in missing)


def _free_pages(file: int, page_bytes: int, root: int) -> set[int]:
    free: set[int] = set()
    ahead = [root] if root != NO_PAGE else []
    while ahead:
        page = os.pread(file, page_bytes, ahead.pop() * page_bytes)
        flags, end = struct.unpack_from("<HH", page, FLAGS_OFFSET)
        for place in struct.unpack_from(f"<{(end - PAGE_HEAD_BYTES) // 2}H", page, PAGE_HEAD_BYTES):
            low, high, node_flags, key_bytes = NODE_HEAD.unpack_from(page, place)
            if flags & BRANCH_PAGE:
                ahead.append(low | high << 16 | node_flags << 32)
                continue
            at = place + NODE_HEAD.size + key_bytes
            pages, n_bytes = page, low | high << 16
            if node_flags & LARGE_NODE:
                number = struct.unpack_from("<Q", page, at)[0]
                pages, at = os.pread(file, n_bytes, number * page_bytes + PAGE_HEAD_BYTES), 0
            n_pages = struct.unpack_from("<Q", pages, at)[0]
            free.update(struct.unpack_from(f"<{n_pages}Q", pages, at + 8))
    return free
