"""The regions of a learned filter: what each holds, has room for and lets pass, and how to give them other room."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlbf.filters.part import stuck_count
from dlbf.learned.assembly import (
    DELETED,
    FEW_KEYS,
    INITIAL,
    MEMBER,
    Part,
    composite_bytes,
    part_fpr,
    scaled_params,
)
from dlbf.learned.composite import C, Composite, empty_like, open_part, parts_of

__all__ = [
    "Deletability",
    "expected_rates",
    "kept_rates",
    "predicted_deletability",
    "predicted_rates",
    "region_counts",
    "region_rooms",
    "relaid",
    "remainder",
    "slack",
]


class Deletability(NamedTuple):
    """Chance that a removed key answers "absent", in three readings; it rises from the first to the last."""

    first: float  # the first key that is removed
    average: float  # asked at once after each removal, on the average
    after: float  # asked when all have been removed


def predicted_rates(parts: Sequence[Part], key_counts: Sequence[int]) -> tuple[float, list[float]]:
    """Rates of the initial filter and of each region's members, as built and filled."""
    initial, members = 1.0, [1.0] * len(key_counts)
    shared = [part for part in parts if part.shares_with is not None]
    for part in parts:
        if part.role == INITIAL:
            initial = part_fpr(part.kind, part.params, sum(key_counts))
        elif part.role == MEMBER:
            if shared:
                # One array for all regions: the load is that of all of them together.
                probes = sum(key_counts[other.region] * other.params[1] for other in parts if other.role == MEMBER)
                filled = -math.expm1(-probes / part.params[0])
                members[part.region] = filled ** part.params[1]
            else:
                members[part.region] = part_fpr(part.kind, part.params, key_counts[part.region])
    return initial, members


def kept_rates(parts: Sequence[Part], rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Chance in each region that a removed key still passes: 1 where no filter of the region can remove keys.

    Examples
    --------
    >>> bloom, cuckoo = Part(MEMBER, 0, 1, 0, (64, 1, 0, 1)), Part(MEMBER, 1, 5, 0, (2, 24, 0))
    >>> kept_rates([bloom, cuckoo], np.array([0.5, 0.1])).tolist()
    [1.0, 0.1]
    """
    everywhere = any(part.role == INITIAL and part.row.deletable for part in parts)
    able = {part.region for part in parts if part.role != INITIAL and part.row.deletable}
    return np.where([everywhere or region in able for region in range(len(rates))], rates, 1.0)


def _is_shared(parts: Sequence[Part]) -> bool:
    """Whether one array of cells serves all regions."""
    return any(part.shares_with is not None for part in parts)


def region_rooms(composite: Composite) -> list[int]:
    """Keys that each region was planned for."""
    headroom = float(composite.plan.targets.get("headroom") or 1.0)
    return [max(FEW_KEYS, math.ceil(region.n_keys * headroom)) for region in composite.plan.regions]


def _part_counts(composite: Composite) -> list[int]:
    """Keys in each part, in the order of the parts; exact for tables, estimated for cells."""
    counts = []
    for number in range(len(parts_of(composite))):
        with open_part(composite, number) as inside:
            counts.append(int(inside.approximate_count()))
    return counts


def region_counts(composite: Composite) -> list[int]:
    """Keys in each region now; where nothing tells them apart, by the shares they were planned with."""
    regions, parts = composite.plan.regions, parts_of(composite)
    counts: list[int | None] = [None] * len(regions)
    if not _is_shared(parts):
        for part, n_keys in zip(parts, _part_counts(composite), strict=True):
            if part.role == MEMBER:
                counts[part.region] = n_keys
    rest = max(0, len(composite) - sum(n for n in counts if n is not None))
    unknown = sum(region.key_share for region, n in zip(regions, counts, strict=True) if n is None)
    return [
        n if n is not None else round(rest * region.key_share / unknown) if unknown else 0
        for region, n in zip(regions, counts, strict=True)
    ]


def slack(composite: Composite, share: float) -> int:
    """Keys that may come, wherever they fall, before any part holds more than ``share`` of its planned number."""
    parts = parts_of(composite)
    least = int(share * (composite.capacity or 0)) - len(composite)
    if _is_shared(parts):
        return least
    rooms = region_rooms(composite)
    for part, n_keys in zip(parts, _part_counts(composite), strict=True):
        if part.role == MEMBER:
            least = min(least, int(share * rooms[part.region]) - n_keys)
        elif part.role == DELETED and not part.row.growable:
            least = min(least, math.ceil(rooms[part.region] * composite.plan.deletions) - n_keys)
    return least


def remainder(composite: Composite) -> int:
    """Keys still counted in a filter from which every key was removed; 0 where the design leaves some anyway."""
    parts = parts_of(composite)
    if composite.false_negatives or not all(part.row.forgets for part in parts):
        return 0
    stuck = 0
    for number in range(len(parts)):
        with open_part(composite, number) as inside:
            stuck += stuck_count(inside)
    return max(0, composite.approximate_count() - stuck)


def expected_rates(composite: Composite, n_keys: int) -> tuple[float, float]:
    """The plan's false-positive rate and deletability, for ``n_keys`` spread over the regions as planned."""
    plan, parts = composite.plan, parts_of(composite)
    if composite.false_negatives or any(part.role == DELETED or not part.row.forgets for part in parts):
        return plan.fpr, plan.deletability
    initial, members = predicted_rates(parts, [math.ceil(region.key_share * n_keys) for region in plan.regions])
    passing = sum(region.query_share * rate for region, rate in zip(plan.regions, members, strict=True))
    kept = kept_rates(parts, initial * np.array(members))
    return initial * passing, 1 - float(np.array([region.key_share for region in plan.regions]) @ kept)


def predicted_deletability(composite: Composite, deleted: list[bytes]) -> Deletability:
    """Chance that these keys answer "absent": the first that is removed, on the average, and once all are gone."""
    plan, parts = composite.plan, parts_of(composite)
    if not deleted or not all(part.row.forgets for part in parts):
        # What a deletable Bloom filter has marked stays marked: the order of removals is of no matter.
        return Deletability(plan.deletability, plan.deletability, plan.deletability)
    gone = np.bincount(composite.region_of(deleted), minlength=len(plan.regions))
    counts = [round(region.key_share * len(composite)) for region in plan.regions]
    # Where deleted keys are remembered they are all answered "absent".
    told = {part.region for part in parts if part.role == DELETED}
    weights = np.array([0 if r in told else n for r, n in enumerate(gone)]) / len(deleted)

    def after(share: float) -> float:
        left = [max(0, n - round(share * int(out))) for n, out in zip(counts, gone, strict=True)]
        initial, members = predicted_rates(parts, left)
        return 1 - float(weights @ kept_rates(parts, initial * np.array(members)))

    # Simpson's rule over eight steps.
    values = [after(step / 8) for step in range(9)]
    average = (values[0] + 4 * sum(values[1:8:2]) + 2 * sum(values[2:8:2]) + values[8]) / 24
    return Deletability(values[0], average, values[8])


def relaid(composite: C, rooms: Sequence[int], region_keys: Sequence[int] | None = None) -> C:
    """An empty filter with the same model, regions and rates, and room for so many keys in each region.

    ``region_keys`` are the keys that each region has; without them, keys are expected where they were planned.
    """
    before = composite.plan
    sizes = [max(FEW_KEYS, int(n)) for n in rooms]
    parts = _resized(composite, sizes)
    shares = [region.key_share for region in before.regions]
    if region_keys is not None and any(region_keys):
        shares = [n / sum(region_keys) for n in region_keys]
    initial, members = predicted_rates(parts, [math.ceil(share * sum(sizes)) for share in shares])
    rates = initial * np.array(members)
    total = sum(sizes)
    n_bytes = {(part.role, part.region): part.nbytes for part in parts}
    plan = replace(
        before,
        fpr=float(np.array([region.query_share for region in before.regions]) @ rates),
        bits_per_key=8 * composite_bytes(parts, composite.model_bytes) / total,
        model_bits_per_key=8 * composite.model_bytes / total,
        n_keys=total,
        initial_fpr=initial,
        initial_bytes=n_bytes.get((INITIAL, 0), 0),
        targets=before.targets | {"headroom": 1.0},
        measured_fpr=None,
        regions=tuple(
            replace(
                region,
                key_share=shares[r],
                n_keys=sizes[r],
                n_bytes=n_bytes.get((MEMBER, r), 0),
                fpr=members[r],
                measured_fpr=None,
            )
            for r, region in enumerate(before.regions)
        ),
    )
    return empty_like(composite, parts, plan, total)


def _resized(composite: Composite, sizes: Sequence[int]) -> list[Part]:
    """The parts at the same rates, with room for so many keys in each region."""
    rooms, deletions = region_rooms(composite), composite.plan.deletions
    parts = parts_of(composite)
    shared = _is_shared(parts)
    resized = []
    for part in parts:
        old, new = sum(rooms), sum(sizes)
        if part.role != INITIAL and not shared:
            old, new = rooms[part.region], sizes[part.region]
        if part.role == DELETED:
            old, new = math.ceil(old * deletions), math.ceil(new * deletions)
        resized.append(replace(part, params=scaled_params(part.kind, part.params, old, new)))
    return resized
