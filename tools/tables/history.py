"""The table of releases: instructions per key of the hot paths."""

from tools.tables.cells import Grid, Record, Table, number

__all__ = ["TABLES"]


def _releases(record: Record) -> Grid:
    """A row for each path, a column for each release, the newest last."""
    releases = record["releases"]
    names = dict.fromkeys(name for release in releases for name in release["instructions"])
    rows = [
        [name.replace("_", " "), *(number(release["instructions"].get(name)) for release in releases)] for name in names
    ]
    rows.append(["*commit*", *(release["commit"] for release in releases)])
    return ["path", *(release["version"] for release in releases)], rows


TABLES = {"instructions": Table("instructions", _releases)}
