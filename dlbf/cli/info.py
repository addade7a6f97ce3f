"""``dlbf info``: what a filter file is."""

import json
from pathlib import Path
from typing import Any

import click

from dlbf import format
from dlbf.filters.base import COMMON_PARAMS
from dlbf.filters.files import open_filter

__all__ = ["command"]


@click.command("info")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Of a keyed filter.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(path: Path, secret_file: Path | None, as_json: bool) -> None:
    """Kind, geometry, size and, of a learned filter, the plan; every byte is checked."""
    header = format.read_header(path.read_bytes(), str(path))
    keyed = header.hash_kind == format.HASH_SIP24
    facts: dict[str, Any] = {
        "file": str(path),
        "file_bytes": path.stat().st_size,
        "kind": format.KIND_NAMES.get(header.kind, f"kind {header.kind}"),
        "keyed": keyed,
    }
    plan = None
    if keyed and secret_file is None:
        facts["items"] = header.n_items
        facts["note"] = "keyed: pass --secret-file to see more and to check it"
    else:
        with open_filter(path, secret=None if secret_file is None else secret_file.read_bytes()) as found:
            found._check_all()
            facts |= {"items": len(found), "nbytes": found.nbytes, "capacity": found.capacity}
            facts |= {"fpr_target": found.fpr_target, "bits_per_key": found.bits_per_key if len(found) else None}
            if header.kind == format.KIND_LEARNED:
                plan = found.plan
            else:
                names = (COMMON_PARAMS + type(found).PARAMS)[3:]
                facts["geometry"] = dict(zip(names, found._params[3:], strict=True))
    if as_json:
        click.echo(
            json.dumps(facts | ({"plan": plan.to_dict()} if plan is not None else {}), indent=2, allow_nan=False)
        )
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        elif isinstance(value, float):
            value = f"{value:.4g}"
        click.echo(f"{name.replace('_', ' '):<14}{value}")
    if plan is not None:
        click.echo(f"\n{plan}")
