"""Keys with a chosen XXH3-64 hash: why a hash without a secret protects nothing.

XXH3-64 of 32 to 128 bytes is a sum over pieces of 16 bytes, finished by a bijection.  A piece ``(u, v)`` adds the
folded 128-bit product of ``u ^ a`` and ``v ^ b``, where ``a`` and ``b`` are public constants.  With ``u = a ^ 1`` the
product is ``v ^ b`` itself, so one piece can make up for whatever the others add: any text of 16, 32, ... 112 bytes,
followed by 16 computed ones, has any hash one likes.  No search is needed, and there are as many such keys as texts.
"""

from __future__ import annotations

from dlbf.kernels.hashing import hash64

__all__ = ["key_with_hash"]

WORD = (1 << 64) - 1
# Bytes 16 to 31 of the constants in the XXH3 specification: those of the last piece of a key.
LAST_A = int.from_bytes(bytes.fromhex("ded46de9839097db"), "little")
LAST_B = int.from_bytes(bytes.fromhex("7240a4a4b7b3671f"), "little")
MULTIPLIER = 0x165667919E3779F9
INVERSE = pow(MULTIPLIER, -1, 1 << 64)
PIECE_BYTES = 16
MAX_TEXT_BYTES = 112


def _unfinished(value: int) -> int:
    """The sum whose finished form is ``value``: XXH3's last step backwards."""
    value ^= value >> 32
    value = value * INVERSE & WORD
    return value ^ (value >> 37)


def _last_piece(u: int, v: int) -> bytes:
    return (u ^ LAST_A).to_bytes(8, "little") + (v ^ LAST_B).to_bytes(8, "little")


def key_with_hash(text: bytes, value: int) -> bytes:
    """A key that begins with `text` and has the unkeyed hash `value`.

    Parameters
    ----------
    text : bytes
        Cut to a multiple of 16 bytes, at most 112; shorter than 16, it is filled up with ``-``.
    value : int
        The hash wanted, 64 bits.

    Examples
    --------
    >>> from dlbf.kernels.hashing import hash64
    >>> key = key_with_hash(b"evil.example/any/text/at/all", hash64(b"a stored key"))
    >>> key[:16], hash64(key) == hash64(b"a stored key")
    (b'evil.example/any', True)
    """
    if not 0 <= value <= WORD:
        raise ValueError(f"value: expected a 64-bit hash, found {value!r}")
    whole = text[: min(len(text) // PIECE_BYTES * PIECE_BYTES, MAX_TEXT_BYTES)] or text.ljust(PIECE_BYTES, b"-")
    # A last piece with u = 0 adds nothing: what is left is the sum over the text.
    rest = _unfinished(hash64(whole + _last_piece(0, 0)))
    return whole + _last_piece(1, (_unfinished(value) - rest) & WORD)
