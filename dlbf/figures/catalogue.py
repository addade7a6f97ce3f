"""All figures, by name, and the writing of them into a folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dlbf.figures import bodega, collisions, report_designs, report_fnr
from dlbf.figures.curves import Claim, Curves
from dlbf.figures.drawing import draw_curves, need_matplotlib, write_csv
from dlbf.figures.forgetting import forgetting_curves
from dlbf.figures.laws import bound_curves, ridge_curves, saving_curves
from dlbf.figures.mixtures import measured_curves

__all__ = ["FIGURES", "published_claims", "write_figures"]

FIGURES: dict[str, Callable[[], Curves]] = {
    "report-figure-7a-fpr": partial(report_designs.fpr_curves, 0),
    "report-figure-7b-fpr": partial(report_designs.fpr_curves, 1),
    "report-figure-8a-deletability": partial(report_designs.deletability_curves, 0),
    "report-figure-8b-deletability": partial(report_designs.deletability_curves, 1),
    "report-figure-9-fnr": report_fnr.fnr_curves,
    "dlbf-figure-2-deletability": collisions.density_curves,
    "dlbf-figure-3-regions": collisions.regions_curves,
    "dlbf-figure-4-rates": collisions.rate_curves,
    "bodega-figure-6": partial(bodega.curves, 6),
    "bodega-figure-7": partial(bodega.curves, 7),
    "bodega-figure-8": partial(bodega.curves, 8),
    "hybrid-measured": measured_curves,
    "theory-saving": saving_curves,
    "theory-ridge": ridge_curves,
    "theory-adversary": bound_curves,
    "theory-deletions": forgetting_curves,
}


def published_claims() -> list[Claim]:
    """What was published beside what we compute, without the curves."""
    return [*report_designs.claims(), *report_fnr.claims(), *collisions.claims(), *bodega.claims()]


def write_figures(folder: str | Path, only: str = "") -> list[Path]:
    """Write every figure as PNG and CSV, and all claims as ``claims.csv``, into `folder`; the paths written.

    Parameters
    ----------
    folder : path
        Created if need be.
    only : str
        Only figures whose name starts with this; then no ``claims.csv``.

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib; the message names the extra to install.
    ValueError
        No figure has such a name.
    """
    chosen = [build for name, build in FIGURES.items() if name.startswith(only)]
    if not chosen:
        raise ValueError(f"only: expected the start of one of {', '.join(FIGURES)}, found {only!r}")
    need_matplotlib()  # before minutes of work
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    claims = []
    for build in chosen:
        curves = build()
        write_csv(folder / f"{curves.name}.csv", curves.rows)
        draw_curves(curves, folder / f"{curves.name}.png")
        written += [folder / f"{curves.name}.png", folder / f"{curves.name}.csv"]
        claims += [
            {
                "figure": curves.name,
                "statement": claim.statement,
                "published": claim.published,
                "computed": claim.computed,
                "agrees": "yes" if claim.agrees else "no",
                "command": claim.command,
            }
            for claim in curves.claims
        ]
    if not only:
        write_csv(folder / "claims.csv", claims)
        written.append(folder / "claims.csv")
    return written
