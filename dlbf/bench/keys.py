"""Keys that the project makes itself: URL-like, with the structure a model can learn.

Two kinds share one grammar and differ in habits, as real block lists and real traffic do: *listed* keys lean to
odd hosts, long random path parts and downloads, *ordinary* ones to words and dates.
"""

import random
from collections.abc import Iterator

__all__ = ["listed_urls", "ordinary_urls"]

WORDS = (
    "about account archive article blog book box build cache center city cloud code daily data design dev docs edge "
    "event farm feed file film food forum game garden guide health help home host image index info item journal lab "
    "learn life link list live local login mail market media music net news note online page photo plan play podcast "
    "press project radio review river science search shop sport store story studio support team tech topic travel "
    "update user video view watch weather web wiki work world"
).split()
ORDINARY_ENDS = ("com", "org", "net", "de", "fr", "io", "edu", "gov", "co.uk")
LISTED_ENDS = ("com", "top", "xyz", "ru", "info", "cn", "tk", "online", "net")
DOWNLOADS = ("exe", "zip", "apk", "sh", "bin", "php", "dll", "scr")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def ordinary_urls(n: int, seed: int = 0) -> Iterator[bytes]:
    """``n`` distinct URLs as ordinary traffic has them; fresh objects each time."""
    rng = random.Random(f"ordinary {seed}")
    for i in range(n):
        host = f"{rng.choice(WORDS)}{rng.choice(('', '-', ''))}{rng.choice(WORDS)}.{rng.choice(ORDINARY_ENDS)}"
        kind = rng.random()
        words = "-".join(rng.choices(WORDS, k=rng.randint(2, 5)))
        if kind < 0.4:
            path = f"{rng.randint(2005, 2026)}/{rng.randint(1, 12):02}/{words}"
        elif kind < 0.8:
            path = f"{rng.choice(WORDS)}/{words}"
        else:
            path = f"{rng.choice(WORDS)}/{rng.choice(WORDS)}.html"
        yield f"{host}/{path}/{seed:x}{i:x}".encode()


def listed_urls(n: int, seed: int = 0) -> Iterator[bytes]:
    """``n`` distinct URLs as a block list has them; fresh objects each time."""
    rng = random.Random(f"listed {seed}")
    for i in range(n):
        kind = rng.random()
        if kind < 0.25:
            host = ".".join(str(rng.randint(1, 254)) for _ in range(4))
        else:
            name = "".join(rng.choices(LETTERS, k=rng.randint(7, 15)))
            host = f"{rng.choice(('', 'login.', 'secure-', 'cdn.'))}{name}.{rng.choice(LISTED_ENDS)}"
        middle = "".join(rng.choices(LETTERS, k=rng.randint(4, 18)))
        end = f".{rng.choice(DOWNLOADS)}" if rng.random() < 0.5 else ""
        yield f"{host}/{middle}/{seed:x}{i:x}{end}".encode()
