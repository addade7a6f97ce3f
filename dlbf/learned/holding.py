"""Which negatives are held out of training, and what the filter does to samples unlike those it learnt from."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlbf.kernels.hashing import hash64_many

__all__ = [
    "ENOUGH_HITS",
    "Groups",
    "Held",
    "distinct",
    "hold_out",
    "host_of",
    "new_heads",
    "retouched",
    "standard_error",
    "without",
]

# What ``fit(groups=...)`` takes: "host", a function of the key, or a label for each negative.
Groups = str | Callable[[bytes], Hashable] | Sequence[Hashable]

# Negatives the model never sees: they choose the thresholds and measure the query shares.
HELD_OUT_SHARE = 0.2
# False positives expected among the held-out negatives below which a measured rate is not worth much (18 % error).
ENOUGH_HITS = 30
# Stored keys that are changed a little to see how many then pass.
RETOUCHED_KEYS = 4000


class Held(NamedTuple):
    """The negatives, divided.

    Attributes
    ----------
    held, learnt : list of bytes
        Those that measure, and those that the model learns from.
    labels : array of int or None
        The number of the group that each of ``held`` belongs to, if whole groups were held out.
    """

    held: list[bytes]
    learnt: list[bytes]
    labels: npt.NDArray[np.int64] | None = None


def host_of(key: bytes) -> bytes:
    """The host of a URL or an e-mail address, in lower case.

    Examples
    --------
    >>> host_of(b"https://user@Example.org:80/a/b"), host_of(b"ann@example.net"), host_of(b"example.com/x")
    (b'example.org', b'example.net', b'example.com')
    """
    _, mark, rest = key.partition(b"//")
    place = rest if mark and key.find(b"//") <= key.find(b":") + 1 else key
    for end in (b"/", b"?", b"#"):
        place = place.partition(end)[0]
    return place.rpartition(b"@")[2].partition(b":")[0].lower()


def _label_of(groups: Groups, keys: Sequence[bytes]) -> Callable[[bytes], Hashable]:
    """The function that names a key's group."""
    if isinstance(groups, str):
        if groups != "host":
            raise ValueError(
                f"groups must be 'host', a function of the key or labels of the negatives; found {groups!r}"
            )
        return host_of
    if callable(groups):
        return groups
    labels = list(groups)
    if len(labels) != len(keys):
        raise ValueError(f"groups must have a label for each of the {len(keys):,} negatives, found {len(labels):,}")
    return dict(zip(keys, labels, strict=True)).__getitem__


def hold_out(
    negatives: list[bytes], goal: float, random_state: int, groups: Groups | None = None, given: Sequence[bytes] = ()
) -> Held:
    """Divide the negatives: a fifth measures, or half where they are few for the rate ``goal``.

    With ``groups`` a group is held out as a whole or not at all; labels are those of ``given``, the negatives as they
    came.

    Examples
    --------
    >>> divided = hold_out([b"a/%d" % i for i in range(9)] + [b"b/1"], 0.01, 0, groups="host")
    >>> len({host_of(key) for key in divided.held} & {host_of(key) for key in divided.learnt})
    0
    """
    # They are drawn here, so that the model cannot have seen them whoever trains it.
    rng = np.random.default_rng(random_state)
    share = HELD_OUT_SHARE
    if len(negatives) * share * goal < ENOUGH_HITS:
        share = 0.5
    n_held = round(len(negatives) * share)
    if groups is None:
        order = rng.permutation(len(negatives)).tolist()
        return Held([negatives[i] for i in order[:n_held]], [negatives[i] for i in order[n_held:]])
    label_of = _label_of(groups, given)
    members: dict[Hashable, list[bytes]] = {}
    for key in negatives:
        members.setdefault(label_of(key), []).append(key)
    names = list(members)
    held: list[bytes] = []
    learnt: list[bytes] = []
    labels: list[int] = []
    for number in rng.permutation(len(names)).tolist():
        group = members[names[number]]
        # One that does not fit whole is learnt from, so that few large groups do not leave too little for that.
        if len(held) + len(group) <= n_held or (not held and len(names) > 1 and learnt):
            held += group
            labels += [number] * len(group)
        else:
            learnt += group
    return Held(held, learnt, np.array(labels, dtype=np.int64))


def distinct(keys: list[bytes]) -> list[bytes]:
    """Each key once, in the order of first appearance."""
    hashes = hash64_many(keys)
    if len(np.unique(hashes)) == len(keys):
        return keys
    return list(dict.fromkeys(keys))


def without(negatives: list[bytes], keys: list[bytes]) -> list[bytes]:
    """The negatives that are not among the keys."""
    same_hash = np.isin(hash64_many(negatives), hash64_many(keys))
    if not same_hash.any():
        return negatives
    stored = {negatives[i] for i in np.flatnonzero(same_hash).tolist()}.intersection(keys)
    return [key for key in negatives if key not in stored]


def new_heads(held: Iterable[bytes], learnt: Iterable[bytes], split: bytes | None) -> list[bytes]:
    """The held-out negatives whose head (a URL's host, what comes before ``split``) the model has never met.

    Examples
    --------
    >>> new_heads([b"a.org/1", b"b.org/1"], [b"a.org/2"], b"/")
    [b'b.org/1']
    """
    if split is None:
        return []
    known = {key.partition(split)[0] for key in learnt}
    return [key for key in held if key.partition(split)[0] not in known]


def retouched(keys: list[bytes], random_state: int = 0) -> list[bytes]:
    """Keys that are not stored but look as if: stored ones with two bytes taken from elsewhere in another.

    Examples
    --------
    >>> retouched([b"abcd", b"efgh", b"ijkl"])[0] in (b"abcd", b"efgh", b"ijkl")
    False
    """
    rng = np.random.default_rng(random_state)
    chosen = rng.permutation(len(keys))[:RETOUCHED_KEYS].tolist()
    made = []
    for at, number in enumerate(chosen):
        donor = keys[chosen[at - 1]]
        key = bytearray(keys[number])
        if len(key) < 4 or not donor:
            continue
        for place in rng.integers(0, len(key), 2).tolist():
            key[place] = donor[int(rng.integers(0, len(donor)))]
        made.append(bytes(key))
    return without(distinct(made), keys)


def standard_error(rates: npt.NDArray[np.float64], labels: npt.NDArray[np.int64] | None) -> float:
    """The standard error of the mean of ``rates``, the rate that each held-out negative meets.

    A negative of region r passes with probability ``e_r``.  The filter's own luck averages out over its keys; that of
    the draw does not: ``sqrt((sum H e^2 - f^2) / n)``.  With groups the draw is one of groups.

    Examples
    --------
    >>> float(round(standard_error(np.array([0.0, 0.0, 0.1, 0.1]), None), 4))
    0.025
    """
    n = len(rates)
    if not n:
        return math.inf
    apart = rates - rates.mean()
    if labels is not None:
        apart = np.bincount(np.unique(labels, return_inverse=True)[1], weights=apart)
    return math.sqrt(float((apart**2).sum())) / n
