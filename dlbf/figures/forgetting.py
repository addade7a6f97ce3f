"""Deletability as a function of the deletions: the formula of every kind of design, and filters that were emptied."""

import numpy as np

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.learned import LearnedFilter
from dlbf.learned.regions import predicted_deletability
from dlbf.models import train

__all__ = ["emptied_rows", "forgetting_curves"]

N_KEYS = 20_000
# Budgets at which a first removal leaves a tenth to a half of the keys behind: enough to be measured.
BUILT = (
    ("counting", "counting, 14 bits per key", 14.0),
    ("slbf-2cbf", "slbf-2cbf, 14", 14.0),
    ("plbf-cbf", "plbf-cbf, 14", 14.0),
    ("ada-cbf", "ada-cbf, 14", 14.0),
    ("cuckoo", "cuckoo, 5", 5.0),
    ("d-left", "d-left, 13", 13.0),
    ("pddbf", "pddbf, 20", 20.0),
    ("dlbf", "dlbf, 8: marks stay", 8.0),
)
STEPS = np.linspace(0.025, 0.975, 39).tolist()  # every fourth of them is measured


def emptied_rows(lf: LearnedFilter, keys: list[bytes], name: str) -> list[dict[str, float]]:
    """Remove keys in random order: for each share that is gone, the removed keys that still pass.

    Columns, after `name`: ``after`` by the formula for the filter as it was built, ``after measured``, and ``at once``
    and ``at once measured``, the average over the removals so far of what was answered right after each.
    """
    order = [keys[index] for index in np.random.default_rng(0).permutation(len(keys))]
    copy, rows, still, done = lf.copy(), [], 0, 0
    for number, share in enumerate(STEPS):
        until = round(share * len(order))
        still += int((~copy.remove_many(order[done:until])).sum())
        done = until
        expected = predicted_deletability(lf, order[:done])
        row = {"removed": share, f"{name} after": 1 - expected.after, f"{name} at once": 1 - expected.average}
        if number % 4 == 2:
            row[f"{name} after measured"] = float(copy.contains_many(order[:done]).mean())
            row[f"{name} at once measured"] = still / done
        rows.append(row)
    return rows


def _claims(merged: list[dict[str, float]]) -> tuple[Claim, ...]:
    gaps = [
        abs(row[f"{name} {reading} measured"] - row[f"{name} {reading}"])
        for row in merged
        for name, _, _ in BUILT
        for reading in ("after", "at once")
        if f"{name} {reading} measured" in row
    ]
    # The fewest keys asked are 1,500, of which at most half pass: three standard errors are 0.039.
    first, last = merged[0], merged[-1]
    return (
        Claim(
            "deletability, once a share d of the keys is gone",
            "as for the first removal (text); after lambda n (erratum)",
            "1 - sum G_r e_0(1-d) e_r(1-d), each rate at the load that is left: "
            f"counting {1 - first['counting after']:.2f} at d = {first['removed']:.3g}, "
            f"{1 - last['counting after']:.2f} at {last['removed']:.3g}; DlBF {1 - first['dlbf after']:.2f} at every d",
            agrees=False,
        ),
        Claim(
            f"the formula and {len(BUILT)} built filters of {N_KEYS:,} keys, both readings", "-",
            f"largest difference {max(gaps):.3f} over {len(gaps)} points", max(gaps) < 0.039,
        ),
    )  # fmt: skip


def forgetting_curves() -> Curves:
    """Removed keys that still pass against the share removed: asked afterwards, and on average at once."""
    keys, negatives = list(listed_urls(N_KEYS)), list(ordinary_urls(N_KEYS, 1))
    model = train(keys, list(ordinary_urls(N_KEYS)), kind="ngram", max_bytes=1024, validation=negatives, progress=False)
    merged: list[dict[str, float]] = [{} for _ in STEPS]
    for design, _, bits in BUILT:
        lf = LearnedFilter.fit(
            keys, negatives, design=design, bits_per_key=bits, model=model, deletions=0.01, progress=False
        )
        for whole, row in zip(merged, emptied_rows(lf, keys, design), strict=True):
            whole.update(row)
    panels = tuple(
        Panel(
            title,
            "removed",
            "removed keys that still pass",
            tuple((label, f"{name} {reading}") for name, label, _ in BUILT),
            tuple(merged),
            log_y=False,
            points=tuple(f"{name} {reading} measured" for name, _, _ in BUILT),
        )
        for title, reading in (
            ("asked once that share is gone", "after"),
            ("asked right after each removal, on average", "at once"),
        )
    )
    return Curves(
        "theory-deletions",
        "1 - deletability, by how much has been deleted",
        panels,
        _claims(merged),
        tuple(merged),
        one_legend=True,
    )
