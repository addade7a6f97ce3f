"""The pictures of ``dlbf bench``, by matplotlib; the ending of the file says the format."""

import itertools
import math
from collections.abc import Mapping
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


# Of the designs asked for, in their order; and of the filters that answered, where one design chooses among several.
LINES = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e")
SHADES = ("#a6cee3", "#fdbf6f", "#cab2d6", "#b2df8a")


def draw_replay(results: Mapping[str, Replay], path: Path) -> None:
    """Live keys, bits per live key and the rate seen, over the batches of a history, one line for each design.

    Behind the bits is what answered in the store of the first design: where it chooses, that is its choice.
    """
    pyplot = _pyplot()
    first = next(iter(results.values()))
    figure, (keys_axes, bits_axes, rate_axes) = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True)
    live = [row.live for row in first.rows]
    keys_axes.fill_between(range(len(live)), live, color="#7570b3", alpha=0.6, linewidth=0)
    keys_axes.set_ylabel("live keys")
    _draw_choice(bits_axes, first.rows)
    for (design, result), color in zip(results.items(), itertools.cycle(LINES), strict=False):
        name = design if len(results) > 1 else ""
        _draw_bits(bits_axes, result.rows, name, color)
        _draw_rates(rate_axes, result.rows, name, color)
    _finish_bits(bits_axes, first.fpr_target)
    _finish_rates(rate_axes, [row for result in results.values() for row in result.rows], first.fpr_target)
    rate_axes.set_xlabel(f"batch ({first.rows[0].when[:10]} to {first.rows[-1].when[:10]})" if first.rows else "batch")
    figure.suptitle(
        f"{sum(row.added for row in first.rows):,} insertions, {sum(row.removed for row in first.rows):,} deletions, "
        f"{sum(row.missed for result in results.values() for row in result.rows):,} missed keys",
        fontsize=11,
    )
    for axes in (keys_axes, bits_axes, rate_axes):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_choice(axes: "Axes", rows: list[Row]) -> None:
    """A shade behind the batches that each kind of filter answered."""
    shades = dict(zip(dict.fromkeys(row.design for row in rows), itertools.cycle(SHADES), strict=False))
    named: set[str] = set()
    start = 0
    for design, run in itertools.groupby(row.design for row in rows):
        end = start + len(list(run))
        label = None if design in named else f"answered by: {design}"
        axes.axvspan(start, end, color=shades[design], alpha=0.4, linewidth=0, label=label)
        named.add(design)
        start = end


def _draw_bits(axes: "Axes", rows: list[Row], name: str, color: str) -> None:
    axes.plot(range(len(rows)), [row.bits_per_key for row in rows], color=color, linewidth=1, label=name or None)
    rebuilds = [number for number, row in enumerate(rows) if row.rebuilt]
    axes.plot(
        rebuilds, [rows[number].bits_per_key for number in rebuilds], "v", markersize=4, color=color,
        label=f"{name}: {len(rebuilds)} rebuilds" if name else f"{len(rebuilds)} rebuilds",
    )  # fmt: skip


def _finish_bits(axes: "Axes", fpr_target: float) -> None:
    least = math.log2(1 / fpr_target)
    axes.axhline(least, color="grey", linestyle=":", linewidth=1, label=f"{least:.1f}: least without a model")
    axes.set_ylim(0, 4 * least)  # more while hardly any keys are left: the smallest filter has a kilobyte
    axes.set_ylabel("bits per live key")
    axes.legend(fontsize=7, loc="upper right", ncols=2)


def _draw_rates(axes: "Axes", rows: list[Row], name: str, color: str) -> None:
    percents = [100 * row.fpr for row in rows]
    axes.plot(range(len(rows)), percents, ".", markersize=2, color=color, label=name or "seen in a batch")


def _finish_rates(axes: "Axes", rows: list[Row], fpr_target: float) -> None:
    axes.axhline(100 * fpr_target, color="black", linewidth=1, label="target")
    axes.axhline(100 * BAR * fpr_target, color="grey", linestyle="--", linewidth=1, label="1.5 x target")
    worst = max((row.fpr for row in rows if row.queries), default=0)
    axes.set_ylim(0, 100 * max(2 * fpr_target, 1.1 * worst))
    axes.set_ylabel("needless reads, %")
    axes.legend(fontsize=8, loc="upper right")
