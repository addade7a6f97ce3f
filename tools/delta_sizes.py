"""What travels between two versions of a published filter, in bytes: the table of docs/distribution.md.

    python tools/delta_sizes.py [--keys N] [--json]

Keys and the secret are fixed, so that two runs differ by some bytes at most: of the head's time, for example.
"""

import argparse
import json
import tempfile
from pathlib import Path

from dlbf.bench.timing import machine
from dlbf.storage import Store, publish

N_NEW = (10, 1000, 10_000)


def sizes(n_keys: int) -> list[tuple[str, int]]:
    """What is written, and how many bytes that is, for a store of so many keys."""
    secret = bytes(range(16))
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store", sync="none", secret=secret) as store:
        store.update((b"https://example.org/page/%d" % i, b"") for i in range(n_keys))
        store.rebuild(model=None)
        with publish(store, Path(folder) / "feed", interval=None) as publisher:
            again = publisher.publish()
            rows = [("the whole filter", again.full_bytes), ("head, when nothing has changed", again.n_bytes)]
            for n_new in N_NEW:
                store.update((b"https://example.org/new/%d/%d" % (n_new, i), b"") for i in range(n_new))
                rows.append((f"delta after {n_new:,} new keys", publisher.publish().delta_bytes))
    return rows


def main() -> None:
    """Print the sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--json", action="store_true", help="with the machine, as tools/tables records it")
    arguments = parser.parse_args()
    rows = sizes(arguments.keys)
    if arguments.json:
        print(json.dumps({"machine": machine(), "keys": arguments.keys, "fpr": 0.01, "sizes": dict(rows)}))
    else:
        for what, n_bytes in rows:
            print(f"{what}: {n_bytes:,} bytes")


if __name__ == "__main__":
    main()
