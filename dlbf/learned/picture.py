"""The trade-off as a picture: bits per key against deletability."""

import math
from pathlib import Path

from dlbf.learned.explanation import Explanation

__all__ = ["draw_tradeoff"]

DELETABILITIES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98)
RATES = (0.05, 0.01, 0.001)
COLOURS = ("#1b9e77", "#7570b3", "#d95f02")


def draw_tradeoff(plan: Explanation, path: Path) -> None:
    """Draw what each deletability costs at 5, 1 and 0.1 % false positives, beside the least without a model.

    Parameters
    ----------
    plan : Explanation
        Of a fitted filter; its model and regions are kept, its targets are varied.
    path : Path
        PNG or SVG, by its suffix.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = plan.tradeoff(DELETABILITIES, RATES)
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for colour, (rate, points) in zip(COLOURS, curves.items(), strict=True):
        axes.plot(*zip(*points, strict=True), "o-", markersize=3, color=colour, label=f"{rate:g} false positives")
        # Whatever a filter without a model asks for, it cannot be smaller than this.
        axes.axhline(math.log2(1 / rate), color=colour, linestyle=":", linewidth=1)
    axes.plot(
        DELETABILITIES, [math.log2(1 / (1 - d)) for d in DELETABILITIES], "--", color="grey", linewidth=1,
        label="least for that deletability, any filter",
    )  # fmt: skip
    axes.set_xlabel("deletability: share of removed keys that answer 'absent'")
    axes.set_ylabel("bits per key, model included")
    axes.set_title(f"{plan.n_keys:,} keys, {plan.model}\n(dotted: least without a model, at that rate)", fontsize=10)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
