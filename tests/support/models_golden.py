"""Fixed models, fixed keys, one hash over all scores.  Run as a script it prints that hash.

Everything is drawn from SHA-256, so no library's random numbers are part of the promise.
"""

import hashlib
import struct

from dlbf.kernels.scoring import Scorer

GOLDEN = "d41d7ae14a6f8d35adf87cb0bcf18eca9784480abd1d20ca9ca7476866b82382"
N_KEYS = 20_000


def stream(name, n_bytes):
    """``n_bytes`` fixed bytes for a name."""
    blocks = (hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(-(-n_bytes // 32)))
    return b"".join(blocks)[:n_bytes]


def golden_keys(n=N_KEYS):
    """Lengths 0 to 400: half any bytes, half letters and separators as in addresses, some numbers."""
    text = b"abcdefghijklmnopqrstuvwxyzABCDEF0123456789....////--__%@?=&"
    keys = [b"", b"/", b"a", b"abc", b"10.0.0.1/x.exe", b"bit.ly/abc", b"1234567890", b"x" * 248, b"x" * 249 + b"/"]
    for i in range(n - len(keys)):
        raw = stream(f"key {i}", 404)
        length = int.from_bytes(raw[:2], "little") % (60 if i % 8 else 400)
        body = raw[4 : 4 + length]
        if i % 4 == 1:
            body = str(int.from_bytes(body[:8], "little")).encode()
        elif i % 2 == 0:
            body = bytes(text[b % len(text)] for b in body)
        keys.append(body)
    return keys


def golden_models():
    """One (parameters, payload) per form, view and corner."""
    models = []
    for form in (1, 2):
        for order, split, log2_weights in ((3, 47, 13), (2, 256, 9), (4, 0, 16), (3, 64, 4), (2, 47, 11)):
            payload = stream(f"table {form} {order}", 1 << (log2_weights - (form == 2)))
            models.append(((form, 1, 1, order, split, log2_weights, 2**64 - 37, 0, 0, 0), payload))
    for view in (2, 3):
        for shift in (0, 12, 40):
            raw = stream(f"terms {view} {shift}", 28 * 8)
            terms = []
            for i in range(28):
                a, b = struct.unpack_from("<ii", raw, 8 * i)
                terms.append(struct.pack("<HHii", i, 0, a >> 7, b))
            models.append(((3, view, 1, 0, 47, 0, 5, 28, shift, 0), b"".join(terms)))
        trees, firsts, at = [], [], 0
        for tree in range(12):
            raw = stream(f"tree {view} {tree}", 31 * 4)
            firsts.append(struct.pack("<I", at))
            for i in range(31):  # a full tree of depth four, numbered by level
                value, variable, _ = struct.unpack_from("<HBB", raw, 4 * i)
                if i < 15:
                    value %= 64 if variable % 28 < 24 else 1024
                    trees.append(struct.pack("<HHBB", value, 2 * i + 1, variable % 28, 0))
                else:
                    trees.append(struct.pack("<HHBB", value, 0, 255, 0))
            at += 31
        models.append(((4, view, 1, 0, 47, 0, 2**64 - 1, 12, 0, 0), b"".join(firsts + trees)))
    models.append(((0, 0, 1, 0, 256, 0, 0, 0, 0, 0), b""))
    return models


def golden_hash():
    state = hashlib.sha256()
    keys = golden_keys()
    for params, payload in golden_models():
        state.update(Scorer(params, payload).score_many(keys).astype("<i4").tobytes())
    return state.hexdigest()


if __name__ == "__main__":
    print(golden_hash())
