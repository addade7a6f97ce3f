"""Kinds of queries: so that one kind cannot buy itself a low rate, or a high one for the others, by its number.

A filter holds its rate over the absent keys that it learnt from.  Whoever asks for so much trivial junk that nine
tenths of these are his makes the plan believe that nine tenths of the queries are easy, and the rest may pass ten times
as often.  But junk looks unlike what others ask for, in its bytes, its length or its score: along some direction there
is a hill for each, with a valley between them.  So the queries are cut into kinds at the valleys, and the plan is asked
for two things: the rate over all of them, and at most ``MOST`` times that rate for each kind of a fair share.

By duality that is the plan for other shares of the queries, in which the kinds that would pass too often count for
more; ``robust_weights`` finds these.  Where no kind passes too often nothing changes.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["BINS", "MOST", "Labels", "excess", "kinds_of", "robust_weights"]

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]

# A kind of queries may pass so many times as often as the target says.
MOST = 1.25
# A kind is at least this share of the queries, and so many: fewer do not show a rate.
LEAST_SHARE = 0.05
LEAST_MEMBERS = 100
# Values are counted in so many bins, and cut where a bin has less than this share of the highest on either side.
VALLEY_BINS = 40
DEPTH = 0.4
# Kinds that are looked for, and directions in which keys differ most that are looked along.
MOST_KINDS = 8
AXES = 4
# Cells that bytes and pairs of bytes are counted in, and bytes of a key that are looked at.
CELLS = 128
MAX_BYTES = 256
# Bins of scores in which rates are weighed up, and how often.
BINS = 32
TURNS = 60


def _looks(keys: list[bytes]) -> Floats:
    """What each key looks like: square roots of how often bytes and pairs of bytes occur in it, and its length."""
    rows = np.zeros((len(keys), CELLS + 1))
    for row, key in zip(rows, keys, strict=True):
        data = np.frombuffer(key[:MAX_BYTES], dtype=np.uint8).astype(np.intp)
        if len(data):
            pairs = CELLS // 2 + (data[:-1] * 31 + data[1:]) % (CELLS // 2)
            counts = np.bincount(np.concatenate((data % (CELLS // 2), pairs)), minlength=CELLS)
            row[:CELLS] = np.sqrt(counts / counts.sum())
        row[CELLS] = np.log1p(len(key)) / 8
    return rows


def kinds_of(keys: list[bytes], scores: npt.ArrayLike) -> Labels:
    """The kind of each query, numbered from 0: cut where few lie between many.

    Examples
    --------
    >>> numbers = [i * 7919 % 10007 for i in range(1000, 1900)]
    >>> keys = [b"user:%d" % i for i in numbers] + [b"GET /index-%d.html" % i for i in numbers[:300]]
    >>> np.bincount(kinds_of(keys, [0] * 1200)).tolist()
    [900, 300]
    >>> int(kinds_of(keys[:900], range(900)).max())
    0
    """
    kinds = np.zeros(len(keys), dtype=np.intp)
    if len(keys) < 2 * LEAST_MEMBERS:
        return kinds
    least = max(LEAST_MEMBERS, LEAST_SHARE * len(keys))
    looks = np.column_stack((_looks(keys), np.asarray(scores, dtype=np.float64)))
    waiting, n_kinds = [np.arange(len(keys))], 1
    while waiting and n_kinds < MOST_KINDS:
        members = waiting.pop(0)
        found = _halves(looks[members], least)
        if found is not None:
            first = found if found.sum() <= len(found) / 2 else ~found
            kinds[members[first]] = n_kinds
            n_kinds += 1
            waiting += [members[first], members[~first]]
    return kinds


def _halves(looks: Floats, least: float) -> npt.NDArray[np.bool_] | None:
    """Which are above the deepest valley, in any of the directions in which they differ most; None if there is none."""
    if len(looks) < 2 * least:
        return None
    rows = looks[:, :-1] - looks[:, :-1].mean(axis=0)
    axes = np.linalg.eigh(rows.T @ rows)[1][:, -AXES:]
    best: tuple[float, npt.NDArray[np.bool_]] | None = None
    for values in (*(rows @ axes).T, looks[:, -1]):
        found = _valley(np.sort(values), least)
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], values > found[1]
    return best[1] if best is not None else None


def _valley(ordered: Floats, least: float) -> tuple[float, float] | None:
    """Where to cut values in two with at least ``least`` on each side, after how deep the valley is there."""
    low, high = np.quantile(ordered, (0.005, 0.995))
    if not high > low:
        return None
    counts, edges = np.histogram(ordered, VALLEY_BINS, (low, high))
    smooth = np.convolve(np.pad(counts, 1, mode="edge"), (0.25, 0.5, 0.25), mode="valid")
    # The highest on either side of each bin; a valley is low beside both.
    before = np.maximum.accumulate(smooth)
    after = np.maximum.accumulate(smooth[::-1])[::-1]
    depth = smooth / np.maximum(1e-9, np.minimum(before, after))
    middles = (edges[:-1] + edges[1:]) / 2
    below = np.searchsorted(ordered, middles)
    depth[(below < least) | (len(ordered) - below < least)] = 1.0
    best = np.flatnonzero(depth <= depth.min() + 1e-9)
    return (float(depth.min()), float(middles[best[len(best) // 2]])) if depth.min() < DEPTH else None


def robust_weights(
    key_shares: Floats, bins: Labels, kinds: Labels, fpr: float, worst: float, most: float = MOST
) -> tuple[Floats, float] | None:
    """What each query should count for, and the rate over queries so weighted; None where nothing need change.

    Parameters
    ----------
    key_shares : ndarray
        Share of the keys in each bin of scores.
    bins, kinds : ndarray of int
        Bin and kind of each query.
    fpr, worst : float
        Largest rate over all queries, and in any bin.
    most : float
        Largest rate of a kind, over ``fpr``.
    """
    n_kinds = int(kinds.max()) + 1 if len(kinds) else 0
    counts = np.zeros((n_kinds, len(key_shares)))
    np.add.at(counts, (kinds, bins), 1.0)
    sizes = counts.sum(axis=1)
    checked = sizes >= LEAST_MEMBERS
    if checked.sum() < 2:
        return None
    # The first row is all queries, with the target itself; a bin without queries has those that might have come.
    rows = np.vstack((counts.sum(axis=0), counts[checked])) + 1 / len(key_shares)
    shares = rows / rows.sum(axis=1)[:, None]
    limits = fpr * np.concatenate(([1.0], np.full(int(checked.sum()), most)))
    weights = np.zeros(len(rows))
    weights[0] = 1.0
    rates = _rates(key_shares, weights @ shares, shares, limits, worst)
    if (shares @ rates)[0] >= 0.999 * fpr or (rates >= worst).all():
        return None
    weights[:] = 1 / len(rows)
    for _ in range(TURNS):
        rates = _rates(key_shares, weights @ shares, shares, limits, worst)
        weights = weights * np.maximum(1e-3, shares @ rates / limits)
        weights /= weights.sum()
    rates = _rates(key_shares, weights @ shares, shares, limits, worst)
    per_kind = np.zeros(n_kinds)
    per_kind[checked] = weights[1:] / (sizes[checked] / len(kinds))
    found: Floats = weights[0] + per_kind[kinds]
    return found, float(weights @ shares @ rates)


def _rates(key_shares: Floats, query_shares: Floats, shares: Floats, limits: Floats, worst: float) -> Floats:
    """The best rates for these shares of queries, as high as all limits allow."""
    ratio = key_shares / query_shares
    low, high = 0.0, worst / max(1e-12, float(ratio[ratio > 0].min(initial=1.0)))
    for _ in range(60):
        level = (low + high) / 2
        if (shares @ np.minimum(worst, level * ratio) <= limits).all():
            low = level
        else:
            high = level
    rates: Floats = np.minimum(worst, low * ratio)
    return rates


def excess(rates: Floats, regions: Labels, kinds: Labels, fpr: float) -> float:
    """How many times too often queries pass, all or of one kind; ``rates`` are those of the regions."""
    passing = rates[regions]
    counts = np.bincount(kinds)
    per_kind = np.bincount(kinds, passing) / np.maximum(1, counts)
    return float(max(passing.mean(), (per_kind[counts >= LEAST_MEMBERS] / MOST).max(initial=0.0)) / fpr)
