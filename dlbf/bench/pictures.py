"""The pictures of ``dlbf bench``, by matplotlib; the ending of the file says the format."""

import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dlbf.bench.replay import BAR, Replay, Row
from dlbf.bench.scale_results import PEER, ScaleFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_replay", "draw_scale"]


def _pyplot() -> ModuleType:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_scale(figures: ScaleFigures, path: Path) -> None:
    """Building, asking and opening against the number of keys."""
    pyplot = _pyplot()
    n_keys = [size.keys for size in figures.sizes]
    canvas, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name in figures.sizes[0].filters:
        style = {"color": "black", "linestyle": "--"} if name == PEER else {}
        for axis, figure in zip(axes, ("build", "absent"), strict=False):
            costs = [getattr(size.filters[name], figure) for size in figures.sizes]
            axis.loglog(n_keys, costs, marker="o", label=name, **style)
    for figure in ("open_ms", "first_read_ms", "recovery_ms"):
        costs = [getattr(size.store, figure) for size in figures.sizes]
        axes[2].loglog(n_keys, costs, marker="o", label=figure.removesuffix("_ms"))
    for axis, title, unit in zip(
        axes, ("build", "query of an absent key", "store"), ("ns per key", "ns", "ms"), strict=True
    ):
        axis.set(title=title, xlabel="keys", ylabel=unit)
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=7)
    canvas.savefig(path)
    pyplot.close(canvas)


def draw_replay(result: Replay, path: Path) -> None:
    """Live keys, bits per live key with the rebuilds, and the rate seen, over the batches of a finished replay."""
    pyplot = _pyplot()
    rows = result.rows
    figure, (keys_axes, bits_axes, rate_axes) = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True)
    keys_axes.fill_between(range(len(rows)), [row.live for row in rows], color="#7570b3", alpha=0.6, linewidth=0)
    keys_axes.set_ylabel("live keys")
    _draw_bits(bits_axes, rows, result.fpr_target)
    _draw_rates(rate_axes, rows, result.fpr_target)
    figure.suptitle(
        f"{sum(row.added for row in rows):,} insertions, {sum(row.removed for row in rows):,} deletions, "
        f"{sum(row.missed for row in rows):,} missed keys",
        fontsize=11,
    )
    for axes in (keys_axes, bits_axes, rate_axes):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_bits(axes: "Axes", rows: list[Row], fpr_target: float) -> None:
    axes.plot(range(len(rows)), [row.bits_per_key for row in rows], color="#1b9e77", linewidth=1)
    rebuilds = [number for number, row in enumerate(rows) if row.rebuilt]
    axes.plot(
        rebuilds, [rows[number].bits_per_key for number in rebuilds], "v", markersize=4, color="#d95f02",
        label=f"{len(rebuilds)} rebuilds",
    )  # fmt: skip
    least = math.log2(1 / fpr_target)
    axes.axhline(least, color="grey", linestyle=":", linewidth=1, label=f"{least:.1f}: least without a model")
    axes.set_ylim(0, 4 * least)  # more while hardly any keys are left: the smallest filter has a kilobyte
    axes.set_ylabel("bits per live key")
    axes.legend(fontsize=8, loc="upper right")


def _draw_rates(axes: "Axes", rows: list[Row], fpr_target: float) -> None:
    percents = [100 * row.fpr for row in rows]
    axes.plot(range(len(rows)), percents, ".", markersize=2, color="#1b9e77", label="seen in a batch")
    axes.axhline(100 * fpr_target, color="black", linewidth=1, label="target")
    axes.axhline(100 * BAR * fpr_target, color="#d95f02", linestyle="--", linewidth=1, label="1.5 x target")
    worst = max((row.fpr for row in rows if row.queries), default=0)
    axes.set_ylim(0, 100 * max(2 * fpr_target, 1.1 * worst))
    axes.set_ylabel("false positives, %")
    axes.set_xlabel(f"batch ({rows[0].when[:10]} to {rows[-1].when[:10]})" if rows else "batch")
    axes.legend(fontsize=8, loc="upper right")
