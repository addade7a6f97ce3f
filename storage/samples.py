"""What a rebuild learns from: absent keys that are asked for, and a sample of the keys there are."""

import random
from collections.abc import Callable, Iterable
from itertools import islice

from dlbf.kernels.keys import read_keys
from dlbf.storage.keys import Key
from dlbf.storage.log import Log, View
from dlbf.storage.source import Source

__all__ = ["DELETABILITY", "LEAST_KEYS", "LEAST_NEGATIVES", "absent_now", "sample_keys"]

SCAN_KEYS_PER_STEP = 16384
# So many keys and absent keys are needed before it is worth asking whether a model pays.
LEAST_KEYS = 1000
LEAST_NEGATIVES = 500
# Deleted keys that answer "absent" at once, of a hundred: what fit() has by default, too.
DELETABILITY = 0.9


def absent_now(
    log: Log[View], source: Source[View], negatives: Iterable[Key] | None, limit: int
) -> tuple[list[bytes], int]:
    """Absent keys that are asked for: those given, or the sampled ones; and how many were left out because they are in
    the store by now.

    Each once: a program that polls for one key teaches nothing about others, and a key that is held out to measure with
    must not be one that was learnt.
    """
    rng = random.Random(0)
    found: list[bytes] = []
    if negatives is None:
        with log.reading() as txn:
            found = list(islice(log.read_misses(txn), limit))
    else:
        # A reservoir: uniform over what is given, however much that is.
        seen = 0
        if isinstance(negatives, (str, bytes, bytearray, memoryview)):
            read_keys(negatives)  # says that this is one key
        batches = iter(negatives)
        while batch := read_keys(list(islice(batches, 65536))):
            for key in batch:
                seen += 1
                if len(found) < limit:
                    found.append(key)
                elif (at := rng.randrange(seen)) < limit:
                    found[at] = key
    found = list(dict.fromkeys(found))
    absent: list[bytes] = []
    for first in range(0, len(found), SCAN_KEYS_PER_STEP):
        part = found[first : first + SCAN_KEYS_PER_STEP]
        absent.extend(key for key, value in zip(part, source.fetch_many(part), strict=True) if value is None)
    rng.shuffle(absent)
    return absent, len(found) - len(absent)


def sample_keys(source: Source[View], n_keys: int, limit: int, report: Callable[[int, int], None]) -> list[bytes]:
    """All keys, or a uniform sample of about ``limit`` of them, read in short transactions."""
    rng = random.Random(0)
    share = min(1.0, limit / max(1, n_keys))
    kept: list[bytes] = []
    passed = 0
    for part in source.batches(SCAN_KEYS_PER_STEP):
        passed += len(part)
        if share >= 1:
            kept.extend(part)
        else:
            expected = share * len(part)
            n_wanted = int(expected) + (rng.random() < expected % 1)
            kept.extend(rng.sample(part, min(n_wanted, len(part))))
        report(min(passed, n_keys), n_keys)
        if len(kept) >= 2 * limit:
            break  # a store that has doubled meanwhile; what there is will do
    return kept
