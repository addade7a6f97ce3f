"""``dlbf bench learned``: every design at one budget, the sizes of ``auto``, and its speed beside its peers."""

import gc
import importlib.metadata
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from dlbf import models
from dlbf.bench.contenders import OURS, PEERS, SECRET
from dlbf.bench.data import Split
from dlbf.bench.timing import ask_each_in, fresh, side_by_side
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.learned import LearnedFilter
from dlbf.theory import DESIGNS

__all__ = ["designs", "fit_times", "made_split", "query_times", "sizes"]

TARGETS = ((0.01, 0.0), (0.01, 0.9), (0.001, 0.9))
Say = Callable[[str], None]


def made_split(n_keys: int) -> Split:
    """Keys made here, in the shape of a random split of real ones."""
    keys = list(listed_urls(n_keys))
    learnt, negatives, unseen = (list(ordinary_urls(n_keys, seed)) for seed in (0, 1, 2))
    return Split("made", keys, learnt, keys, negatives, unseen)


def forged(keys: Sequence[bytes], n: int) -> list[bytes]:
    """Absent keys that look like stored ones: a key with two of its bytes exchanged for others of the same kind."""
    rng = random.Random(1)
    stored = set(keys)
    found: list[bytes] = []
    while len(found) < n:
        key = bytearray(rng.choice(keys))
        for _ in range(2):
            at = rng.randrange(len(key)) if key else 0
            if key:
                key[at] = rng.choice(b"abcdefghijklmnopqrstuvwxyz")
        if bytes(key) not in stored:
            found.append(bytes(key))
    return found


def designs(split: Split, bits_per_key: float = 16.0, say: Say = lambda text: None) -> list[dict[str, Any]]:
    """Every design at the same budget: measured beside planned."""
    say("training one model for all designs")
    model = models.train(
        split.learnt_keys, split.learnt_negatives, kind="ngram", max_bytes=8192, validation=split.negatives,
        progress=False,
    )  # fmt: skip
    keys = split.keys
    gone = random.Random(2).sample(keys, min(len(keys) // 10, 20_000))
    attack = forged(keys, 20_000)
    rows = []
    for name, design in DESIGNS.items():
        say(name)
        row: dict[str, Any] = {"design": name}
        rows.append(row)
        try:
            lf = LearnedFilter.fit(
                keys, split.negatives, design=name, bits_per_key=bits_per_key, model=model, progress=False,
                secret=SECRET if design.keyed else None,
            )  # fmt: skip
        except ValueError as error:
            row["error"] = str(error)
            continue
        measured = lf.evaluate(split.unseen, deleted=gone)
        best = float("inf")
        # Short turns: on a busy machine some of many run undisturbed, and the best is one of those.
        for turn in range(60):
            first = turn * 1000 % min(10_000, len(split.unseen))
            asked = fresh(split.unseen[first:][:1000])
            start = time.perf_counter_ns()
            for key in asked:
                key in lf  # noqa: B015
            best = min(best, (time.perf_counter_ns() - start) / len(asked))
        left = lf.copy()
        if lf.deletable:
            left.remove_many(gone)
        kept = list(set(keys) - set(gone))
        row |= {
            "bits_per_key": lf.bits_per_key,
            "fpr": measured.fpr.value,
            "fpr_planned": lf.plan.fpr,
            "fnr": float((~left.contains_many(kept)).mean()),
            "fnr_planned": lf.plan.fnr,
            "deletability": None if measured.deletability is None else measured.deletability.value,
            "deletability_planned": lf.plan.deletability if lf.deletable else None,
            "adversarial_fpr": float(lf.contains_many(attack).mean()),
            "adversarial_fpr_planned": lf.plan.adversarial_fpr,
            "query_absent_ns": best,
        }
    return rows


def sizes(split: Split, kind: str = "auto", say: Say = lambda text: None) -> list[dict[str, Any]]:
    """What ``auto`` needs for the three targets; measured on negatives that nothing was fitted on."""
    rows = []
    for fpr, deletability in TARGETS:
        say(f"{split.name} split: fpr {fpr:g}, deletability {deletability:g}")
        start = time.perf_counter()
        # The model learns from one part of the negatives, sizes are chosen by another, figures come from a third.
        model = models.train(
            split.learnt_keys, split.learnt_negatives, kind=kind, fpr=fpr, deletability=deletability,
            validation=split.negatives, n_keys=len(split.keys), progress=False,
        )  # fmt: skip
        lf = LearnedFilter.fit(
            split.keys, split.negatives, fpr=fpr, deletability=deletability, model=model, progress=False
        )
        seconds = time.perf_counter() - start
        sample = random.Random(3).sample(split.keys, min(20_000, len(split.keys) // 10))
        measured = lf.evaluate(split.unseen, deleted=sample)
        rows.append(
            {
                "split": split.name,
                "fpr_target": fpr,
                "deletability_target": deletability,
                "keys": len(split.keys),
                "bits_per_key": lf.bits_per_key,
                "model": str(lf.model),
                "fpr": measured.fpr.value,
                "fpr_interval": measured.fpr.interval,
                "deletability": measured.deletability.value if measured.deletability else None,
                "lost_keys": int((~lf.contains_many(split.keys)).sum()),
                "seconds": seconds,
                "plan": lf.plan.to_dict(),
            }
        )
    return rows


def query_times(split: Split, rounds: int = 60, n_queries: int = 4000, say: Say = lambda text: None) -> dict[str, Any]:
    """One absent key and a batch, in turns with rbloom and, one key at a time, with learnedbf."""
    say("fitting for the timing")
    lf = LearnedFilter.fit(split.keys, split.negatives, fpr=0.01, model="ngram", progress=False)
    contenders: dict[str, Callable[[Sequence[bytes]], object]] = {
        "learned": ask_each_in(lf),
        "learned, batch": lf.contains_many,
    }
    result: dict[str, Any] = {"design": lf.design, "bits_per_key": lf.bits_per_key}
    try:
        peer = PEERS["rbloom"].make(len(split.keys), 0.01)
        peer.update(split.keys)
        contenders["rbloom"] = ask_each_in(peer)
    except ImportError as error:
        result["rbloom"] = f"did not run: {error}"
    plain = OURS["CuckooFilter"].make(len(split.keys), 0.01)
    plain.update(split.keys)
    contenders["CuckooFilter"] = ask_each_in(plain)

    def asked(turn: int) -> list[bytes]:
        return fresh(random.Random(turn).choices(split.unseen, k=n_queries))

    say("asking for absent keys")
    gc.freeze()  # else every turn would first look at millions of keys
    try:
        times = side_by_side(contenders, asked, rounds)
    finally:
        gc.unfreeze()
    for name, timing in times.items():
        result[f"{name} ns"] = timing.best
        if "rbloom" in times and name != "rbloom":
            result[f"{name} / rbloom"] = timing.ratio(times["rbloom"])
    other = _learnedbf(split, say)
    if isinstance(other, float):
        result["learnedbf ns"] = other
        result["learnedbf / learned"] = other / times["learned"].best
    else:
        result["learnedbf"] = other
    return result


def _learnedbf(split: Split, say: Say) -> float | str:
    """Nanoseconds for one key of the PyPI package learnedbf, or why not; its time does not depend on the fit."""
    try:
        importlib.metadata.version("learnedbf")
        import numpy as np
        from learnedbf import LBF
        from learnedbf.classifiers import ScoredDecisionTreeClassifier
    except Exception as error:  # a missing or broken peer is reported, whatever it raises
        return f"did not run: {type(error).__name__}: {error}"
    say("learnedbf")
    n = 2000
    try:
        # It takes numbers, not keys: the same lexical values our trees use.
        features = models.Features("lexical")
        matrix = np.vstack([features.transform(split.keys[:n]), features.transform(split.negatives[:n])])
        labels = np.repeat([True, False], n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = LBF(epsilon=0.01, classifier=ScoredDecisionTreeClassifier())
            peer.fit(matrix, labels)
            row = matrix[-1:]
            peer.predict(row)
            start = time.perf_counter_ns()
            for _ in range(50):
                peer.predict(row)
        return (time.perf_counter_ns() - start) / 50
    except Exception as error:
        return f"did not run: {type(error).__name__}: {error}"


def fit_times(split: Split, say: Say = lambda text: None) -> dict[str, Any]:
    """Fitting beside scikit-learn's own HashingVectorizer and SGDClassifier, same keys, same run."""
    result: dict[str, Any] = {"keys": len(split.keys), "negatives": len(split.learnt_negatives)}
    for kind in ("ngram", "auto"):
        say(f"fitting, model={kind!r}")
        start = time.perf_counter()
        LearnedFilter.fit(split.keys, split.learnt_negatives, fpr=0.01, model=kind, progress=False)
        result[f"fit {kind} s"] = time.perf_counter() - start
    scale = 1024**2 if sys.platform == "darwin" else 1024
    result["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
    say("HashingVectorizer and SGDClassifier")
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier

    texts = [key.decode("latin-1") for key in [*split.keys, *split.learnt_negatives]]
    labels = [1] * len(split.keys) + [0] * len(split.learnt_negatives)
    start = time.perf_counter()
    matrix = HashingVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False, n_features=2**16).transform(texts)
    SGDClassifier(loss="log_loss", random_state=0).fit(matrix, labels)
    result["scikit-learn s"] = time.perf_counter() - start
    for kind in ("ngram", "auto"):
        result[f"fit {kind} / scikit-learn"] = result[f"fit {kind} s"] / result["scikit-learn s"]
    return result
