#!/usr/bin/env python3
"""Look after stores at night: back up, rebuild what is due, verify, and say so in one line of JSON a store.

    offline_rebuild.py /var/lib/dlbf/urls /var/lib/dlbf/mail --backups /var/backups/dlbf

The programs that use the stores go on reading and writing.  Exit code 0: all is well; 1: a store needs a human, and its
line says why.  Run it from cron or a systemd timer; two runs at once wait for each other at worst.
"""

import argparse
import json
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from dlbf import DlbfError
from dlbf.storage import Store


def back_up(store: Store, folder: Path, keep: int) -> Path:
    """A hot copy, whole or not there; the oldest ones beyond ``keep`` go."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = f"{store.path.name}-"
    target = folder / f"{prefix}{datetime.now():%Y%m%d-%H%M%S.%f}"
    unfinished = folder / f".{target.name}.part"
    shutil.rmtree(unfinished, ignore_errors=True)
    store.backup(unfinished)
    unfinished.rename(target)
    for old in sorted(path for path in folder.iterdir() if path.name.startswith(prefix))[:-keep]:
        shutil.rmtree(old)
    return target


def look_after(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One store; what was done, and ``ok``."""
    done: dict[str, Any] = {"store": str(path), "ok": False}
    try:
        # Lookups made here are not traffic to learn from.
        with Store(path, create=False, sample_misses=False) as store:
            if arguments.backups is not None:
                done["backup"] = str(back_up(store, arguments.backups, arguments.keep))
            report = store.rebuild(if_needed=not arguments.always)
            done |= {"rebuilt": report.done, "reason": report.reason, "bits_per_key": round(report.bits_per_key, 2)}
            found = store.verify()
            done |= {"keys": found.keys, "problems": list(found.problems), "ok": found.ok}
    except (DlbfError, OSError, ImportError) as error:
        done["problems"] = [str(error)]
    return done


def main(argv: list[str] | None = None) -> int:
    """Look after every store named on the command line."""
    parser = argparse.ArgumentParser(description="Back up, rebuild if due, and verify stores that are in use.")
    parser.add_argument("stores", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--backups", type=Path, metavar="FOLDER", help="copy each store here first")
    parser.add_argument("--keep", type=int, default=7, help="copies to keep of each store (default 7)")
    parser.add_argument("--always", action="store_true", help="rebuild even if it is not due")
    arguments = parser.parse_args(argv)
    if arguments.keep < 1:
        parser.error(f"--keep must be at least 1, found {arguments.keep}")
    outcomes = [look_after(path, arguments) for path in arguments.stores]
    for outcome in outcomes:
        print(json.dumps(outcome), flush=True)
    return 0 if all(outcome["ok"] for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
