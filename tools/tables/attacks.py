"""The tables and derived figures of attacks, bounds and published claims."""

from collections.abc import Callable

from dlbf.figures.bodega import crossovers
from dlbf.figures.catalogue import published_claims
from tools.tables.cells import Grid, Record, Table, bound, measured, number, percent, ratio

__all__ = ["DERIVED", "TABLES"]

ATTACK_NAMES = ("black-box mutation", "white-box mutation", "hash collision", "pollution", "deletion")


def _attacks(record: Record) -> Grid:
    rows = [
        [
            row["name"],
            number(row["bits_per_key"], 2),
            bound(row["adversarial_fpr_planned"]) if row["keyed"] else "none",
            percent(row["fpr"]["value"]),
            *(measured(row.get(name)) for name in ATTACK_NAMES),
            f"{sum(row[name]['lost_keys'] for name in ATTACK_NAMES if name in row):,}",
        ]
        for row in record["attacks"]
    ]
    return ("design", "bits per key", "planned bound", "ordinary FPR", *ATTACK_NAMES, "lost keys"), rows


def _attacked_store(record: Record) -> Grid:
    rows = [
        [
            row["attack"],
            bound(row["stated_bound"]),
            measured(row),
            str(row["lost_keys"]),
            f"{row['keys_before']:,} / {row['keys_after']:,}",
            f"{row['filter_bytes_before']:,} / {row['filter_bytes_after']:,}",
        ]
        for row in record["store"]
    ]
    return (
        "attack",
        "stated bound",
        "measured",
        "lost keys",
        "keys before / after",
        "filter bytes before / after",
    ), rows


def _games(record: Record) -> Grid:
    rows = [
        [row["challenge"], row["target"], row["attack"], bound(row["bound"]), measured(row["forged"]),
         f"{row['refused']:,}"]
        for row in record["games"]
    ]  # fmt: skip
    return ("game", "target", "attack", "bound", "success", "insertions refused"), rows


def _price(record: Record) -> Grid:
    rows = [
        [
            f"{100 * row['adversarial FPR']:.3g} %",
            *(number(row[name], 1) for name in ("FPR 0.01", "FPR 0.001", "floor")),
        ]
        for row in record["price"]["curve"][::3]
    ]
    return ("`adversarial_fpr`", "FPR 1 %", "FPR 0.1 %", "the bound alone"), rows


def _defence_cost(record: Record) -> Grid:
    rows = [
        [row["what"], f"{row['with_ns']:.0f} ns", f"{row['without_ns']:.0f} ns", ratio(row["ratio"])]
        for row in record["cost"]
    ]
    return ("absent key", "with", "without", "ratio"), rows


def _hybrid(record: Record) -> Grid:
    hybrid = record["hybrid"]
    rows = [
        [
            percent(share, 0),
            *(
                f"{percent(hybrid[name][i])} ({percent(hybrid[f'{name}_predicted'][i])})"
                for name in ("learned", "plain")
            ),
        ]
        for i, share in enumerate(hybrid["shares"])
        if i % 2 == 0
    ]
    return ("adversarial share", "bodega, measured (predicted)", "secure-bloom, measured (predicted)"), rows


def _claims(record: Record) -> Grid:
    rows = [
        [
            claim.statement,
            claim.published,
            claim.computed,
            "holds" if claim.agrees else "differs",
            f"`{claim.command}`" if claim.command else "-",
        ]
        for claim in published_claims()
        if claim.published != "-"
    ]
    return ("statement", "published", "computed", "verdict", "command"), rows


TABLES = {
    "claims": Table(None, _claims),
    "attacks": Table("attacks", _attacks),
    "attacked-store": Table("attacks", _attacked_store),
    "games": Table("games", _games),
    "price": Table("bounds", _price),
    "defence-cost": Table("bounds", _defence_cost),
    "hybrid": Table("bounds", _hybrid),
}


# --- figures that no record has as they are


def _over_bound(record: Record) -> float:
    """The most that a mutation or collision got of a planned bound."""
    return max(
        float(row[attack]["value"] / row["adversarial_fpr_planned"])
        for row in record["attacks"]
        if row["keyed"] and row["adversarial_fpr_planned"] <= 0.5
        for attack in ("black-box mutation", "white-box mutation", "hash collision")
        if attack in row
    )


def _bodega_crossover(name: str) -> Callable[[Record], float]:
    def find(record: Record) -> float:
        return crossovers()[name]

    return find


# Name -> the section it is computed from, None for the theory alone, and how.
DERIVED: dict[str, tuple[str | None, Callable[[Record], float]]] = {
    "attacked-without-secret": ("attacks", lambda record: sum(not row["keyed"] for row in record["attacks"])),
    "attacks-over-bound": ("attacks", _over_bound),
    "bodega-crossover-predicted": (None, _bodega_crossover("predicted")),
    "bodega-crossover-measured": (None, _bodega_crossover("measured")),
    "bodega-crossover-one-hash": (None, _bodega_crossover("one_hash")),
}
