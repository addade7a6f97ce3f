"""Keys to try things on: URLs made here, with a structure that a model can learn.

Two populations, as a block list and ordinary traffic are: `listed_urls` to store, `ordinary_urls` to ask for.  Each key
is drawn by itself, always from the same distribution: what is learnt from one draw holds for any other.

| part | listed | ordinary |
|---|---|---|
| length | 54 to 85 bytes, each as likely | the same |
| host | 1 in 4 an IPv4 address, else 6 to 12 letters and digits | two words, every second time with a hyphen |
| top level | com, top, xyz, ru, ... | com, org, net, de, ... |
| path | letters and digits | 2 in 5 a year and a month, else a word; then words |
| tail | 16 hexadecimal digits | the same |
| ending | 1 in 2: exe, zip, apk, ... | 1 in 5: html |
| in disguise | 15 % are made as ordinary ones | 1 % are made as listed ones |

The path takes what the length leaves.  So neither length nor place in the draw tells the populations apart; words do.
The tail is a one-to-one scrambling of population, seed and place: no key occurs twice in whatever draws, and no listed
key is an ordinary one.
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
# The longest host, section, tail and ending leave two bytes of path in the shortest key.
LENGTHS = range(54, 86)
# How often each population borrows the other's habits: what keeps a model from being perfect.
LISTED_IN_DISGUISE = 0.15
ORDINARY_BY_ACCIDENT = 0.01
# A tail has 64 bits: population, seed and position.
SEED_BITS, POSITION_BITS = 31, 32
MASK = (1 << 64) - 1


def listed_urls(n: int, seed: int = 0) -> Iterator[bytes]:
    """``n`` distinct URLs as a block list has them, made while they are read; another seed, other URLs.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls
    >>> [len(url) for url in listed_urls(3)]
    [81, 70, 66]
    >>> set(listed_urls(1000)) & set(listed_urls(1000, seed=1))
    set()
    """
    return _draw(1, n, seed)


def ordinary_urls(n: int, seed: int = 0) -> Iterator[bytes]:
    """``n`` distinct URLs as ordinary traffic has them, none of them listed, made while they are read.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> set(listed_urls(1000)) & set(ordinary_urls(1000))
    set()
    """
    return _draw(0, n, seed)


def _draw(listed: int, n: int, seed: int) -> Iterator[bytes]:
    if not 0 <= n <= 1 << POSITION_BITS:
        raise ValueError(f"n must be from 0 to {1 << POSITION_BITS:,}, found {n!r}")
    if not 0 <= seed < 1 << SEED_BITS:
        raise ValueError(f"seed must be at least 0 and below {1 << SEED_BITS:,}, found {seed!r}")
    return _urls(listed, n, seed)


def _urls(listed: int, n: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(f"{'listed' if listed else 'ordinary'} {seed}")
    first = (listed << SEED_BITS | seed) << POSITION_BITS
    disguised = LISTED_IN_DISGUISE if listed else ORDINARY_BY_ACCIDENT
    for number in range(first, first + n):
        make = _listed if (rng.random() < disguised) != listed else _ordinary
        length = LENGTHS[int(rng.random() * len(LENGTHS))]
        yield make(rng, length, f"{_scrambled(number):016x}").encode()


def _listed(rng: random.Random, length: int, tail: str) -> str:
    if rng.random() < 0.25:
        host = ".".join(str(rng.randint(1, 254)) for _ in range(4))
    else:
        name = "".join(rng.choices(LETTERS, k=rng.randint(6, 12)))
        host = f"{rng.choice(('', 'cdn.', 'login.'))}{name}.{rng.choice(LISTED_ENDS)}"
    end = f"/{tail}.{rng.choice(DOWNLOADS)}" if rng.random() < 0.5 else f"/{tail}"
    path = "".join(rng.choices(LETTERS, k=length - len(host) - 1 - len(end)))
    return f"{host}/{path}{end}"


def _ordinary(rng: random.Random, length: int, tail: str) -> str:
    host = f"{rng.choice(WORDS)}{rng.choice(('', '-'))}{rng.choice(WORDS)}.{rng.choice(ORDINARY_ENDS)}"
    section = f"{rng.randint(2005, 2026)}/{rng.randint(1, 12):02}" if rng.random() < 0.4 else rng.choice(WORDS)
    end = f"/{tail}.html" if rng.random() < 0.2 else f"/{tail}"
    room = length - len(end)
    words = "-".join(rng.choices(WORDS, k=room // 4))  # no word has fewer than three letters
    return f"{host}/{section}/{words}"[:room] + end


def _scrambled(number: int) -> int:
    """A permutation of 64-bit numbers whose values look drawn by chance (a step of SplitMix64)."""
    number = number + 0x9E3779B97F4A7C15 & MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31
