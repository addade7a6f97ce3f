"""Guard an engine of your own: four methods are enough."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlbf.storage import Guard


class Files:
    """One file per key."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""
        try:
            return (self.folder / key.hex()).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        (self.folder / key.hex()).write_bytes(value)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        (self.folder / key.hex()).unlink(missing_ok=True)

    def scan(self, start: bytes) -> Iterator[bytes]:
        """All keys, in any order."""
        return (bytes.fromhex(path.name) for path in list(self.folder.iterdir()))


def main() -> None:
    """Store, read, delete, verify."""
    with tempfile.TemporaryDirectory() as folder, Guard(Files(f"{folder}/data"), f"{folder}/guard") as guard:
        guard.update({b"a": b"1", b"b": b"2"})
        del guard[b"a"]
        print(dict(guard.items()), guard.get(b"a"), guard.verify())


if __name__ == "__main__":
    main()
