"""The plan of a design: which filters to build, and what they will cost and deliver."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dlbf.filters.kinds import BASES
from dlbf.notebook import Shown
from dlbf.plain import plain_data
from dlbf.theory.designs import get_design

__all__ = ["FilterPlan", "Plan", "RegionPlan"]


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """One base filter to build.

    Attributes
    ----------
    base : str
        Kind: ``"bits"``, ``"counters"``, ``"succinct"``, ``"dlbf"``, ``"d-left"``, ``"cuckoo"``, ``"exact"``;
        ``"all"`` is no filter.
    fpr : float
        Rate to build it for.
    bits_per_key : float
        Bits per key *it stores*.
    hashes : int or None
        Hashes, where the plan fixes them (a shared array, a deletable Bloom filter).
    marks : float or None
        Share of the bits that mark collisions, in a deletable Bloom filter.
    kept : float or None
        Chance that a removed key still passes, where that is not the rate for strangers: in a deletable Bloom filter.

    Examples
    --------
    >>> from dlbf.theory import plan
    >>> p = plan("cuckoo", fpr=0.01)
    >>> p.regions[0].member.base, round(p.regions[0].member.fpr, 3)
    ('cuckoo', 0.01)
    """

    base: str
    fpr: float
    bits_per_key: float
    hashes: int | None = None
    marks: float | None = None
    kept: float | None = None

    def kept_at(self, load: float) -> float:
        """Chance that a removed key still passes while the filter holds a share `load` of its keys.

        A removed key is a stranger to the keys that are left, so it is the rate at that load.  A deletable Bloom filter
        differs: what its collisions have marked stays marked, however many keys go.
        """
        if self.base == "all" or self.kept is not None:
            return 1.0 if self.kept is None else self.kept
        return BASES[self.base].rate_at_load(self.fpr, load, self.hashes)


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """One score region: what falls into it and the filters it has.

    Attributes
    ----------
    key_share, query_share : float
        Shares of the keys and of the absent-key queries (``G_r``, ``H_r``).
    member : FilterPlan
        Filter of the stored keys.
    deleted : FilterPlan or None
        Filter of the deleted keys.

    Examples
    --------
    >>> from dlbf.theory import plan
    >>> p = plan("plbf-cbf", key_shares=[0.2, 0.8], query_shares=[0.9, 0.1], fpr=0.01)
    >>> [(region.key_share, round(region.member.fpr, 4)) for region in p.regions]
    [(0.2, 0.0022), (0.8, 0.08)]
    """

    key_share: float
    query_share: float
    member: FilterPlan
    deleted: FilterPlan | None = None


@dataclass(frozen=True, slots=True)
class Plan(Shown):
    """What ``plan`` found.

    Attributes
    ----------
    design : str
        Name of the design.
    feasible : bool
        Do the targets and the budget fit together?  If not, `reason` says why, `min_bits` what would do, and the
        rates are NaN.
    fpr : float
        Rate for a query drawn like the query shares.
    fnr : float
        Rate of stored keys answered "absent"; 0 for designs that promise none.
    deletability : float
        Chance that the first key to be removed is then answered "absent": the least, because every removal makes the
        next one surer (``deletability_after``, ``average_deletability``).  0 for designs that cannot delete.
    adversarial_fpr : float
        Rate for someone who can forge any score but not the hash (keyed hashing).
    bits : float
        Bits per key, model included.
    model_bits : float
        Of these, the model's.
    min_bits : float
        Smallest budget for which the design and its deletability and adversarial targets are feasible; inf if none is.
    initial : FilterPlan or None
        Filter in front of the model.
    regions : tuple of RegionPlan
        Low score to high.
    cuts : tuple of int
        Which of the given shares each region covers: its inner edges, as indices.
    counter_bits : int
        Width of a counter.
    deletions : float
        Deleted keys planned for, as a share of the keys.
    kl : float
        ``KL(G||H)`` of the regions in nats.
    reason : str
        Why not, when not feasible.

    Examples
    --------
    >>> from dlbf.theory import plan
    >>> p = plan("lbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=20, counter_bits=2)
    >>> p.feasible, round(p.fpr, 5), p.fnr
    (True, 0.00163, 0.0)
    >>> plan("lbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=1, deletability=0.9).reason
    'the budget is too small for the targets'
    """

    design: str
    feasible: bool
    fpr: float
    fnr: float
    deletability: float
    adversarial_fpr: float
    bits: float
    model_bits: float
    min_bits: float
    initial: FilterPlan | None
    regions: tuple[RegionPlan, ...]
    cuts: tuple[int, ...]
    counter_bits: int
    deletions: float
    kl: float
    reason: str = ""

    @property
    def filter_bits(self) -> float:
        """Bits per key of the filters alone."""
        return self.bits - self.model_bits

    @property
    def learned(self) -> bool:
        """Does the plan use a model?  ``auto`` may do without."""
        return len(self.regions) > 1

    @property
    def shared(self) -> bool:
        """Do all regions share one array of cells, each with hashes of its own number?"""
        return any(r.member.hashes is not None and r.member.marks is None for r in self.regions)

    @property
    def keyed(self) -> bool:
        """Is a secret part of the design?"""
        return get_design(self.design).keyed

    @property
    def deletable(self) -> bool:
        """Can keys be removed?"""
        return get_design(self.design).deletable

    @property
    def false_negatives(self) -> bool:
        """Can a stored key be answered "absent"?"""
        return get_design(self.design).false_negatives

    def deletability_after(self, removed: float | None = None) -> float:
        """Share of the removed keys that are answered "absent" once so large a share of all keys is gone.

        ``1 - sum_r G_r e_0(1-d) e_r(1-d)``, each filter's rate taken at the load that is left.  It is also the chance
        of the next key to be removed.  At 0 it is ``deletability``.

        Parameters
        ----------
        removed : float, optional
            Share of the keys that are gone; the plan's ``deletions`` unless given.

        Examples
        --------
        >>> from dlbf.theory import plan
        >>> p = plan("counting", fpr=0.05)
        >>> [round(p.deletability_after(gone), 3) for gone in (0, 0.1, 0.5)]
        [0.95, 0.964, 0.995]
        >>> plan("dlbf", bits_per_key=8).deletability_after(0.5) == plan("dlbf", bits_per_key=8).deletability
        True
        """
        gone = self.deletions if removed is None else removed
        if not 0 <= gone <= 1:
            raise ValueError(f"removed: expected a share from 0 to 1, found {removed!r}")
        if not (self.feasible and self.deletable):
            return self.deletability
        load = 1 - gone
        front = 1.0 if self.initial is None else self.initial.kept_at(load)
        # Where deleted keys are remembered they are all answered "absent".
        return 1 - front * sum(
            region.key_share * region.member.kept_at(load) for region in self.regions if region.deleted is None
        )

    def average_deletability(self, removed: float | None = None) -> float:
        """Share of removals after which the key was answered "absent" at once, while so large a share of all keys goes.

        The mean of ``deletability_after`` from 0 to `removed`; between that and ``deletability``.

        Examples
        --------
        >>> from dlbf.theory import plan
        >>> round(plan("counting", fpr=0.05).average_deletability(0.5), 3)
        0.977
        """
        gone = self.deletions if removed is None else removed
        # Simpson's rule: the rates are smooth in the load, and eight steps are exact to six digits.
        values = [self.deletability_after(gone * step / 8) for step in range(9)]
        return (values[0] + 4 * sum(values[1:8:2]) + 2 * sum(values[2:8:2]) + values[8]) / 24

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON: numbers that are not finite become None."""
        more = {
            "deletability_after": self.deletability_after(),
            "average_deletability": self.average_deletability(),
        }
        result: dict[str, Any] = plain_data(dataclasses.asdict(self) | more)
        return result

    def __str__(self) -> str:
        if not self.feasible:
            return f"{self.design}: not feasible, {self.reason} (smallest budget {self.min_bits:.3f} bits per key)"
        lines = [
            f"{self.design}: {self.bits:.3f} bits per key, FPR {self.fpr:.3g}, FNR {self.fnr:.3g}, "
            f"deletability {self.deletability:.4g}, adversarial FPR {self.adversarial_fpr:.3g}"
        ]
        if self.deletable:
            lines.append(
                f"  deletability is for the first removal; {self.average_deletability():.4g} on average over the first "
                f"{self.deletions:.3g} of the keys, {self.deletability_after():.4g} once they are gone"
            )
        if self.model_bits:
            lines.append(f"  model                {self.model_bits:8.3f} bits per key")
        if self.initial is not None:
            lines.append(
                f"  initial   {self.initial.base:<10} {self.initial.bits_per_key:8.3f} bits per key, "
                f"e {self.initial.fpr:.3g}"
            )
        for number, region in enumerate(self.regions):
            member = region.member
            text = (
                f"  region {number:<2} {member.base:<10} {member.bits_per_key:8.3f} bits per key, e {member.fpr:<9.3g}"
                f" keys {region.key_share:7.2%}  queries {region.query_share:7.2%}"
            )
            if member.hashes is not None:
                text += f"  hashes {member.hashes}"
            if region.deleted is not None:
                text += f"  deleted: {region.deleted.base}, e {region.deleted.fpr:.3g}"
            lines.append(text)
        return "\n".join(lines)
