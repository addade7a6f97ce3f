"""The tables of ``dlbf bench shards``."""

import math

from tools.tables.cells import Grid, Record, Table

__all__ = ["TABLES"]


def _times(record: Record) -> Grid:
    rows = [
        [
            row["kind"], f"`{row['asked']}`", "present" if row["present"] else "absent", f"{row['one_ns']:.0f}",
            f"{row['shards_ns']:.0f}", f"{row['ratio'][0]:.2f} ({row['ratio'][1]:.2f}-{row['ratio'][2]:.2f})",
        ]
        for row in record["times"]
    ]  # fmt: skip
    return ("shards of", "asked", "keys", "one filter", "64 shards", "ratio"), rows


def _builds(record: Record) -> Grid:
    rows = [
        [
            row["who"], f"{row['keys']:,}", f"{row['seconds']:.0f} s",
            ", ".join(f"{name} {seconds:.0f}" for name, seconds in row["phases"].items()),
            f"{row['worker_bytes'] / 2**20:,.0f} MiB",
        ]
        for row in record["build"]
    ]  # fmt: skip
    return ("", "keys", "time", "seconds of each phase", "worker's peak"), rows


def _size(n_bytes: float) -> str:
    """Three digits of it."""
    power = min(4, int(math.log10(max(1, n_bytes))) // 3)
    return f"{n_bytes / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _arithmetic(record: Record) -> Grid:
    rows = [
        [
            f"{row['keys']:,}", f"{row['shards']:,}", _size(row["filter_bytes"]), _size(row["run_bytes"]),
            _size(row["network_bytes"]), f"{row['worker_bytes'] / 2**20:.0f} MiB", f"{row['core_minutes']:,.1f}",
        ]
        for row in record["arithmetic"]
    ]  # fmt: skip
    headings = ("keys", "shards", "filter", "runs", "network", "building a shard", "minutes of one core")
    return headings, rows


def _evenness(record: Record) -> Grid:
    rows = [
        [
            f"{row['keys']:,}", f"{row['shards']:,}", "hashed" if row["hashed"] else "thrown", f"{row['mean']:,.0f}",
            f"{row['largest']:,}", f"{row['deviations']:.1f}", f"{row['room']:,}",
        ]
        for row in record["even"]
    ]  # fmt: skip
    return ("keys", "shards", "", "mean", "largest", "deviations above", "room"), rows


TABLES = {
    "shard-times": Table("shards", _times),
    "shard-builds": Table("shards", _builds),
    "shard-arithmetic": Table("shards", _arithmetic),
    "shard-evenness": Table("shards", _evenness),
}
