"""What travels between two versions of a published filter, in bytes: the table of docs/distribution.md."""

import sys
import tempfile
from pathlib import Path

from dlbf.storage import Store, publish


def main(n_keys: int) -> None:
    """Print the sizes for a store of so many keys."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store", sync="none") as store:
        store.update((b"https://example.org/page/%d" % i, b"") for i in range(n_keys))
        store.rebuild(model=None)
        with publish(store, Path(folder) / "feed", interval=None) as publisher:
            again = publisher.publish()
            print(f"whole filter of {again.keys:,} keys: {again.full_bytes:,} bytes; head: {again.n_bytes:,}")
            for n_new in (10, 1000, 10_000):
                store.update((b"https://example.org/new/%d/%d" % (n_new, i), b"") for i in range(n_new))
                done = publisher.publish()
                print(
                    f"delta after {n_new:,} new keys: {done.delta_bytes:,} bytes, {done.delta_bytes / n_new:.1f} each"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
