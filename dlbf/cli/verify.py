"""``dlbf verify``: read a whole store, guarded engine or filter file, and say whether it is as it should be."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from dlbf.cli.engines import check_engine, engine_option, open_guard
from dlbf.cli.reading import read_secret
from dlbf.cli.stores import check_filter_file, check_store

__all__ = ["command"]


@click.command("verify")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@engine_option
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="If kept elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(path: Path, engine: str | None, secret_file: Path | None, as_json: bool) -> None:
    """Compare the filter of the store in PATH with its data, key by key, and check every record.

    Reads and writes of other processes go on.  PATH may also be a filter file: then all its checksums are checked.  Or
    the directory of a guard: then --engine says where its data are, reads go on, and guarded writes wait.

    \b
    dlbf verify urls
    dlbf verify urls.guard --engine rocksdb:urls.rocksdb
    dlbf verify urls.guard --engine 'sqlite:urls.db?table=urls&key=url&text=yes'
    dlbf verify urls.guard --engine 'redis://127.0.0.1:6379/0?prefix=urls:'
    dlbf verify urls.guard --engine 'lmdb:env?db=urls'

    Exit codes: 0 all is well; 1 something is not as it should be (a store has lost no data: rebuild); 2 trouble: bad
    usage, PATH is none of them, or the engine cannot be opened or is not the guard's.
    """
    check_engine(path, engine)
    secret = None if secret_file is None else read_secret(secret_file)
    facts = _verify_store(path, engine, secret) if path.is_dir() else _verify_file(path, secret)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        for problem in facts["problems"]:
            click.echo(f"problem: {problem}")
        for example in facts["examples"]:
            click.echo(f"missing: {example}")
        counted = f"{facts['keys']:,} keys"
        click.echo(f"{path}: {counted}, ok" if facts["ok"] else f"{path}: {counted}, NOT ok; the data can be read")
    sys.exit(0 if facts["ok"] else 1)


def _verify_store(path: Path, engine: str | None, secret: bytes | None) -> dict[str, Any]:
    from dlbf.storage import Store

    if engine is not None:
        with open_guard(path, engine, write=True, secret=secret) as guard:
            report = guard.verify()
    else:
        check_store(path)
        with Store(path, readonly=True, secret=secret) as store:
            report = store.verify()
    return {
        "path": str(path),
        "ok": report.ok,
        "keys": report.keys,
        "missing": report.missing,
        "extra": report.extra,
        "problems": list(report.problems),
        "examples": [key.decode(errors="backslashreplace") for key in report.examples],
    }


def _verify_file(path: Path, secret: bytes | None) -> dict[str, Any]:
    from dlbf.errors import FormatError
    from dlbf.filters.base import check_all
    from dlbf.filters.files import open_filter

    check_filter_file(path)
    facts: dict[str, Any] = {"path": str(path), "ok": True, "keys": 0, "missing": 0, "extra": 0}
    problems = []
    try:
        with open_filter(path, secret=secret) as filter:
            check_all(filter)
            facts["keys"] = len(filter)
            # Of a sharded filter the other shards go on answering.
            problems += [why for _, why in sorted(getattr(filter, "damaged", {}).items())]
    except FormatError as error:
        problems.append(str(error))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return facts | {"ok": not problems, "problems": problems, "examples": []}
