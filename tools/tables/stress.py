"""The tables of ``dlbf bench stress``."""

from collections.abc import Callable

from tools.tables.cells import Grid, Record, Table, met, number

__all__ = ["TABLES"]


def _cost(cost: Record | None) -> str:
    """Needless reads per million questions, and in brackets those of keys that had cost one before, among all."""
    if cost is None:
        return "-"
    needless = cost["distinct"] + cost["repeated"]
    share = f" ({100 * cost['repeated'] / needless:.0f} %)" if needless else ""
    return f"{cost['per_million']:,.0f}{share}"


def _churn(row: Record) -> list[str]:
    """The worst round, over the target, the worst stretch; rebuilds, bits per key at the end, keys refused."""
    if not row["churn"]:
        return ["-"] * 6
    worst = row["churn_worst_per_million"]
    rounds = row["churn"]
    return [
        number(worst), f"{worst / (1e6 * row['fpr_target']):.2f}", number(max(one["worst_stretch"] for one in rounds)),
        f"{sum(len(one['rebuilt']) for one in rounds)}", f"{rounds[-1]['bits_per_key']:.1f}", f"{row['refused']:,}",
    ]  # fmt: skip


def _workloads(budget: float) -> Callable[[Record], Grid]:
    def make(record: Record) -> Grid:
        rows = []
        for row in record["rows"]:
            if row["budget"] != budget:
                continue
            if row["error"]:
                rows.append([row["name"], row["error"], *["-"] * 7])
                continue
            rows.append(
                [
                    row["name"], f"{row['bits_per_key_after']:.1f}", number(1e6 * row["fpr_target"]),
                    number((row["one_pass"] or {}).get("per_million")), _cost(row["uniform"]),
                    number(row["zipf_median_per_million"]), _cost(row["zipf_worst"]), _cost(row["replay"]),
                    f"{row['lost_in_all']:,}",
                ]
            )  # fmt: skip
        headings = (
            "", "bits per key", "made for", "one pass", "uniform", "Zipf 1.5, median", "worst order", "replay",
            "keys lost",
        )  # fmt: skip
        return headings, rows

    return make


def _exchanges(record: Record) -> Grid:
    rows = [
        [row["name"], f"{row['budget']:g}", number(1e6 * row["fpr_target"]), *_churn(row)]
        for row in record["rows"]
        if not row["error"] and not isinstance(row["churn"], str)
    ]
    headings = (
        "", "bits per key at first", "made for", "worst round", "over what it was made for",
        "between two upkeeps, at worst", "rebuilds", "bits per key at the end", "keys refused",
    )  # fmt: skip
    return headings, rows


def _targets(record: Record) -> Grid:
    rows = [
        [
            row["name"], f"{row['bits_per_key']:.2f} / {row['bits_per_key_after']:.2f}", _cost(row["zipf"]),
            _cost(row["circle"]), f"{row['in_circle']:,}",
        ]
        for row in record["targets"]
    ]  # fmt: skip
    return ("", "bits per key, before / after", "Zipf 1.0", "circle", "keys in the circle"), rows


def _bars(record: Record) -> Grid:
    rows = [
        [row["store"], row["what"], f"{row['found']:,.2f}", f"{row['at_most']:g}", met(row)] for row in record["bars"]
    ]
    return ("store", "what", "found", "at most", ""), rows


TABLES = {
    "stress-8": Table("stress", _workloads(8.2)),
    "stress-13": Table("stress", _workloads(12.9)),
    "stress-churn": Table("stress", _exchanges),
    "stress-targets": Table("stress", _targets),
    "stress-bars": Table("stress", _bars),
}
