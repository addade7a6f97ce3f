"""Which server has which slots of a cluster, as a majority of its primaries knows it."""

import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dlbf.storage.fleet.channel import SLOTS, Unanswered

__all__ = ["Layout", "merged", "owners", "ranges_of"]


class Layout:
    """The servers that have slots, by their names in the cluster, and a word that changes when a slot moves.

    Attributes
    ----------
    slots : dict
        The ranges of each server, as ``b"0-5460,5462"``.
    word : bytes
        Never the same twice while a slot is on its way.
    """

    def __init__(self, slots: dict[bytes, bytes], word: bytes) -> None:
        self.slots = slots
        self.word = word


def merged(views: dict[bytes, bytes]) -> Layout:
    """What primaries say together: of two that claim a slot the later elected has it.

    Parameters
    ----------
    views
        What ``CLUSTER NODES`` says on each server, by the server's name.

    Raises
    ------
    Unanswered
        If no majority of those that have slots was asked, or a slot has no server.

    Examples
    --------
    >>> a = b"aa 1:1@2 myself,master - 0 0 1 connected 0-9999\\nbb 1:2@3 master - 0 0 2 connected 10000-16383\\n"
    >>> merged({b"aa": a, b"bb": a.replace(b"myself,", b"")}).slots
    {b'aa': b'0-9999', b'bb': b'10000-16383'}
    """
    elected = np.full(SLOTS, -1, dtype=np.int64)
    owner = np.full(SLOTS, -1, dtype=np.int32)
    names: list[bytes] = []
    moving = False
    for view in views.values():
        for line in view.splitlines():
            words = line.split()
            if len(words) < 8 or b"master" not in words[2].split(b","):
                continue
            epoch = int(words[6])
            if words[0] not in names:
                names.append(words[0])
            number = names.index(words[0])
            for part in words[8:]:
                if part.startswith(b"["):
                    moving = True
                    continue
                first, _, last = part.partition(b"-")
                span = slice(int(first), int(last or first) + 1)
                later = elected[span] < epoch
                elected[span][later] = epoch
                owner[span][later] = number
    if (owner < 0).any():
        raise Unanswered(f"{int((owner < 0).sum())} slots of the cluster have no server")
    slots = {names[number]: ranges_of(np.flatnonzero(owner == number).tolist()) for number in np.unique(owner)}
    if 2 * len(slots.keys() & views.keys()) <= len(slots):
        raise Unanswered(f"{len(slots.keys() & views.keys())} of the cluster's {len(slots)} primaries answered")
    word = b";".join(b"%s %s" % pair for pair in sorted(slots.items()))
    return Layout(dict(sorted(slots.items())), word + (b" %d" % time.monotonic_ns() if moving else b""))


def ranges_of(slots: Sequence[int]) -> bytes:
    """Sorted slots as ranges.

    Examples
    --------
    >>> ranges_of([0, 1, 2, 7, 9, 10])
    b'0-2,7,9-10'
    """
    parts: list[list[int]] = []
    for slot in slots:
        if parts and parts[-1][1] == slot - 1:
            parts[-1][1] = slot
        else:
            parts.append([slot, slot])
    return b",".join(b"%d" % first if first == last else b"%d-%d" % (first, last) for first, last in parts)


@lru_cache(maxsize=8)
def owners(places: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """For each slot the identity of the server that had it; b"" if none had.

    Examples
    --------
    >>> table = owners((b"x 0-9,11", b"y 10"))
    >>> table[9], table[10], table[11], table[12]
    (b'x', b'y', b'x', b'')
    """
    table = [b""] * SLOTS
    for place in places:
        identity, _, ranges = place.partition(b" ")
        for part in ranges.split(b","):
            first, _, last = part.partition(b"-")
            if first:
                table[int(first) : int(last or first) + 1] = [identity] * (int(last or first) + 1 - int(first))
    return tuple(table)
