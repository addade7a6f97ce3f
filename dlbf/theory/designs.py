"""The table of designs: which filters stand where.

One composite covers them all::

    query(x) = initial(x)  AND  member[r](x)  AND NOT deleted[r](x)      with r = region(score(x))

A design says which kind of base filter each place holds; its planner says how large it is; the composite builds it.
This table is the only place that says what a design *is*: a new one costs a row.  The designs that are one base filter
and nothing else have theirs in the table of base filters, ``dlbf.filters.kinds``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlbf.filters.kinds import BASES

__all__ = ["DESIGNS", "MANY", "Design", "get_design"]

MANY = 0  # as many regions as the planner finds worth having


@dataclass(frozen=True, slots=True)
class Design:
    """One row of the table.

    Attributes
    ----------
    name, summary : str
        Public name; one line for tables and help.
    regions : int
        Score regions; `MANY` for any number.  With one region there is no model.
    member : tuple of str
        Base filter of the members, low score to high: one entry for all regions alike, or two (the last region or, with
        many regions, those above a cut the planner chooses, have the second).  ``"all"`` means no filter: everything
        passes. ``"chosen"`` means the cheapest deletable base, region by region.
    initial : str or None
        Base filter in front of the model, if any.
    deleted : tuple of str
        Base filter of the deleted keys, same rule as `member`; empty when there is none.
    deletable : bool
        Can keys be removed?
    false_negatives : bool
        Can a stored key be answered "absent"?
    keyed : bool
        Is a secret part of the design (rather than an option)?
    shared : bool
        Do all regions share one array and differ in the number of hashes?
    hides_score : bool
        Does the model see the key only through the keyed permutation, so that nobody can choose a score?
    title : str
        What people who read no papers may call it.
    planner : str
        Which planner of ``dlbf.theory.planner`` sizes its filters.

    Examples
    --------
    >>> design = DESIGNS["slbf-2cbf"]
    >>> design.initial, design.member, design.deletable, design.false_negatives
    ('counters', ('counters', 'all'), True, False)
    """

    name: str
    summary: str
    regions: int
    member: tuple[str, ...]
    initial: str | None = None
    deleted: tuple[str, ...] = ()
    deletable: bool = False
    false_negatives: bool = False
    keyed: bool = False
    shared: bool = False
    hides_score: bool = False
    title: str = ""
    planner: str = "regions"

    @property
    def chooses_model(self) -> bool:
        """Does its planner do without the model where that is no worse?"""
        return self.planner == "auto"

    @property
    def learned(self) -> bool:
        """Does it use a model?"""
        return self.regions != 1

    def worst_case(self, deletability: float, adversarial_fpr: float | None) -> float:
        """The largest rate for forged scores: what was asked for, or ``1 - deletability``.

        A deleted key meets its region's rate as a forged one does, so the two targets are one; but not where the design
        keeps the deleted keys themselves.

        Examples
        --------
        >>> DESIGNS["auto"].worst_case(0.9, None), DESIGNS["auto"].worst_case(0.9, 1.0)
        (0.1, 1.0)
        """
        if adversarial_fpr is not None:
            return adversarial_fpr
        return 1.0 if self.deleted else round(1.0 - deletability, 12)

    def members(self, n_regions: int, n_above: int = 1) -> tuple[str, ...]:
        """The member base of each of `n_regions` regions, the top `n_above` of them with the second kind, if any."""
        return _spread(self.member, n_regions, n_above)

    def deleted_bases(self, n_regions: int, n_above: int = 1) -> tuple[str | None, ...]:
        """The base of the deleted set of each region; None where there is none."""
        return tuple(
            base if base != "none" else None for base in _spread(self.deleted or ("none",), n_regions, n_above)
        )


def _spread(kinds: tuple[str, ...], n_regions: int, n_above: int) -> tuple[str, ...]:
    if len(kinds) == 1:
        return kinds * n_regions
    below, above = kinds
    return (below,) * (n_regions - n_above) + (above,) * n_above


_PLAIN = tuple(
    Design(
        row.design.name, row.design.summary or row.words, 1, (row.name,),
        deletable=row.deletable, title=row.design.title, planner=row.design.planner,
    )
    for row in BASES.values()
    if row.design is not None
)  # fmt: skip

_TABLE = (
    *_PLAIN,
    Design(
        "lbf", "learned (Kraska): backup filter below the threshold", 2, ("bits", "all"),
        title="Learned Bloom filter",
    ),
    Design(
        "slbf", "sandwiched (Mitzenmacher): filter, model, backup filter", 2, ("bits", "all"), initial="bits",
        title="Sandwiched learned filter", planner="sandwich",
    ),
    Design(
        "slbf-2cbf", "sandwich with two counting filters", 2, ("counters", "all"), initial="counters", deletable=True,
        title="Sandwich, two counting filters", planner="sandwich",
    ),
    Design(
        "lbf-2cbf", "a counting filter on each side of the threshold", 2, ("counters",), deletable=True,
        title="Learned, two counting filters",
    ),
    Design(
        "slbf-3cbf", "sandwich, a counting filter on each side", 2, ("counters",), initial="counters", deletable=True,
        title="Sandwich, three counting filters", planner="sandwich",
    ),
    Design(
        "lbf-3sbf", "learned, deleted keys in two Bloom filters", 2, ("bits", "all"),
        deleted=("bits",), deletable=True, false_negatives=True,
        title="Learned, deleted keys in Bloom filters", planner="three-filters",
    ),
    Design(
        "lbf-3cbf", "learned, deleted keys in two counting filters", 2, ("counters", "all"),
        deleted=("counters",), deletable=True, false_negatives=True,
        title="Learned, deleted keys in counting filters", planner="three-filters",
    ),
    Design(
        "plbf", "partitioned: a Bloom filter per region", MANY, ("bits",),
        title="Partitioned learned filter",
    ),
    Design(
        "plbf-cbf", "partitioned, counting", MANY, ("counters",), deletable=True,
        title="Partitioned learned, counting",
    ),
    Design(
        "slbf-2dlbf", "sandwich with two deletable Bloom filters", 2, ("dlbf", "all"), initial="dlbf", deletable=True,
        title="Sandwich, two deletable Bloom filters", planner="marked-sandwich",
    ),
    Design(
        "plbf-dlbf", "partitioned, a deletable Bloom filter per region", MANY, ("dlbf",), deletable=True,
        title="Partitioned, deletable Bloom filters", planner="marked-regions",
    ),
    Design(
        "pddbf", "partitioned, counters below, exact set of deleted keys above", MANY, ("counters", "all"),
        deleted=("none", "exact"), deletable=True,
        title="Partitioned, exact set of deleted keys", planner="exact-deleted",
    ),
    Design(
        "ada-bf", "one array, fewer hashes for higher scores", MANY, ("bits",), shared=True,
        title="Adaptive learned filter", planner="shared",
    ),
    Design(
        "ada-cbf", "one array, counting", MANY, ("counters",), deletable=True, shared=True,
        title="Adaptive learned, counting", planner="shared",
    ),
    Design(
        "bodega", "Downtown Bodega: a keyed Bloom filter on each side", 2, ("bits",), keyed=True,
        title="Bodega filter (keyed, learned)",
    ),
    Design(
        "bodega-cbf", "Downtown Bodega with keyed counters", 2, ("counters",), deletable=True, keyed=True,
        title="Bodega filter, counting",
    ),
    Design(
        "uptown", "Uptown Bodega: a sandwich whose model sees only the permuted key", 2, ("bits", "all"),
        initial="bits", keyed=True, hides_score=True, title="Uptown Bodega (keyed, hidden score)", planner="sandwich",
    ),
    Design(
        "secure-bloom", "keyed Bloom filter", 1, ("bits",), keyed=True,
        title="Keyed Bloom filter", planner="single",
    ),
    Design(
        "auto", "the cheapest deletable filter per region", MANY, ("chosen",), deletable=True,
        title="Recommended by dlbf", planner="auto",
    ),
    Design(
        "static", "built once: a ribbon filter per region", MANY, ("ribbon",),
        title="Static learned filter (smallest)", planner="auto",
    ),
)  # fmt: skip

DESIGNS: dict[str, Design] = {design.name: design for design in _TABLE}


def get_design(name: str) -> Design:
    """The design of that name; ValueError with the names there are.

    Examples
    --------
    >>> get_design("slbf-2cbf").initial
    'counters'
    """
    try:
        return DESIGNS[name]
    except (KeyError, TypeError):
        raise ValueError(f"design: expected one of {', '.join(DESIGNS)}, found {name!r}") from None
