"""``dlbf bench problems``: the open problems of the published sources, each measured on filters that are built."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.errors import FilterFullError, ReinsertionError
from dlbf.filters import BloomFilter, CountingBloomFilter, CuckooFilter, DeletableBloomFilter, DLeftFilter
from dlbf.filters.base import Filter
from dlbf.learned import LearnedFilter
from dlbf.models import Model, train
from dlbf.theory.churn import dlbf_under_churn

__all__ = ["PROBLEMS", "Grid"]

SECRET = bytes(range(16))


@dataclass(frozen=True)
class Grid:
    """A table: headings, and rows of cells as they are shown."""

    headings: tuple[str, ...]
    rows: list[list[str]]


def _names(prefix: str, n: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(n)]


def _percent(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}%}"


@lru_cache(maxsize=4)
def _data(n_keys: int) -> tuple[list[bytes], list[bytes], list[bytes], Model]:
    """Keys, negatives to fit on, others to measure with, and one model."""
    keys, negatives = list(listed_urls(n_keys)), list(ordinary_urls(20_000, 1))
    model = train(keys, list(ordinary_urls(20_000)), kind="ngram", max_bytes=256, validation=negatives, progress=False)
    return keys, negatives, list(ordinary_urls(50_000, 2)), model


# --- DlBF inside learned designs


def learned_dlbf(n_keys: int) -> Grid:
    """Bits per key at a rate of 1 % for rising deletability: DlBF, counters of two widths, and tables."""
    keys, negatives, unseen, model = _data(n_keys)
    removed = random.Random(1).sample(keys, n_keys // 10)
    designs = (
        ("plbf-dlbf", None), ("slbf-2dlbf", None), ("plbf-cbf", 2), ("plbf-cbf", 4), ("dlbf", None), ("auto", None),
    )  # fmt: skip
    rows = []
    for deletability in (0.0, 0.5, 0.9, 0.99):
        row = [f"{deletability:g}"]
        for design, width in designs:
            lf = LearnedFilter.fit(
                keys, negatives, fpr=0.01, deletability=deletability, design=design, counter_bits=width, model=model,
                progress=False,
            )  # fmt: skip
            found = lf.evaluate(unseen, removed)
            first = found.first_removal.value if found.first_removal else 0.0
            row.append(f"{lf.bits_per_key:.2f} ({_percent(found.fpr.value)}, {first:.3f})")
        rows.append(row)
    names = ("plbf-dlbf", "slbf-2dlbf", "plbf-cbf, 2-bit", "plbf-cbf, 4-bit", "dlbf, no model", "auto (tables)")
    return Grid(("deletability asked", *names), rows)


# --- DlBF under long insertion and deletion


def churn(n_keys: int) -> Grid:
    """A DlBF of 12 bits per key whose keys are exchanged one by one; counters and a table beside it."""
    marked = DeletableBloomFilter(bits=12 * n_keys, hashes=7, regions=12 * n_keys // 10)
    others: tuple[Filter, ...] = (CountingBloomFilter(n_keys, 0.0056), CuckooFilter(n_keys, 0.0056))
    live = _names("key", n_keys)
    for each in (marked, *others):
        each.update(live)
    asked, rng = _names("asked", 100_000), random.Random(1)
    rows, now, fresh = [], 0.0, n_keys
    for expected in dlbf_under_churn(12, 7, 9, (0, 0.1, 0.25, 0.5, 1, 2, 3)):
        for _ in range(round((expected.turnover - now) * n_keys)):
            place = rng.randrange(n_keys)
            new = f"key-{fresh}".encode()
            fresh += 1
            for each in (marked, *others):
                each.discard(live[place])
                each.add(new)
            live[place] = new
        now = expected.turnover
        removable = float(np.mean([marked.is_removable(key) for key in live[:4000]]))
        rows.append(
            [
                f"{expected.turnover:g}",
                f"{removable:.3f} ({expected.removable:.3f})",
                f"{_percent(float(marked.contains_many(asked).mean()))} ({_percent(expected.fpr)})",
                f"{marked.collided:.3f} ({expected.marked:.3f})",
                *(_percent(float(each.contains_many(asked).mean())) for each in others),
                str(int((~marked.contains_many(live)).sum())),
            ]
        )
    headings = (
        "turnovers", "DlBF: removable (law)", "FPR (law)", "regions marked (law)", "counting: FPR", "cuckoo: FPR",
        "keys lost",
    )  # fmt: skip
    return Grid(headings, rows)


# --- power of choices


def _best_of(n_keys: int, bits_per_key: float, hashes: int, candidates: int, rounds: int) -> tuple[float, float]:
    """Removable share, and fill to the power of the hashes, of the best of some candidates with other hashes each."""
    bits = round(bits_per_key * n_keys)
    removable = rate = 0.0
    for turn in range(rounds):
        keys = _names(f"set {turn}", n_keys)
        best: tuple[float, float] | None = None
        for number in range(candidates):
            made = DeletableBloomFilter(bits=bits, hashes=hashes, regions=max(1, bits // 10), filter_id=number)
            made.update(keys)
            fill = made.fill**hashes
            share = float(made.remove_many(keys).mean())
            if best is None or share > best[0]:
                best = (share, fill)
        assert best is not None
        removable += best[0] / rounds
        rate += best[1] / rounds
    return removable, rate


def choices(n_keys: int) -> Grid:
    """DlBFs built with several hash functions, of which the one with the most removable keys is kept."""
    rows = []
    for candidates in (1, 2, 4, 8, 16, 32):
        small = _best_of(22, 240 / 22, 5, candidates, 100)
        large = _best_of(min(n_keys, 5_000), 240 / 22, 5, candidates, 2)
        rows.append([str(candidates), *(f"{value:.3f}" for value in (*small, *large))])
    headings = ("candidates", "22 keys: removable", "FPR", f"{min(n_keys, 5_000):,} keys: removable", "FPR")
    return Grid(headings, rows)


# --- reinsertion


def reinsertion(n_keys: int) -> Grid:
    """A tenth of the keys removed and put back, ten times: what that does to rate, keys and bytes."""
    keys, negatives, unseen, model = _data(n_keys)
    rows = []
    for design, bits in (
        ("counting", 24), ("plbf-cbf", 16), ("auto", 6), ("cuckoo", 8), ("pddbf", 16), ("plbf-dlbf", 8), ("dlbf", 10),
        ("lbf-3cbf", 24), ("lbf-3sbf", 8),
    ):  # fmt: skip
        lf = LearnedFilter.fit(
            keys, negatives, design=design, bits_per_key=bits, model=model,
            deletability=0.3 if design == "auto" else None, progress=False,
        )  # fmt: skip
        changed, refused = lf.copy(), 0
        for turn in range(10):
            moved = keys[turn::10]
            changed.remove_many(moved)
            for key in moved:
                try:
                    # Where a removed key still passes, adding it again would count it twice; a store knows better.
                    changed.add(key)
                except ReinsertionError:
                    refused += 1
        before, after = (float(each.contains_many(unseen).mean()) for each in (lf, changed))
        lost = int((~changed.contains_many(keys)).sum())
        same = "yes" if changed.to_bytes() == lf.to_bytes() else "no"
        rows.append(
            [design, f"{lf.bits_per_key:.1f}", _percent(before), _percent(after), same, f"{lost:,}", f"{refused:,}"]
        )
    return Grid(("design", "bits per key", "FPR before", "FPR after", "same bytes", "keys lost", "refused"), rows)


# --- an adversary who inserts


def _table_bound(filled: Filter) -> float | None:
    """The rate of a table with every slot taken: what no choice of keys can exceed."""
    if isinstance(filled, (CuckooFilter, DLeftFilter)):
        return float(1 - (1 - filled.expected_fpr) ** (1 / filled.fill))
    return None


def insertion(n_keys: int) -> Grid:
    """Half of the keys are an adversary's, who inserts only keys the filter denies, or those that set most bits."""
    rows, n_keys = [], min(n_keys, 5_000)  # each candidate is tried on a copy
    honest, asked = _names("honest", n_keys // 2), _names("fresh", 200_000)
    for title, make in _INSERTED:
        for secret in (SECRET, None):
            filled, plain = make(n_keys, secret), make(n_keys, secret)
            plain.update(_names("other", n_keys))
            filled.update(honest)
            chosen = 0
            for key in _names("chosen", 40 * n_keys):
                if chosen == n_keys - len(honest):
                    break
                if key in filled:
                    continue  # it would add nothing
                if secret is None and isinstance(filled, BloomFilter) and _new_bits(filled, key) < filled.hashes - 1:
                    continue  # without a secret the adversary computes which bits are new
                try:
                    filled.add(key)
                except FilterFullError:
                    break
                chosen += 1
            bound = _table_bound(filled)
            rows.append(
                [
                    title,
                    "yes" if secret else "no",
                    _percent(float(plain.contains_many(asked).mean())),
                    _percent(float(filled.contains_many(asked).mean())),
                    "-" if bound is None or secret is None else _percent(bound),
                ]
            )
    return Grid(("filter, planned for 1 %", "secret", "ordinary keys", "half of them chosen", "bound"), rows)


_INSERTED: tuple[tuple[str, Callable[[int, bytes | None], Filter]], ...] = (
    ("Bloom", lambda n, secret: BloomFilter(n, 0.01, secret=secret)),
    ("counting", lambda n, secret: CountingBloomFilter(n, 0.01, secret=secret)),
    ("cuckoo", lambda n, secret: CuckooFilter(n, 0.01, secret=secret)),
    ("d-left", lambda n, secret: DLeftFilter(n, 0.01, secret=secret)),
)


def _new_bits(filled: BloomFilter, key: bytes) -> int:
    """Bits of the key that are not set yet, as whoever knows the hash can compute them."""
    with_key = filled.copy()
    with_key.add(key)
    return round((with_key.fill - filled.fill) * filled.bits)


# --- filters with false negatives


def promises(n_keys: int) -> Grid:
    """lbf-3sbf, planned for a tenth of deletions: false negatives and forged passes as an adversary deletes more."""
    keys, negatives, unseen, model = _data(n_keys)
    lf = LearnedFilter.fit(
        keys, negatives, design="lbf-3sbf", bits_per_key=10, model=model, deletions=0.1, secret=SECRET, progress=False
    )
    high = [key for key, region in zip(keys, lf.region_of(keys), strict=True) if region == 1]
    forged = [key + b"?x" for key in high if lf.region_of([key + b"?x"])[0] == 1][:5_000]
    rows = []
    for share in (0.0, 0.05, 0.1, 0.2, 0.4, 0.6):
        changed, gone = lf.copy(), round(share * n_keys)
        changed.remove_many(keys[:gone])
        kept = keys[gone:]
        rows.append(
            [
                f"{share / lf.plan.deletions:.1f}",
                _percent(float((~changed.contains_many(kept)).mean())),
                _percent(lf.plan.fnr),
                _percent(float(changed.contains_many(unseen).mean())),
                _percent(float(changed.contains_many(forged).mean())),
            ]
        )
    return Grid(("deletions to those planned", "FNR", "FNR planned", "FPR", "forged scores that pass"), rows)


# --- unlearning


def _auc(higher: npt.NDArray[np.int32], lower: npt.NDArray[np.int32]) -> float:
    """Chance that one of the first scores above one of the second; ties count half."""
    both = np.concatenate((higher, lower))
    _, places, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    n, m = len(higher), len(lower)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def unlearning(n_keys: int) -> Grid:
    """What a model still tells of keys that were deleted, and what a stale one costs."""
    keys = list(listed_urls(2 * n_keys))
    negatives, held = list(ordinary_urls(20_000)), list(ordinary_urls(20_000, 1))
    learnt, never = keys[:n_keys], keys[n_keys:]
    rows = []
    for size in (256, 1024, 4096):
        model = train(learnt, negatives, kind="ngram", max_bytes=size, validation=held, progress=False)
        # Half of the keys are deleted; is a deleted one told from one that was never there?
        deleted, left = learnt[n_keys // 2 :], learnt[: n_keys // 2]
        told = _auc(model.score_many(deleted), model.score_many(never))
        anew = train(left, negatives, kind="ngram", max_bytes=size, validation=held, progress=False)
        before = _auc(anew.score_many(deleted), anew.score_many(never))
        stale, fresh = (
            LearnedFilter.fit(left, held, fpr=0.01, deletability=0.9, model=each, progress=False)
            for each in (model, anew)
        )
        spread = 1 / math.sqrt(6 * min(len(deleted), len(never)))
        rows.append(
            [
                f"{model.nbytes:,}", f"{told:.4f}", f"{before:.4f}", f"{spread:.4f}", f"{stale.bits_per_key:.2f}",
                f"{fresh.bits_per_key:.2f}",
            ]
        )  # fmt: skip
    headings = (
        "model, bytes", "deleted told from never seen (AUC)", "the same, trained without them", "standard error",
        "bits per key, stale model", "trained anew",
    )  # fmt: skip
    return Grid(headings, rows)


PROBLEMS: dict[str, tuple[str, Callable[[int], Grid]]] = {
    "learned-dlbf": ("DlBF inside learned designs, 1 %: bits per key (FPR, first removal)", learned_dlbf),
    "dlbf-churn": ("DlBF under long insertion and deletion", churn),
    "dlbf-choices": ("Power of choices: the best of several hash functions", choices),
    "reinsertion": ("Reinsertion at no extra rate", reinsertion),
    "insertion-adversary": ("An adversary who inserts", insertion),
    "false-negative-promises": ("What a filter with false negatives can promise", promises),
    "unlearning": ("What a deleted key leaves in the model", unlearning),
}
