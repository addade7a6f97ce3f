"""Static learned filters: planned from samples, then built from a hash and a region of each key.

Nobody need hold the keys: 9 bytes of each are enough, whatever its size.  A store reads its keys once::

    prepared = prepare(sample, negatives, Targets(design="static", ...), n_keys=n)     # dlbf.learned.fitting
    builder = StaticBuilder(prepared.filter)
    for batch in scan:
        builder.add(batch)
    base = builder.build()
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic

import numpy as np
import numpy.typing as npt

from dlbf.errors import DlbfError
from dlbf.filters.base import secret_of
from dlbf.filters.ribbon import SortedHashes, fill_ribbon
from dlbf.filters.ribbon_sizes import RibbonGeometry, ribbon_fpr
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.ribbon import ribbon_partition
from dlbf.learned.assembly import MEMBER, Part
from dlbf.learned.composite import C, empty_like, fill_parts, member_id, parts_of, set_counts
from dlbf.typenames import Keys

__all__ = ["StaticBuilder", "build_static"]

Hashes = npt.NDArray[np.uint64]
Regions = npt.NDArray[np.uint8]
GROWTH = 1.125


def build_static(template: C, hashes: Hashes, regions: Regions, *, workers: int | None = None) -> C:
    """A static filter of the keys that have these hashes, with the model, thresholds and rates of ``template``.

    Parameters
    ----------
    template : LearnedFilter
        Of the design ``"static"``, full or still empty; it does not change.
    hashes : numpy.ndarray of uint64
        The hash of every key under the template's secret (``hash64_many(keys, secret)``), repeated ones as they come.
        Brought into another order: the array is used up.
    regions : numpy.ndarray of uint8
        ``template.region_of(keys)``, in the same order; used up like the hashes.
    workers : int, optional
        Threads; by default one for every processor that this process may use.

    Returns
    -------
    LearnedFilter
        Its parts are as large as the keys of each region need, however many the template was planned for.

    Notes
    -----
    Needs no memory besides the arrays, the filter, and some hundred kilobytes for each thread.
    """
    parts = parts_of(template)
    if not all(part.row.static for part in parts):
        raise DlbfError(f"the design {template.design!r} is filled key by key; fit the template with design='static'")
    n_regions = len(template.plan.regions)
    before = ribbon_partition(hashes, regions, n_regions)
    members: dict[int, SortedHashes] = {}
    n_keys = [before[r + 1] - before[r] for r in range(n_regions)]
    for part in parts:
        if part.role == MEMBER:
            r = part.region
            members[r] = SortedHashes(hashes[before[r] : before[r + 1]], member_id(template, r))
            n_keys[r] = members[r].n_keys
    rates = {part.region: ribbon_fpr(RibbonGeometry(*part.params[:4])) for part in parts}
    made = None
    while made is None:
        sized = [_sized(part, members[part.region], rates[part.region]) for part in parts]
        made = _filled(template, sized, members, n_keys, workers)
    return made


def _sized(part: Part, keys: SortedHashes, rate: float) -> Part:
    """The part with the rows that these keys need."""
    # A template that expected no keys there has no rate either: what lets nothing pass.
    geometry = keys.geometry(rate or 0.01)
    return replace(part, params=(*geometry, *part.params[len(geometry) :]))


def _filled(
    template: C, parts: list[Part], members: dict[int, SortedHashes], n_keys: list[int], workers: int | None
) -> C | None:
    """The filter with these parts; None if one needs more rows than it has."""
    made = empty_like(template, parts, template.plan, max(1, sum(n_keys)))
    unstored = sum(n for r, n in enumerate(n_keys) if r not in members)
    solved = [
        fill_ribbon(members[part.region], RibbonGeometry(*part.params[:4]), room, workers)
        for part, room in zip(parts, fill_parts(made), strict=True)
    ]
    if not all(solved):
        return None
    set_counts(made, sum(n_keys), unstored)
    return made


class StaticBuilder(Generic[C]):
    """Collects what ``build_static`` needs of keys that come in batches: 9 bytes of each, or little more.

    Parameters
    ----------
    template : LearnedFilter
        As for ``build_static``.
    n_keys : int
        How many keys are expected, to make room for them at once.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> from dlbf.learned.fitting import Targets, prepare
    >>> keys, negatives = list(listed_urls(20000)), list(ordinary_urls(20000))
    >>> targets = Targets(fpr=0.01, design="static", model="ngram")
    >>> builder = StaticBuilder(prepare(keys[:5000], negatives, targets, n_keys=len(keys)).filter)
    >>> for start in range(0, len(keys), 1000):
    ...     builder.add(keys[start : start + 1000])
    >>> lf = builder.build()
    >>> len(lf), bool(lf.contains_many(keys).all())
    (20000, True)
    """

    def __init__(self, template: C, n_keys: int = 0) -> None:
        self._template = template
        self._hashes: Hashes = np.empty(max(1024, n_keys), dtype=np.uint64)
        self._regions: Regions = np.empty(max(1024, n_keys), dtype=np.uint8)
        self._n_keys = 0

    def __len__(self) -> int:
        return self._n_keys

    def add(self, keys: Keys) -> None:
        """Take a batch of keys, as other filters do; repeated ones count once."""
        # They are read twice: for hashes, and for regions.
        batch = list(keys) if isinstance(keys, Iterator) else keys
        hashes = hash64_many(batch, secret_of(self._template))
        n = self._n_keys + len(hashes)
        if n > len(self._hashes):
            room = max(n, math.ceil(GROWTH * self._n_keys))
            self._hashes.resize(room, refcheck=False)
            self._regions.resize(room, refcheck=False)
        self._hashes[self._n_keys : n] = hashes
        self._regions[self._n_keys : n] = self._template.region_of(batch)
        self._n_keys = n

    def build(self, workers: int | None = None) -> C:
        """The filter; the builder is empty afterwards."""
        n, hashes, regions = self._n_keys, self._hashes, self._regions
        self._n_keys, self._hashes, self._regions = 0, np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint8)
        return build_static(self._template, hashes[:n], regions[:n], workers=workers)
