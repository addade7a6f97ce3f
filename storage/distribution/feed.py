"""A feed: the versions of one filter in a place that many hosts can read.

Three kinds of files:

- ``head``, the only one that changes: which version is the newest, as of when, name and SHA-256 of its manifest;
- ``manifest-VERSION-SUM.json``: the whole filter of some version, and the deltas around it, each with its SHA-256;
- ``full-VERSION-SUM.dlbf`` and ``delta-VERSION-SUM.dlbfd``: a filter's bytes (``dlbf.format``), and what changed from
  the version before (``dlbf.storage.distribution.deltas``).

Files are named by their contents and never change, so caches may keep them for ever.  They are written in the order
delta, full, manifest, head: whoever reads a head finds what it names.  A head is three lines: its body (JSON), the
SHA-256 of that line, and, where the filter has a secret, the keyed HMAC-SHA-256 of it.  So whoever knows the secret
takes nothing from somebody who does not.
"""

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from dlbf.errors import ChecksumError, FormatError, VersionError

__all__ = ["HEAD_NAME", "DeltaFile", "FullFile", "Head", "Manifest", "is_ours", "sha256"]

HEAD_NAME = "head"
FEED_VERSION = 1
# Nothing that is read on somebody's word is longer.
MOST_HEAD_BYTES = 4096
_TAG_WORDS = b"dlbf feed head\n"
_NAMES = {"manifest-": ".json", "full-": ".dlbf", "delta-": ".dlbfd"}


def sha256(data: bytes | bytearray | memoryview) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_name(kind: str, version: int, digest: str) -> str:
    """The name of a file with that SHA-256."""
    return f"{kind}-{version}-{digest[:16]}{_NAMES[kind + '-']}"


def is_ours(name: str) -> bool:
    """Whether a file of a feed has such a name, other than the head."""
    kind, _, rest = name.partition("-")
    ending = _NAMES.get(f"{kind}-")
    if ending is None or not rest.endswith(ending):
        return False
    version, _, digest = rest.removesuffix(ending).partition("-")
    return version.isdigit() and len(digest) == 16 and set(digest) <= set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Head:
    """What is newest.

    Attributes
    ----------
    feed : str
        Another one whenever a publisher begins anew.
    version : int
        Of the filter: it rises by one with every change.
    as_of_ns : int
        The filter holds every key that was stored before this moment, by the clock of the place.
    position : int
        The newest position in the log of the store or guard at that moment: the filter is complete up to it.
    content : str
        ``checksum64`` of the filter's bytes, in hexadecimal digits.
    manifest, digest : str
        Name of the manifest and its SHA-256.
    """

    feed: str
    version: int
    as_of_ns: int
    position: int
    content: str
    manifest: str
    digest: str

    def pack(self, secret: bytes | None) -> bytes:
        """The three lines, or two without a secret."""
        body = json.dumps({"dlbf_feed": FEED_VERSION, **asdict(self)}, sort_keys=True).encode()
        lines = [body, hashlib.sha256(body).hexdigest().encode()]
        if secret is not None:
            lines.append(_tag(body, secret))
        return b"\n".join(lines) + b"\n"

    @classmethod
    def unpack(cls, data: bytes, secret: bytes | None, where: str) -> Self:
        """What ``pack`` gave; with a secret only if its maker knew that, too.

        Raises
        ------
        FormatError, ChecksumError, VersionError
        """
        lines = data.split(b"\n")
        if len(data) > MOST_HEAD_BYTES or len(lines) not in (3, 4) or lines[-1]:
            raise FormatError(f"{where}: expected the head of a feed, found {data[:40]!r}; check the address")
        body, digest, *tags = lines[:-1]
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise ChecksumError(f"{where}: the head does not match its checksum; it is published again soon")
        if secret is not None and not (tags and hmac.compare_digest(tags[0], _tag(body, secret))):
            raise ChecksumError(f"{where}: the head was not made with this secret; give that of the published filter")
        return cls._of(_fields(body, where), where)

    @classmethod
    def _of(cls, found: dict[str, Any], where: str) -> Self:
        try:
            head = cls(**found)
        except TypeError as error:
            raise FormatError(f"{where}: not the head of a feed ({error}); was it published by dlbf?") from None
        numbers = (head.version, head.as_of_ns, head.position)
        texts = (head.feed, head.content, head.manifest, head.digest)
        if not all(type(each) is int for each in numbers) or not all(type(each) is str for each in texts):
            raise FormatError(f"{where}: not the head of a feed; was it published by dlbf?")
        if not is_ours(head.manifest):
            raise FormatError(f"{where}: names the manifest {head.manifest!r}; was it published by dlbf?")
        return head


def _tag(body: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, _TAG_WORDS + body, hashlib.sha256).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class FullFile:
    """A whole filter in a file."""

    version: int
    name: str
    n_bytes: int
    digest: str
    content: str

    @classmethod
    def of(cls, version: int, data: bytes | bytearray | memoryview, content: str) -> Self:
        """Of these bytes, with that ``checksum64``."""
        digest = sha256(data)
        return cls(version, file_name("full", version, digest), len(data), digest, content)


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """What leads to a version from the one before, in a file."""

    version: int
    name: str
    n_bytes: int
    digest: str
    base: str
    content: str

    @classmethod
    def of(cls, version: int, data: bytes, base: str, content: str) -> Self:
        """Of these bytes, from one content to another."""
        digest = sha256(data)
        return cls(version, file_name("delta", version, digest), len(data), digest, base, content)


@dataclass(frozen=True, slots=True)
class Manifest:
    """How to come to a version: a whole filter, and deltas, oldest first, the last of which leads to it.

    Attributes
    ----------
    feed : str
    version : int
    generation : int
        Of the store's filter; another one after each rebuild.
    n_keys, n_bytes : int
        Of the filter.
    full : FullFile
    deltas : tuple of DeltaFile
        Each begins where the one before ends; some may be older than ``full``, for hosts that are a little behind.
    """

    feed: str
    version: int
    generation: int
    n_keys: int
    n_bytes: int
    full: FullFile
    deltas: tuple[DeltaFile, ...]

    def pack(self) -> bytes:
        """As JSON."""
        return json.dumps({"dlbf_feed": FEED_VERSION, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Self:
        """What ``pack`` gave; the caller has compared it with its SHA-256."""
        found = _fields(data, where)
        try:
            full = FullFile(**found.pop("full"))
            deltas = tuple(DeltaFile(**delta) for delta in found.pop("deltas"))
            made = cls(full=full, deltas=deltas, **found)
        except (TypeError, KeyError) as error:
            raise FormatError(f"{where}: not the manifest of a feed ({error}); was it published by dlbf?") from None
        for name in (made.full.name, *(delta.name for delta in made.deltas)):
            if not is_ours(name):
                raise FormatError(f"{where}: names {name!r}, no file of a feed; was it published by dlbf?")
        return made

    def names(self) -> set[str]:
        """The files that it names."""
        return {self.full.name, *(delta.name for delta in self.deltas)}

    def way(self, content: str | None) -> tuple[bool, tuple[DeltaFile, ...]]:
        """How to come to this version: whether from the whole filter, and by which deltas then.

        Parameters
        ----------
        content : str or None
            What the caller has.
        """
        from_full = self._after(self.full.content)
        from_here = None if content is None else self._after(content)
        whole = self.full.n_bytes + sum(delta.n_bytes for delta in from_full or ())
        if from_here is not None and sum(delta.n_bytes for delta in from_here) < whole:
            return False, from_here
        return True, from_full or ()

    def _after(self, content: str) -> tuple[DeltaFile, ...] | None:
        """The deltas that follow a content; None if none of them does."""
        if self.deltas and content == self.deltas[-1].content:
            return ()
        for number in reversed(range(len(self.deltas))):
            if self.deltas[number].base == content:
                return self.deltas[number:]
        return () if content == self.full.content and self.full.version == self.version else None


def _fields(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
        version = found.pop("dlbf_feed")
    except (ValueError, KeyError, AttributeError) as error:
        raise FormatError(f"{where}: not a part of a feed ({error}); was it published by dlbf?") from None
    if version != FEED_VERSION:
        raise VersionError(f"{where}: a feed of version {version}, this dlbf reads {FEED_VERSION}; upgrade dlbf")
    return dict(found)
