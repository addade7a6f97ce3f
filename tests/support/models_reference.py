"""The definition of every score, in plain Python integers: slow, obvious, and written from the definition.

Nothing here is shared with the kernels; a difference is a bug in one of the two.
"""

KEY_BYTES = 248
HEAD, TAIL, CROSS, START, END, BEFORE, AFTER = (
    0x2C1B3C6D, 0x297A2D39, 0x45D9F3B5, 0x7FEB352D, 0x6B2B5A91, 0x31848BAB, 0x58F38DED,
)  # fmt: skip
SHORTENERS = {
    b"t.co", b"t.ly", b"is.gd", b"v.gd", b"ow.ly", b"rb.gy", b"bit.ly", b"goo.gl", b"adf.ly", b"cutt.ly", b"tiny.cc",
    b"buff.ly", b"s.id", b"shorturl.at", b"tinyurl.com", b"rebrand.ly", b"bitly.com", b"bl.ink", b"lnkd.in", b"qr.ae",
}  # fmt: skip
DIGITS = frozenset(b"0123456789")
UPPER = frozenset(range(65, 91))
LOWER = frozenset(range(97, 123))
VOWELS = frozenset(b"aeiou")


def count(data, group):
    return sum(byte in group for byte in data)


def split_of(key, split_byte):
    at = key.find(bytes([split_byte])) if split_byte < 256 else -1
    return len(key) if at < 0 else at


def word_at(key, at):
    if len(key) < 4:
        return int.from_bytes(key, "little")
    at = min(max(at, 0), len(key) - 4)
    return int.from_bytes(key[at : at + 4], "little")


def ngram_indices(key, order, split_byte, log2_weights):
    """Table indices of a key, as a list."""
    key = key[:KEY_BYTES]
    n = len(key)
    split = split_of(key, split_byte)
    shift = 32 - log2_weights

    def index(value, multiplier):
        return (value * multiplier % 2**32) >> shift

    marked = b"\x02" + key + b"\x03"
    out = []
    for i in range(n + 3 - order):
        run = int.from_bytes(marked[i : i + order], "little")
        out.append(index(run, HEAD if i - 1 < split else TAIL))
    head = key[:split]
    depth = count(key, b"/")
    for seed, high, low in (
        (0x1F3D5B79, 0, n >> 1),
        (0x2A4C6E81, depth, n >> 3),
        (0x35B7D9FB, count(head, b"."), split >> 1),
        (0x4E607284, count(head, DIGITS), count(head, b"-")),
        (0x59ABCDEF, count(key, DIGITS), count(key, UPPER) >> 1),
        (0x6B8D0F21, count(key, b"-"), depth),
    ):
        out.append(index(seed ^ (high << 8 | low), CROSS))
    for at, multiplier in ((0, START), (n - 4, END), (split - 4, BEFORE), (split + 1, AFTER)):
        out.append(index(word_at(key, at), multiplier))
    return out


def log2_sixteen(value):
    """floor-by-bits log2 with 16 fraction bits, by squaring."""
    whole = value.bit_length() - 1
    mantissa = (value << 31) >> whole
    fraction = 0
    for _ in range(16):
        mantissa = mantissa * mantissa >> 31
        fraction *= 2
        if mantissa >= 1 << 32:
            fraction += 1
            mantissa >>= 1
    return (whole << 16) + fraction


COUNT_LOG = [0] + [c * log2_sixteen(c) for c in range(1, 256)]


def longest(kinds, wanted):
    best = run = 0
    for kind in kinds:
        run = run + 1 if kind == wanted else 0
        best = max(best, run)
    return best


def lexical_values(key, split_byte):
    length = min(len(key), 65535)
    key = key[:KEY_BYTES]
    n = len(key)
    split = split_of(key, split_byte)
    head = key[:split]
    named = DIGITS | UPPER | LOWER | frozenset(b"./-_%@?=&*#+")
    control = frozenset(range(33)) | {127}
    high = frozenset(range(128, 256))
    kinds = [1 if b in DIGITS else 2 if b in UPPER or b in LOWER else 0 for b in key]
    segment = key[key.rfind(b"/") + 1 :]
    extension = segment[segment.rfind(b".") + 1 :] if b"." in segment else b""
    digits, dots = count(head, DIGITS), count(head, b".")
    entropy = 0
    if n:
        total = sum(COUNT_LOG[key.count(bytes([b]))] for b in set(key))
        entropy = (COUNT_LOG[n] - total) * 16 // n >> 16
    return [
        length, count(key, DIGITS), count(key, UPPER), count(key, VOWELS), count(key, LOWER - VOWELS), count(key, b"."),
        count(key, b"/"), count(key, b"-"), count(key, b"_"), count(key, b"%"), count(key, b"@"), count(key, b"?=&*#+"),
        sum(b not in named and b not in control and b not in high for b in key), count(key, control), count(key, high),
        count(key, b"abcdef"), split, dots, digits, count(head, b"-"),
        int(dots == 3 and digits >= 4 and dots + digits == split), int(head in SHORTENERS), len(segment),
        len(extension),
        longest(kinds, 1), longest(kinds, 2),
        sum(i == 0 or kinds[i] != kinds[i - 1] for i in range(n)), entropy,
    ]  # fmt: skip


def magnitude(value):
    bits = value.bit_length()
    return value if bits <= 11 else ((bits - 10) << 10) | ((value >> (bits - 11)) & 1023)


def numeric_values(key):
    length = min(len(key), 65535)
    decimal = int(key) if 0 < len(key) <= 19 and all(b in DIGITS for b in key) else None
    key = key[:KEY_BYTES]
    head = key[:8].ljust(8, b"\0")
    tail = key[-4:].rjust(4, b"\0")
    value = decimal or 0
    return [
        length, *head, *tail, *(int.from_bytes(head[i : i + 2]) for i in (0, 2, 4, 6)),
        int.from_bytes(tail[:2]), int.from_bytes(tail[2:]), sum(b.bit_count() for b in key), key.count(b"\0"),
        int(decimal is not None), magnitude(value), value & 255, value % 10, value % 1000,
        magnitude(int.from_bytes(key[:8])), magnitude(int.from_bytes(head, "little")),
    ]  # fmt: skip


def i32(data, at):
    return int.from_bytes(data[at : at + 4], "little", signed=True)


def score(params, payload, key):
    """The score of a key under the ten stored parameters and the payload."""
    kind, view, _, order, split, log2_weights, bias, n_items, sum_shift, *_ = params
    bias = bias - 2**64 if bias >= 2**63 else bias
    payload = bytes(payload)
    if kind == 0:
        return 0
    if kind == 1:
        weights = [b - 256 if b > 127 else b for b in payload]
        return bias + sum(weights[i] for i in ngram_indices(key, order, split, log2_weights))
    if kind == 2:
        return bias + sum(
            (payload[i // 2] >> 4 * (i % 2) & 15) - 8 for i in ngram_indices(key, order, split, log2_weights)
        )
    values = lexical_values(key, split) if view == 2 else numeric_values(key)
    if kind == 3:
        total = 0
        for at in range(0, 12 * n_items, 12):
            x = values[int.from_bytes(payload[at : at + 2], "little")]
            total += (i32(payload, at + 4) * x + i32(payload, at + 8)) * x
        return bias + max(-(2**30), min(2**30, total // 2**sum_shift))
    total = bias
    nodes = payload[4 * n_items :]
    for tree in range(n_items):
        first = int.from_bytes(payload[4 * tree : 4 * tree + 4], "little")
        at = 0
        while nodes[6 * (first + at) + 4] != 255:
            node = nodes[6 * (first + at) :][:6]
            goes_left = values[node[4]] <= int.from_bytes(node[:2], "little")
            at = int.from_bytes(node[2:4], "little") + (not goes_left)
        leaf = nodes[6 * (first + at) :][:2]
        total += int.from_bytes(leaf, "little", signed=True)
    return total


class Reference:
    """`score` with the weights decoded once, for many keys."""

    def __init__(self, params, payload):
        self.params, self.payload = params, bytes(payload)
        self.weights = None
        if params[0] == 1:
            self.weights = [b - 256 if b > 127 else b for b in self.payload]
        elif params[0] == 2:
            self.weights = [half - 8 for b in self.payload for half in (b & 15, b >> 4)]

    def score(self, key):
        if self.weights is None:
            return score(self.params, self.payload, key)
        _, _, _, order, split, log2_weights, bias, *_ = self.params
        bias = bias - 2**64 if bias >= 2**63 else bias
        weights = self.weights
        return bias + sum([weights[i] for i in ngram_indices(key, order, split, log2_weights)])
