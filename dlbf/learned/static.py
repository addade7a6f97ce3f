"""Static learned filters: planned from samples, then built from a hash and a region of each key.

Nobody need hold the keys: 9 bytes of each are enough, whatever its size.  A store reads its keys once::

    prepared = prepare(sample, negatives, Targets(design="static", ...), n_keys=n)     # dlbf.learned.fitting
    rates = static_rates(prepared.filter, fpr, cap)
    for batch in scan:
        ...                               # hash64_many(batch, secret), prepared.filter.region_of(batch)
    base = build_base(prepared.filter, rates, cap, hashes, regions)

The next base has the same model and regions, and other rates if the keys have moved between regions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Generic

import numpy as np
import numpy.typing as npt

from dlbf.errors import DlbfError
from dlbf.filters.base import secret_of
from dlbf.filters.ribbon import RIBBON, SortedHashes, fill_ribbon
from dlbf.filters.ribbon_sizes import RibbonGeometry, ribbon_bytes, ribbon_fpr, ribbon_geometry
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.ribbon import ribbon_partition
from dlbf.learned.assembly import DELETED, LEAST_RATE, MEMBER, MEMBER_ID, Part, composite_bytes
from dlbf.learned.composite import C, Composite, empty_like, fill_parts, member_id, parts_of, set_counts
from dlbf.learned.explanation import Explanation
from dlbf.learned.promises import keep_promise, upper_rate
from dlbf.theory import ALL, allocate, base_costs
from dlbf.typenames import Keys

__all__ = [
    "STATIC_COSTS",
    "StaticBuilder",
    "build_base",
    "build_static",
    "can_be_static",
    "static_bytes",
    "static_cap",
    "static_rates",
]

Hashes = npt.NDArray[np.uint64]
Regions = npt.NDArray[np.uint8]
GROWTH = 1.125


# What a region may have: a ribbon filter of any rate, or none.
STATIC_COSTS = (ALL, *base_costs("ribbon"))
# A region that lets more than this pass gets no filter.
ALL_PASS = 0.99


def can_be_static(composite: Composite) -> bool:
    """Whether model and regions are all that its design needs to decide whether a key passes."""
    return composite.design in ("auto", "static") and not any(part.role == DELETED for part in parts_of(composite))


def static_cap(composite: Composite) -> float:
    """The largest rate that a region may have, from what the composite was planned for."""
    targets = composite.plan.targets
    adversarial, deletability = targets.get("adversarial_fpr"), targets.get("deletability")
    return min(1.0 if adversarial is None else float(adversarial), 1 - float(deletability or 0.0))


def static_rates(pattern: Composite, fpr: float, cap: float) -> list[float]:
    """The rate of each region for which a base with the model and regions of ``pattern`` is smallest.

    Parameters
    ----------
    pattern : Composite
        Its plan has the shares of keys and queries in each region.
    fpr : float
        Rate that the base is to have; what is aimed at is a little lower, as the shares were measured on few queries.
    cap : float
        The largest that a region may have.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> import dlbf
    >>> keys, absent = list(listed_urls(3000)), list(ordinary_urls(6000))
    >>> lf = dlbf.LearnedFilter.fit(keys, absent, fpr=0.01, design="static", model="ngram", progress=False)
    >>> rates = static_rates(lf, 0.01, 0.1)
    >>> shares = [region.query_share for region in lf.plan.regions]
    >>> max(rates) <= 0.1, sum(h * e for h, e in zip(shares, rates)) <= 0.01
    (True, True)
    """
    plan = pattern.plan
    keys = [region.key_share for region in plan.regions]
    counts = np.array([region.query_share for region in plan.regions]) * plan.held_out
    counted = np.array([region.counted_share for region in plan.regions])
    floor = 1 / plan.held_out if plan.held_out else 0.0

    def attempt(aim: float) -> tuple[list[float], float]:
        found = allocate(keys, counted + floor, STATIC_COSTS, fpr=aim, adversarial_fpr=cap)
        # A region without keys lets nothing pass; what it would have is for those that may come.
        rates = [max(e, LEAST_RATE) if share else min(fpr, cap) for share, e in zip(keys, found.rates, strict=True)]
        kinds = float(counted @ np.array(found.rates))
        return rates, max(upper_rate(counts, found.rates), kinds) if plan.held_out else kinds

    made = keep_promise(fpr, fpr, attempt)
    assert made is not None  # there is always an attempt
    return made


def static_bytes(pattern: Composite, rates: Sequence[float], n_keys: int) -> int:
    """Bytes of the base of ``n_keys`` that are spread over the regions as planned."""
    counts = [math.ceil(region.key_share * n_keys) for region in pattern.plan.regions]
    parts = [_part(r, ribbon_geometry(counts[r], rate)) for r, rate in enumerate(rates) if rate < ALL_PASS]
    return composite_bytes(parts, pattern.model_bytes)


def _part(region: int, geometry: RibbonGeometry) -> Part:
    return Part(MEMBER, region, RIBBON.number, MEMBER_ID, (*geometry, 0))


def build_base(
    pattern: C, rates: Sequence[float], cap: float, hashes: Hashes, regions: Regions, *, workers: int | None = None
) -> C:
    """The static filter with the model and regions of ``pattern``, whatever that holds itself, and these rates.

    Parameters
    ----------
    pattern : Composite
        One that ``can_be_static``; it does not change.
    rates : sequence of float
        Of each region, see ``static_rates``.
    cap : float
        What the plan says was asked for, for whoever makes the next base.
    hashes, regions : numpy arrays
        As for ``build_static``; used up.
    workers : int, optional
        As for ``build_static``.
    """

    def explain(parts: list[Part], n_keys: list[int]) -> Explanation:
        return _as_built(pattern, parts, n_keys, cap)

    members = {r: (rate, MEMBER_ID) for r, rate in enumerate(rates) if rate < ALL_PASS}
    # Parts see the hash as it is, also where those of the pattern have keys of their own.
    return _build(pattern, members, hashes, regions, explain, False, workers)


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
    # A template that expected no keys there has no rate either: what lets nothing pass.
    members = {
        part.region: (ribbon_fpr(RibbonGeometry(*part.params[:4])) or 0.01, member_id(template, part.region))
        for part in parts
    }
    return _build(template, members, hashes, regions, lambda parts, n_keys: template.plan, True, workers)


def _build(
    template: C,
    members: dict[int, tuple[float, int]],
    hashes: Hashes,
    regions: Regions,
    explain: Callable[[list[Part], list[int]], Explanation],
    keep_keys: bool,
    workers: int | None,
) -> C:
    """A ribbon filter in each region that has a rate, with the number that its hashes are mixed with."""
    n_regions = len(template.plan.regions)
    before = ribbon_partition(hashes, regions, n_regions)
    n_keys = [before[r + 1] - before[r] for r in range(n_regions)]
    own: dict[int, SortedHashes] = {}
    for r, (_, filter_id) in members.items():
        own[r] = SortedHashes(hashes[before[r] : before[r + 1]], filter_id, workers)
        n_keys[r] = own[r].n_keys
    while True:
        geometries = {r: own[r].geometry(rate) for r, (rate, _) in members.items()}
        parts = [_part(r, geometry) for r, geometry in geometries.items()]
        made = empty_like(template, parts, explain(parts, n_keys), max(1, sum(n_keys)), keep_keys)
        solved = [
            fill_ribbon(own[r], geometry, room, workers)
            for (r, geometry), room in zip(geometries.items(), fill_parts(made), strict=True)
        ]
        if all(solved):
            break
    set_counts(made, sum(n_keys), sum(n for r, n in enumerate(n_keys) if r not in members))
    return made


def _as_built(pattern: Composite, parts: list[Part], n_keys: list[int], cap: float) -> Explanation:
    """What a base says about itself."""
    before, total = pattern.plan, max(1, sum(n_keys))
    geometries = {part.region: RibbonGeometry(*part.params[:4]) for part in parts}
    rates = [ribbon_fpr(geometries[r]) if r in geometries else 1.0 for r in range(len(n_keys))]
    return replace(
        before,
        design="static",
        fpr=sum(region.query_share * rate for region, rate in zip(before.regions, rates, strict=True)),
        deletability=0.0,
        adversarial_fpr=max(rates),
        bits_per_key=8 * composite_bytes(parts, pattern.model_bytes) / total,
        model_bits_per_key=8 * pattern.model_bytes / total,
        n_keys=total,
        initial_fpr=1.0,
        initial_bytes=0,
        targets=before.targets | {"headroom": 1.0, "deletability": 0.0, "adversarial_fpr": cap},
        measured_fpr=None,
        regions=tuple(
            replace(
                region,
                key_share=n_keys[r] / total,
                n_keys=n_keys[r],
                base=RIBBON.name if r in geometries else "all",
                n_bytes=ribbon_bytes(geometries[r]) if r in geometries else 0,
                fpr=rates[r],
                measured_fpr=None,
                deleted_base=None,
                deleted_fpr=None,
            )
            for r, region in enumerate(before.regions)
        ),
    )


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
