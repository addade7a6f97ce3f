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

from dlbf.storage.metapages import Meta, PageFormat, read_metas

__all__ = ["lost_pages"]

# Behind the head of a page come the places of its nodes, each of which has a head of 8 bytes.
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
            n_lost = _count_lost(file.fileno(), *meta) if meta is not None else 0
            if not n_lost or meta == _newest_meta(file.fileno()):
                return n_lost
    return 0


def _newest_meta(file: int) -> tuple[PageFormat, Meta] | None:
    """The meta page of the newest transaction; None if LMDB will refuse the file."""
    metas = read_metas(file)
    return (metas[0], max(metas[1:])) if metas is not None else None


def _count_lost(file: int, kind: PageFormat, meta: Meta) -> int:
    missing = range(os.fstat(file).st_size // meta.page_bytes, meta.last_page + 1)
    if not missing:
        return 0
    try:
        free = _free_pages(file, kind, meta)
    except struct.error:  # the list itself is cut
        return len(missing)
    return sum(number not in free for number in missing)


def _free_pages(file: int, kind: PageFormat, meta: Meta) -> set[int]:
    page_bytes, head_bytes = meta.page_bytes, kind.head_bytes
    free: set[int] = set()
    ahead = [meta.free_root] if meta.free_root != NO_PAGE else []
    while ahead:
        page = os.pread(file, page_bytes, ahead.pop() * page_bytes)
        flags, end = struct.unpack_from("<HH", page, kind.flags_offset)
        n_nodes = (end + kind.places_from - head_bytes) // 2
        for place in struct.unpack_from(f"<{n_nodes}H", page, head_bytes):
            place += kind.places_from
            low, high, node_flags, key_bytes = NODE_HEAD.unpack_from(page, place)
            if flags & BRANCH_PAGE:
                ahead.append(low | high << 16 | node_flags << 32)
                continue
            at = place + NODE_HEAD.size + key_bytes
            pages, n_bytes = page, low | high << 16
            if node_flags & LARGE_NODE:
                number = struct.unpack_from("<Q", page, at)[0]
                pages, at = os.pread(file, n_bytes, number * page_bytes + head_bytes), 0
            n_pages = struct.unpack_from("<Q", pages, at)[0]
            free.update(struct.unpack_from(f"<{n_pages}Q", pages, at + 8))
    return free
