"""What a learned filter is and why: the plan it was built to, region by region, and what it beat."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dlbf.notebook import Shown
from dlbf.plain import plain_data
from dlbf.theory import WORST_CASES, Trade, trade, trade_lines
from dlbf.theory import plan as theory_plan

__all__ = ["Alternative", "Explanation", "Region", "Shifted"]


@dataclass(frozen=True)
class Region:
    """One range of scores."""

    low: int | None  # smallest score in it; None: no bound
    key_share: float
    query_share: float
    base: str
    n_keys: int
    n_bytes: int
    fpr: float  # predicted for the filter as built
    measured_fpr: float | None = None  # share of held-out negatives of this region that passed
    deleted_base: str | None = None
    deleted_fpr: float | None = None
    # What the plan counted instead of ``query_share`` so that every kind of queries has its rate: these times the
    # regions' rates are at most the target.  None where that is the same.
    planned_share: float | None = None

    @property
    def counted_share(self) -> float:
        """Share of the queries that whoever plans these regions anew has to count."""
        return self.query_share if self.planned_share is None else self.planned_share


@dataclass(frozen=True)
class Alternative:
    """Something that was considered and not chosen."""

    name: str
    bits_per_key: float | None
    why: str


@dataclass(frozen=True)
class Shifted:
    """What passes of a sample unlike what the model learnt from."""

    name: str
    n_keys: int
    fpr: float


@dataclass(frozen=True)
class Explanation(Shown):
    """The plan of a learned filter: ``lf.plan``.

    Attributes
    ----------
    fpr, fnr, deletability, adversarial_fpr : float
        Predicted, for the filters as built.
    bits_per_key : float
        Model and filters, for the keys it was fitted on.
    regions : tuple of Region
        Low scores first.
    alternatives : tuple of Alternative
        What else was considered, with its cost.
    targets : dict
        What was asked for.
    warnings : tuple of str
        What a user should know.
    bins : tuple of (float, float)
        Shares of keys and of held-out negatives in fine bins of the score, low first: what other targets would be
        planned with.
    held_out : int
        Number of negatives held out.
    shifted : tuple of Shifted
        What was measured on samples unlike the traffic that was learnt: the risk that ``adversarial_fpr`` bounds.

    Examples
    --------
    >>> import dlbf
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> keys, absent = list(listed_urls(500)), list(ordinary_urls(5000))
    >>> lf = dlbf.LearnedFilter.fit(keys, absent, fpr=0.05, design="cuckoo", model=None, progress=False)
    >>> lf.plan.design, len(lf.plan.regions), lf.plan.fnr
    ('cuckoo', 1, 0.0)
    >>> Explanation.from_dict(lf.plan.to_dict()) == lf.plan
    True
    """

    design: str
    fpr: float
    fnr: float
    deletability: float
    adversarial_fpr: float
    bits_per_key: float
    model_bits_per_key: float
    model: str
    n_keys: int
    initial_base: str | None
    initial_fpr: float
    initial_bytes: int
    counter_bits: int
    deletions: float
    regions: tuple[Region, ...]
    targets: dict[str, Any] = field(default_factory=dict)
    measured_fpr: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    warnings: tuple[str, ...] = ()
    bins: tuple[tuple[float, float], ...] = ()
    held_out: int = 0
    shifted: tuple[Shifted, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        result: dict[str, Any] = plain_data(asdict(self))
        return result

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Explanation":
        """The inverse of ``to_dict``."""
        values = dict(data)
        values["regions"] = tuple(Region(**region) for region in values["regions"])
        values["alternatives"] = tuple(Alternative(**other) for other in values["alternatives"])
        values["warnings"] = tuple(values["warnings"])
        values["bins"] = tuple((float(keys), float(queries)) for keys, queries in values.get("bins", ()))
        values["shifted"] = tuple(Shifted(**sample) for sample in values.get("shifted", ()))
        return cls(**values)

    def trade(self, worst_cases: tuple[float, ...] = WORST_CASES) -> tuple[Trade, ...]:
        """What this model would cost with a lower or a higher worst case, the loosest first; one row is this filter.

        Parameters
        ----------
        worst_cases : tuple of float
            Values of ``adversarial_fpr``.

        Returns
        -------
        tuple of Trade
            Planned with the regions cut anew, for the rate (or the budget) of this filter; without a model only this
            filter, for which all of them are the same.
        """
        this = Trade(self.fpr, self.adversarial_fpr, self.bits_per_key, chosen=True)
        if not self.bins or not 0 < self.fpr < 1:
            return (this,)
        keys, queries = np.array(self.bins).T
        asked = self.targets.get("adversarial_fpr") or 1.0
        budget = self.targets.get("bits_per_key")
        rows = trade(
            key_shares=keys / keys.sum(),
            query_shares=queries / queries.sum(),
            fpr=self.fpr if budget is None else None,
            bits_per_key=None if budget is None else self.bits_per_key,
            model_bits_per_key=self.model_bits_per_key,
            query_floor=1 / self.held_out if self.held_out else 0.0,
            worst_cases=[worst for worst in worst_cases if not 0.7 < worst / asked < 1.4],
        )
        # Whoever is capped more loosely than this filter came out is not another choice.
        others = [row for row in rows if not 0.7 < row.worst_case / self.adversarial_fpr < 1.4]
        return tuple(sorted([this, *others], key=lambda row: -row.worst_case))

    def tradeoff(
        self,
        deletabilities: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99),
        rates: tuple[float, ...] = (0.05, 0.01, 0.001),
    ) -> dict[float, list[tuple[float, float]]]:
        """Bits per key against deletability, for each false-positive rate, as this model would allow.

        Returns
        -------
        dict
            Rate to list of (deletability, bits per key); computed, with regions cut anew for each target.
        """
        bins = self.bins or tuple((region.key_share, region.query_share) for region in self.regions)
        keys, queries = zip(*bins, strict=True)
        curves: dict[float, list[tuple[float, float]]] = {}
        for rate in rates:
            curves[rate] = []
            for deletability in deletabilities:
                found = theory_plan(
                    "auto",
                    key_shares=[share / sum(keys) for share in keys],
                    query_shares=[share / sum(queries) for share in queries],
                    query_floor=1 / self.held_out if self.held_out else 0.0,
                    fpr=rate,
                    deletability=deletability,
                    model_bits_per_key=self.model_bits_per_key,
                )
                curves[rate].append((deletability, found.bits))
        return curves

    def __str__(self) -> str:
        lines = [
            f"{self.design}: {self.bits_per_key:.2f} bits per key for {self.n_keys:,} keys, model included "
            f"({self.model}, {self.model_bits_per_key:.2f})",
            f"predicted  FPR {self.fpr:.4%}  FNR {self.fnr:.3%}  deletability {self.deletability:.3f}  "
            f"adversarial FPR {self.adversarial_fpr:.3g}"
            + ("" if self.measured_fpr is None else f"   measured FPR {self.measured_fpr:.4%} (held-out negatives)"),
            "",
            f"{'region':<8}{'score from':>11}{'keys':>9}{'queries':>10}  {'filter':<10}{'bits/key':>9}"
            f"{'passes':>10}{'measured':>10}",
        ]
        if self.initial_base is not None:
            bits = 8 * self.initial_bytes / max(1, self.n_keys)
            lines.append(
                f"{'initial':<8}{'':>11}{1:>9.2%}{1:>10.3%}  {self.initial_base:<10}{bits:>9.2f}"
                f"{self.initial_fpr:>10.3%}"
            )
        for number, region in enumerate(self.regions):
            low = "" if region.low is None else str(region.low)
            bits = 8 * region.n_bytes / region.n_keys if region.n_keys else 0.0
            measured = "-" if region.measured_fpr is None else f"{region.measured_fpr:.3%}"
            lines.append(
                f"{number:<8}{low:>11}{region.key_share:>9.2%}{region.query_share:>10.3%}  {region.base:<10}"
                f"{bits:>9.2f}{region.fpr:>10.3%}{measured:>10}"
                + (f"  deleted: {region.deleted_base}" if region.deleted_base else "")
            )
        if table := trade_lines(self.trade()):
            lines += ["", *table]
        if self.shifted:
            lines += ["", "measured on samples unlike the traffic that was learnt:"]
            lines += [f"  {sample.fpr:>8.3%} of {sample.n_keys:,} {sample.name} pass" for sample in self.shifted]
        if self.alternatives:
            lines.append("")
            lines.append("not chosen:")
            for other in self.alternatives:
                bits_text = "-" if other.bits_per_key is None else f"{other.bits_per_key:.2f} bits per key"
                lines.append(f"  {other.name:<24}{bits_text:>22}  {other.why}")
        lines.extend(f"warning: {text}" for text in self.warnings)
        return "\n".join(lines)
