"""Static composites: the model and regions of a learned filter, with a ribbon filter of its keys in each region."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dlbf.filters.ribbon import RIBBON, SortedHashes, fill_ribbon
from dlbf.filters.ribbon_sizes import RibbonGeometry, ribbon_bytes, ribbon_fpr, ribbon_geometry
from dlbf.learned.assembly import DELETED, MEMBER, MEMBER_ID, Part, composite_bytes
from dlbf.learned.composite import C, Composite, empty_like, fill_parts, parts_of, set_counts
from dlbf.learned.explanation import Explanation

__all__ = ["can_be_static", "static_bytes", "static_cap", "static_composite", "static_rates"]

# A region that lets more than this pass gets no filter.
ALL_PASS = 0.99


def can_be_static(composite: Composite) -> bool:
    """Whether model and regions are all that its design needs to decide whether a key passes."""
    return composite.design == "auto" and not any(part.role == DELETED for part in parts_of(composite))


def static_cap(composite: Composite) -> float:
    """The largest rate that a region may have, from what the composite was planned for."""
    targets = composite.plan.targets
    adversarial, deletability = targets.get("adversarial_fpr"), targets.get("deletability")
    return min(1.0 if adversarial is None else float(adversarial), 1 - float(deletability or 0.0))


def static_rates(plan: Explanation, fpr: float, cap: float) -> list[float]:
    """The rate of each region for which the whole is smallest: ``min(cap, mu * key_share / counted_share)``.

    Examples
    --------
    >>> import dlbf
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> keys, absent = list(listed_urls(3000)), list(ordinary_urls(6000))
    >>> lf = dlbf.LearnedFilter.fit(keys, absent, fpr=0.01, model="ngram", progress=False)
    >>> rates = static_rates(lf.plan, 0.01, 0.1)
    >>> shares = [region.query_share for region in lf.plan.regions]
    >>> max(rates) <= 0.1, round(sum(h * e for h, e in zip(shares, rates)), 4)
    (True, 0.01)
    """
    keys = np.array([region.key_share for region in plan.regions])
    queries = np.array([region.counted_share for region in plan.regions])

    def rates(mu: float) -> npt.NDArray[np.float64]:
        return np.asarray(np.minimum(cap, mu * keys / np.maximum(queries, 1e-12)), dtype=np.float64)

    if cap * queries.sum() <= fpr:
        return [cap] * len(plan.regions)
    low, high = 0.0, 1.0
    while queries @ rates(high) < fpr and high < 1e9:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if queries @ rates(middle) < fpr else (low, middle)
    return [float(max(rate, 1e-9)) for rate in rates(low)]


def static_bytes(composite: Composite, rates: Sequence[float], n_keys: int) -> int:
    """Bytes of the static composite of ``n_keys`` that are spread over the regions as planned."""
    parts = [
        _part(r, ribbon_geometry(math.ceil(region.key_share * n_keys), rate))
        for r, (region, rate) in enumerate(zip(composite.plan.regions, rates, strict=True))
        if rate < ALL_PASS
    ]
    return composite_bytes(parts, composite.model_bytes)


def _part(region: int, geometry: RibbonGeometry) -> Part:
    return Part(MEMBER, region, RIBBON.number, MEMBER_ID, (*geometry, 0))


def static_composite(composite: C, hashes: Sequence[npt.NDArray[np.uint64]], rates: Sequence[float], cap: float) -> C:
    """The static composite with the model and regions of ``composite``.

    Parameters
    ----------
    composite : Composite
        Its own keys do not matter.
    hashes : sequence of numpy arrays of uint64
        Those of the keys of each region, which are used up.
    rates : sequence of float
        Of each region.
    cap : float
        The largest that they may be, for whoever plans the next one.
    """
    counts = [len(own) for own in hashes]
    keys = {r: SortedHashes(own, MEMBER_ID) for r, own in enumerate(hashes) if rates[r] < ALL_PASS}
    while True:
        geometries = {r: own.geometry(rates[r]) for r, own in keys.items()}
        parts = [_part(r, geometry) for r, geometry in geometries.items()]
        plan = _plan(composite, counts, geometries, parts, cap)
        # Parts see the hash as it is: the hashes are all there is of the keys.
        made = empty_like(composite, parts, plan, max(1, sum(counts)), keep_keys=False)
        solved = [
            fill_ribbon(own, geometries[r], payload)
            for (r, own), payload in zip(keys.items(), fill_parts(made), strict=True)
        ]
        if all(solved):
            break
    set_counts(made, sum(counts), sum(n for r, n in enumerate(counts) if r not in keys))
    return made


def _plan(
    composite: Composite, counts: list[int], geometries: dict[int, RibbonGeometry], parts: list[Part], cap: float
) -> Explanation:
    """What the new filter says about itself."""
    before, total = composite.plan, max(1, sum(counts))
    rates = [ribbon_fpr(geometries[r]) if r in geometries else 1.0 for r in range(len(counts))]
    return replace(
        before,
        design="auto",
        fpr=sum(region.query_share * rate for region, rate in zip(before.regions, rates, strict=True)),
        deletability=0.0,
        adversarial_fpr=max(rates),
        bits_per_key=8 * composite_bytes(parts, composite.model_bytes) / total,
        model_bits_per_key=8 * composite.model_bytes / total,
        n_keys=total,
        initial_fpr=1.0,
        initial_bytes=0,
        targets=before.targets | {"headroom": 1.0, "deletability": 0.0, "adversarial_fpr": cap},
        measured_fpr=None,
        regions=tuple(
            replace(
                region,
                key_share=counts[r] / total,
                n_keys=counts[r],
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
