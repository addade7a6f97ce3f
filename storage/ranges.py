"""Cutting ordered keys into ranges, and reading one of them in short views."""

from collections.abc import Callable, Iterator, Sequence

__all__ = ["batches_between", "even_cuts"]

# A sample that has so many keys for each part cuts better than the range of the keys does.
SAMPLED_KEYS = 16


def even_cuts(n_parts: int, sampled: Sequence[bytes], first_after: Callable[[bytes], bytes | None]) -> list[bytes]:
    """Keys that divide all of them in parts: quantiles of a sample, or what is there at even steps through the range.

    ``first_after`` gives the first key above another one.
    """
    if len(sampled) >= SAMPLED_KEYS * n_parts:
        ordered = sorted(sampled)
        return sorted({ordered[i * len(ordered) // n_parts] for i in range(1, n_parts)})
    first = first_after(b"")
    if first is None:
        return []
    top = last_key(first_after)
    shared = next((i for i, (a, b) in enumerate(zip(first, top, strict=False)) if a != b), min(len(first), len(top)))
    low, high = (int.from_bytes(key[shared : shared + 8].ljust(8, b"\0"), "big") for key in (first, top))
    found = {
        key
        for i in range(1, n_parts)
        if (key := first_after(first[:shared] + (low + (high - low) * i // n_parts).to_bytes(8, "big"))) is not None
    }
    return sorted(found)


def last_key(first_after: Callable[[bytes], bytes | None]) -> bytes:
    """About the last key: byte by byte the largest that a key begins with, eight of them."""
    last = b""
    for _ in range(64):
        low, high = 0, 255
        while low < high:
            middle = (low + high + 1) // 2
            if first_after(last + bytes([middle])) is not None:
                low = middle
            else:
                high = middle - 1
        if first_after(last + bytes([low])) is None:
            break
        last += bytes([low])
    return last


def batches_between(
    read: Callable[[bytes | None], list[bytes]], after: bytes | None, upto: bytes | None
) -> Iterator[list[bytes]]:
    """Keys above ``after`` up to and with ``upto``; None: all on that side.  ``read`` gives the next above a key."""
    while keys := read(after):
        own = keys if upto is None or keys[-1] <= upto else [key for key in keys if key <= upto]
        if own:
            yield own
        if len(own) < len(keys):
            return
        after = keys[-1]
