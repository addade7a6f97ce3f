"""Real URL sets for measuring, from a folder that the user names; nothing of them is part of the project.

The folder holds ``urls.malicious.txt`` (the keys) and ``urls.benign.txt`` (what is asked for and absent), one per line,
plain or compressed with gzip or xz.
"""

import gzip
import lzma
import os
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from dlbf.datasets import listed_urls, ordinary_urls

__all__ = [
    "Split",
    "choose_keys",
    "data_folder",
    "data_words",
    "hard_split",
    "random_split",
    "read_lines",
    "read_named",
    "read_urls",
]

IPV4 = re.compile(rb"\d+\.\d+\.\d+\.\d+(/|$)")


@dataclass(frozen=True)
class Split:
    """Keys and negatives, with a part of the negatives that nothing is fitted on.

    Attributes
    ----------
    learnt_keys, learnt_negatives : list of bytes
        What a model learns from.
    keys : list of bytes
        What the filter stores.
    negatives : list of bytes
        Absent keys that thresholds and sizes may be chosen by; the model has not learnt from them.
    unseen : list of bytes
        Absent keys that only the final figures are measured on.
    """

    name: str
    learnt_keys: list[bytes]
    learnt_negatives: list[bytes]
    keys: list[bytes]
    negatives: list[bytes]
    unseen: list[bytes]


def data_folder(given: str | os.PathLike[str] | None) -> Path | None:
    """The folder given, or that of the environment variable DLBF_DATA, or None."""
    named = given or os.environ.get("DLBF_DATA")
    return Path(named) if named else None


def data_words(folder: Path | None, n_keys: int) -> str:
    """What is measured on, for the reader of a table."""
    if folder is None:
        return f"{n_keys:,} keys made by dlbf.datasets"
    return "real URLs: malicious ones stored, benign ones absent"


def read_lines(path: Path) -> list[bytes]:
    """The lines of a text file, plain or ending in .gz or .xz; empty ones are dropped."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    elif path.suffix == ".xz":
        raw = lzma.decompress(raw)
    return [line for line in raw.split(b"\n") if line]


def read_named(folder: Path, name: str) -> list[bytes]:
    """The lines of a file of the folder, plain or compressed, in their order."""
    paths = [path for suffix in ("", ".xz", ".gz") if (path := folder / f"{name}{suffix}").exists()]
    if not paths:
        raise FileNotFoundError(f"{folder}: expected {name}, {name}.xz or {name}.gz there")
    return read_lines(paths[0])


def read_urls(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Keys and absent keys, each shuffled in the same way every time."""
    halves = []
    for name in ("urls.malicious.txt", "urls.benign.txt"):
        lines = read_named(folder, name)
        random.Random(name).shuffle(lines)
        halves.append(lines)
    return halves[0], halves[1]


def choose_keys(
    given: str | os.PathLike[str] | None, n_keys: int, n_absent: int
) -> tuple[str, list[bytes], list[bytes]]:
    """Real URLs if there is a folder of them and enough; else made ones.

    Returns
    -------
    tuple
        What they are in words, for the reader of a table; the keys; absent keys.
    """
    folder = data_folder(given)
    if folder is not None:
        keys, absent = read_urls(folder)
        if len(keys) >= n_keys and len(absent) >= n_absent:
            words = f"real URLs: {n_keys:,} malicious ones stored, {n_absent:,} benign ones absent"
            return words, keys[:n_keys], absent[:n_absent]
    words = f"URL-like keys made by dlbf.datasets: {n_keys:,} stored, {n_absent:,} absent"
    return words, list(listed_urls(n_keys)), list(ordinary_urls(n_absent))


def random_split(keys: list[bytes], negatives: list[bytes]) -> Split:
    """The usual case: the model learns all keys; the last sixth of the negatives is never seen."""
    first, second = len(negatives) * 2 // 3, len(negatives) * 5 // 6
    return Split("random", keys, negatives[:first], keys, negatives[first:second], negatives[second:])


def hard_split(keys: list[bytes], negatives: list[bytes]) -> Split:
    """No IPv4 hosts; half of the keys teach the model and the others are stored; hosts of negatives are kept apart."""
    keys = [key for key in keys if not IPV4.match(key)]
    negatives = [key for key in negatives if not IPV4.match(key)]

    def part(key: bytes) -> int:
        return zlib.crc32(key.split(b"/", 1)[0]) % 6

    half = len(keys) // 2
    return Split(
        "hard",
        keys[:half],
        [key for key in negatives if part(key) < 4],
        keys[half:],
        [key for key in negatives if part(key) == 4],
        [key for key in negatives if part(key) == 5],
    )
