"""Figures as files: pictures by matplotlib, tables as CSV."""

import csv
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dlbf.figures.curves import Claim, Curves, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curves", "need_matplotlib", "write_csv"]


def write_csv(path: Path, rows: Sequence[Mapping[str, float | str]]) -> None:
    """Rows as CSV; a column for every name that a row has, empty where one has not or the number is not defined."""
    names: list[str] = []
    for row in rows:
        names += [name for name in row if name not in names]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})


def need_matplotlib() -> ModuleType:
    """matplotlib's pyplot; without matplotlib an error that names the extra to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise ModuleNotFoundError(
            f"figures need the [plot] extra ({error}); install it with: pip install 'dlbf[plot]'"
        ) from error
    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot

    return matplotlib.pyplot


# Okabe and Ito: told apart by colour-blind readers too; line styles repeat the distinction in print.
_COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_STYLES = ("-", "-", (0, (6, 3)), "-", (0, (2, 2)), "-.", "-", ":")


_X_LABELS = {
    "bits_per_key": "bits per key (model included)",
    "fnr": "false-negative rate",
    "adversarial share": "share of the queries that are the adversary's",
    "nats": "KL(G||H) of the model, nats",
    "initial bits": "bits per key in the initial filter (of 20)",
    "adversarial FPR": "largest rate for forged scores",
    "1 - deletability": "deleted keys still answered 'maybe'",
    "m/n": "bits per key, m/n",
    "keys": "number of keys",
    "deletions": "share of the keys deleted, lambda",
    "Q_N": "share of true negatives among honest queries, Q_N",
    "a_P / alpha": "share of the adversary's queries that score high, a_P / alpha",
    "removed": "share of the keys that have been removed",
}
_LOG_X = {"fnr", "adversarial FPR", "1 - deletability"}
_WIDE = {"slbf-2cbf fpr", "slbf-2cbf kept first"}  # drawn under the curve they coincide with


def _claim_lines(claims: Sequence[Claim], width: int) -> list[str]:
    """The claims as lines of at most so many characters; the first sign says whether ours is the published value."""
    lines = []
    for claim in claims:
        text = f"{'=' if claim.agrees else '≠'}  {claim.statement}: "
        text += f"published {claim.published}; computed {claim.computed}" if claim.published != "-" else claim.computed
        lines += textwrap.wrap(text, width, subsequent_indent="    ")
    return lines


def _points(panel: Panel, column: str) -> list[tuple[float, float]]:
    """What can be drawn of a column."""
    return [
        (row[panel.x], row[column])
        for row in panel.rows
        if column in row and not math.isnan(row[column]) and (row[column] > 1e-12 or not panel.log_y)
    ]


def _draw_dots(axis: "Axes", panel: Panel) -> None:
    """What was built and measured, in the colours of the curves; one entry of the legend for all of it."""
    label = "built and measured"
    for number, column in enumerate(panel.points):
        points = _points(panel, column) if column else []
        if points:
            axis.plot(
                *zip(*points, strict=True), linestyle="", marker="o", markersize=4.5, color=_COLOURS[number],
                markerfacecolor="white",
            )  # fmt: skip
    if any(panel.points):
        axis.plot([], [], linestyle="", marker="o", markersize=4.5, color="0.4", markerfacecolor="white", label=label)


def _draw_series(axis: "Axes", panel: Panel) -> None:
    for number, (label, column) in enumerate(panel.series):
        points = _points(panel, column)
        if not points:
            continue
        wide = column in _WIDE
        axis.plot(
            *zip(*points, strict=True), label=label, color=_COLOURS[number], linestyle=_STYLES[number],
            linewidth=5 if wide else 1.8, alpha=0.4 if wide else None,
        )  # fmt: skip


def _draw_marks(axis: "Axes", panel: Panel) -> None:
    for place, label in panel.marks:
        axis.axvline(place, color="0.55", linewidth=0.9, linestyle=":")
        left, right = axis.get_xlim()
        side = "right" if (place - left) / (right - left) > 0.15 else "left"
        height = 0.62 if panel.x in ("adversarial share", "a_P / alpha") else 0.25  # clear of the curves
        axis.annotate(
            label, (place, height), xycoords=("data", "axes fraction"), xytext=(-3 if side == "right" else 3, 0),
            textcoords="offset points", rotation=90, va="bottom", ha=side, fontsize=7.5, color="0.35",
        )  # fmt: skip


def _draw_panel(axis: "Axes", panel: Panel) -> None:
    _draw_series(axis, panel)
    _draw_dots(axis, panel)
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(_X_LABELS.get(panel.x, panel.x))
    axis.set_ylabel(panel.y)
    if panel.log_y:
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(1e-7, axis.get_ylim()[0]), top=min(2, 2 * axis.get_ylim()[1]))
    else:
        axis.set_ylim(bottom=0)
    if panel.x in _LOG_X:
        axis.set_xscale("log")
    _draw_marks(axis, panel)
    axis.grid(True, which="major", color="0.9", linewidth=0.7)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def draw_curves(curves: Curves, path: str | Path) -> None:
    """Draw one figure into a file; its ending says the format (png, svg, pdf)."""
    plt, path = need_matplotlib(), Path(path)
    columns = len(curves.panels) if len(curves.panels) <= 3 else 2
    lines = -(-len(curves.panels) // columns)
    width = (5.6 * columns if columns > 1 else 7.0) + (2.0 if curves.one_legend else 0.0)
    claims = _claim_lines(curves.claims, int(width * 15.5))
    foot = 0.2 * len(claims) + 0.15
    page = 4.5 * lines + foot
    figure, axes = plt.subplots(lines, columns, figsize=(width, page), squeeze=False)
    for axis, panel in zip(axes.flat, curves.panels, strict=True):
        _draw_panel(axis, panel)
        if not curves.one_legend:
            axis.legend(fontsize=8, frameon=False, loc="best")
    right = 1.0
    if curves.one_legend:
        right = 1 - 2.4 / width
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(right, 0.55))
    figure.suptitle(curves.title, fontsize=12, x=0.012, y=1 - 0.07 / page, ha="left", va="top", weight="bold")
    figure.tight_layout(rect=(0, foot / page, right, 1))
    for number, text in enumerate(claims):
        figure.text(0.012, (foot - 0.15 - 0.2 * number) / page, text, fontsize=7.8, color="0.2")
    figure.savefig(path, dpi=130, metadata={"Software": None} if path.suffix == ".png" else None)
    plt.close(figure)
