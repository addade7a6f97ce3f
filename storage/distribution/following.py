"""A verified copy of a feed's newest filter, as bytes."""

import mmap
from dataclasses import dataclass
from pathlib import Path

from dlbf.errors import ChecksumError, DlbfError, FormatError, StoreError
from dlbf.filters.writing import replace_file
from dlbf.kernels.ledger import boottime_ns
from dlbf.storage.distribution.deltas import Content, apply_delta, content_of, sum_of
from dlbf.storage.distribution.feed import DeltaFile, Head, Manifest, sha256
from dlbf.storage.distribution.places import Place

__all__ = ["Copy", "Follower", "Refreshed", "hex_sum"]

# A manifest is a few KiB.
MOST_MANIFEST_BYTES = 1 << 20


def hex_sum(content: Content) -> str:
    """The ``checksum64`` of some bytes, as feeds write it."""
    return f"{sum_of(content):016x}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A version, all of it."""

    content: Content
    sum: str
    manifest: Manifest | None  # None: from the disk, before anything was read of the place


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What one look at a place brought.

    Attributes
    ----------
    how : {"nothing", "same", "delta", "full"}
        Nothing is published yet; it is the version that was here; by deltas; by the whole filter.
    n_bytes : int
        Bytes that were read, head and manifest included.
    version, position : int
        Of the filter that is here now.
    age_seconds : float
        How old the head was when it was asked for, by the clock of the place.
    """

    how: str
    n_bytes: int
    version: int
    position: int
    age_seconds: float


class Follower:
    """Reads a place, and trusts nothing that does not match its sums.

    Parameters
    ----------
    place : Place
    secret : bytes, optional
        If given, heads must have been made with it.
    path : Path, optional
        A file for the copy, so that the next process begins with it.
    """

    def __init__(self, place: Place, secret: bytes | None = None, path: Path | None = None) -> None:
        self.place = place
        self.copy: Copy | None = None
        self.head: Head | None = None
        self.as_of_ns = 0  # of the copy, on this host's clock that never stops (boottime_ns)
        self.raw_head: bytes | None = None
        self._secret = secret
        self._path = path
        if path is not None:
            self.copy = _from_disk(path)

    def refresh(self) -> Refreshed:
        """Look for a newer version and get it.

        Raises
        ------
        DlbfError
            If the place cannot be read, or what is there is damaged.  The copy stays as it was.
        """
        try:
            return self._refresh()
        except (StoreError, FormatError):
            # A file may be gone because the head has moved on since.
            return self._refresh()

    def _refresh(self) -> Refreshed:
        sent_ns = boottime_ns()
        seen = self.place.read_head()
        if seen is None:
            self.raw_head = None
            return Refreshed("nothing", 0, 0, 0, float("inf"))
        head = Head.unpack(seen.head, self._secret, self.place.where)
        age_ns = seen.now_ns - head.as_of_ns
        how, n_bytes, copy = "same", len(seen.head), self.copy
        if copy is None or copy.sum != head.content or copy.manifest is None:
            manifest_bytes, manifest = self._read_manifest(head)
            how, read_bytes, copy = self._fetch(manifest, head.content)
            n_bytes += manifest_bytes + read_bytes
        if self.copy is not copy and self._path is not None:
            replace_file(self._path, copy.content.tobytes(), sync=False)
        # In this order: a reader of both believes the older moment.
        self.as_of_ns = sent_ns - age_ns
        self.copy, self.head, self.raw_head = copy, head, seen.head
        return Refreshed(how, n_bytes, head.version, head.position, age_ns / 1e9)

    def _read_manifest(self, head: Head) -> tuple[int, Manifest]:
        data = self._read(head.manifest, MOST_MANIFEST_BYTES, head.digest)
        manifest = Manifest.unpack(data, f"{self.place.where}: {head.manifest}")
        return len(data), manifest

    def _read(self, name: str, n_bytes: int, digest: str) -> bytes:
        data = self.place.read(name, n_bytes)
        if sha256(data) != digest:
            raise ChecksumError(f"{self.place.where}: {name} does not match its SHA-256; it is tried again")
        return data

    def _fetch(self, manifest: Manifest, wanted: str) -> tuple[str, int, Copy]:
        """The newest content, by deltas if they fit and are whole, else from the whole filter."""
        here = self.copy
        whole, deltas = manifest.way(here.sum if here is not None else None)
        if here is not None and not whole:
            try:
                content, n_bytes = self._follow(here.content, deltas)
                if hex_sum(content) == wanted:
                    return ("delta" if deltas else "same"), n_bytes, Copy(content, wanted, manifest)
            except DlbfError:
                pass  # damaged, or gone: the whole filter does not need it
        _, deltas = manifest.way(None)
        full = manifest.full
        content = content_of(self._read(full.name, full.n_bytes, full.digest))
        content, n_bytes = self._follow(content, deltas)
        if hex_sum(content) != wanted:
            raise ChecksumError(f"{self.place.where}: the manifest does not lead to the filter that the head names")
        return "full", full.n_bytes + n_bytes, Copy(content, wanted, manifest)

    def _follow(self, content: Content, deltas: tuple[DeltaFile, ...]) -> tuple[Content, int]:
        n_bytes = 0
        for file in deltas:
            where = f"{self.place.where}: {file.name}"
            data = self._read(file.name, file.n_bytes, file.digest)
            content = apply_delta(content, int(file.base, 16), data, where)
            n_bytes += len(data)
        return content, n_bytes


def _from_disk(path: Path) -> Copy | None:
    """A copy that an earlier process wrote.  Whether it is whole shows when its sum is compared with the head's."""
    try:
        with path.open("rb") as file:
            content = content_of(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except (OSError, ValueError):
        return None
    return Copy(content, hex_sum(content), None)
