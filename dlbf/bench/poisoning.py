"""``dlbf bench poison``: how far somebody gets who fills the traffic that a store learns from with junk.

A store is asked for ordinary absent keys and for junk, as many as the attacker's share says, and rebuilt; then the rate
of ordinary queries is measured with others of the same kind.
"""

import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlbf.bench.data import choose_keys
from dlbf.bench.timing import Say
from dlbf.datasets import ordinary_urls
from dlbf.storage import Store

__all__ = ["JUNK", "PoisonRow", "poisoned"]

FPR = 0.01
# Ordinary queries that the rate is measured with.
MEASURED = 40_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _blended(rng: random.Random, i: int) -> bytes:
    """Ordinary words in another order: junk that takes the trouble to look like what others ask for."""
    words = next(iter(ordinary_urls(1, seed=1_000_000 + i))).decode().split("-")
    rng.shuffle(words)
    return "-".join(words).encode()


# How each kind of junk is made: a generator of chance, and the number of the key.
JUNK: dict[str, Callable[[random.Random, int], bytes]] = {
    "a counter": lambda rng, i: b"junk-%d" % i,
    "hexadecimal": lambda rng, i: rng.randbytes(16).hex().encode(),
    "random bytes": lambda rng, i: rng.randbytes(rng.randint(8, 40)),
    "random letters": lambda rng, i: "".join(rng.choices(LETTERS, k=rng.randint(5, 60))).encode(),
    "one key, polled": lambda rng, i: b"junk",
    "like the others": _blended,
}


@dataclass(frozen=True)
class PoisonRow:
    """One store, rebuilt from traffic of which a share is junk.

    Attributes
    ----------
    ordinary : float
        Measured rate of ordinary queries, over the target.
    """

    junk: str
    share: float
    deletability: float
    adversarial_fpr: float
    negatives: int
    bits_per_key: float
    ordinary: float


def poisoned(
    given: str | None,
    n_keys: int,
    n_reads: int,
    shares: Sequence[float],
    kinds: Sequence[str],
    say: Say = lambda text: None,
) -> tuple[str, list[PoisonRow]]:
    """What was measured on, in words; and a row for every kind of junk, every share of it, and deletability 0.9 and 0
    with their default caps.  ``given`` is a folder of real URLs, if any."""
    words, keys, absent = choose_keys(given, n_keys, n_reads + MEASURED)
    others, ordinary = absent[:MEASURED], absent[MEASURED:]
    rows = []
    for kind in kinds:
        for share in shares:
            rng = random.Random(5)
            traffic = ordinary[: round(n_reads * (1 - share))]
            traffic += [JUNK[kind](rng, i) for i in range(n_reads - len(traffic))]
            rng.shuffle(traffic)
            with tempfile.TemporaryDirectory() as folder, Store(folder, fpr=FPR, sync="none") as store:
                store.update((key, b"") for key in keys)
                for key in traffic:
                    store.get(key)
                for deletability in (0.9, 0.0):
                    say(f"{share:.0%} junk ({kind}), deletability {deletability}")
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        report = store.rebuild(deletability=deletability, adversarial_fpr=1 - deletability)
                    before = store.stats()
                    store.get_many(others)
                    passed = store.stats().false_positives - before.false_positives
                    rows.append(
                        PoisonRow(
                            kind, share, deletability, 1 - deletability, report.negatives, report.bits_per_key,
                            passed / len(others) / FPR,
                        )
                    )  # fmt: skip
    return words, rows
