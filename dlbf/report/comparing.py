"""What every design, and every peer that is installed, would cost for the user's keys."""

import contextlib
import importlib.metadata
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dlbf.bench.contenders import PEERS, size_in_bits
from dlbf.learned import Explanation, LearnedFilter, Rate
from dlbf.theory import DESIGNS, plan

__all__ = ["Targets", "curves", "design_rows", "forged_tradeoff", "peer_rows", "rate_figures"]

Say = Callable[[str, float], None]

# Rates of the curves; the target is added.
RATES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0001)
# Planning takes a second per point for a few designs: those get three points and coarser bins (off by 2 % at most).
COARSE = 4
FORGED_RATES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
# Designs with a key of their own get this one where the user gave none: their sizes and rates do not depend on it.
ANY_SECRET = bytes(range(16))


@dataclass(frozen=True)
class Targets:
    """What was asked for."""

    fpr: float
    deletability: float
    adversarial_fpr: float
    secret: bytes | None = None
    seed: int = 0


def rate_figures(rate: Rate | None) -> dict[str, Any] | None:
    """A measured rate as plain data; None where nothing was measured."""
    if rate is None or not rate.trials:
        return None
    return {"value": rate.value, "interval_99": list(rate.interval), "hits": rate.hits, "trials": rate.trials}


def scaled_bits(lf: LearnedFilter, n_fitted: int, n_keys: int) -> float:
    """Bits per key for ``n_keys`` keys of a filter built for some: filters grow with the keys, a model does not."""
    fixed = lf.model.nbytes
    return 8 * (lf.nbytes - fixed) / n_fitted + 8 * fixed / n_keys


def design_rows(
    names: Sequence[str],
    keys: list[bytes],
    learnt: list[bytes],
    unseen: list[bytes],
    targets: Targets,
    basis: LearnedFilter | None,
    n_keys: int,
    say: Say = lambda stage, fraction: None,
) -> list[dict[str, Any]]:
    """Each of these designs, built for these keys at the targets, measured on absent keys it has not seen.

    Parameters
    ----------
    names : sequence of str
        Which designs.
    keys, learnt, unseen : list of bytes
        What is built, sized by, and measured on.
    basis : LearnedFilter or None
        Its model serves all; fitted on the same ``learnt`` with the same seed, so that the same part is held out.
    n_keys : int
        Keys to scale the sizes to.
    """
    rows = []
    for number, name in enumerate(names):
        design = DESIGNS[name]
        say(f"building {name}", number / len(names))
        row: dict[str, Any] = {
            "design": name,
            "summary": design.summary,
            "learned": design.learned,
            "deletable": design.deletable,
            "can_lose_keys": design.false_negatives,
            "keyed": design.keyed,
            "feasible": False,
        }
        rows.append(row)
        if design.learned and basis is None and name != "auto":
            row["reason"] = "needs a model, and there is nothing to train one on"
            continue
        try:
            with warnings.catch_warnings():
                # Said once for the whole report.
                warnings.simplefilter("ignore", UserWarning)
                lf = LearnedFilter.fit(
                    keys, learnt, fpr=targets.fpr, deletability=targets.deletability if design.deletable else 0.0,
                    adversarial_fpr=targets.adversarial_fpr, design=name,
                    model=basis.model if basis is not None and design.learned else None,
                    secret=targets.secret or (ANY_SECRET if design.keyed else None), random_state=targets.seed,
                    progress=False,
                )  # fmt: skip
        except ValueError as error:
            row["reason"] = str(error)
            continue
        row |= built_row(lf, keys, unseen, n_keys)
    return rows


def built_row(lf: LearnedFilter, keys: list[bytes], unseen: list[bytes], n_keys: int) -> dict[str, Any]:
    """Figures of a filter that was built for ``keys``."""
    # Evenly spread: the beginning of a sorted file is not like the rest.
    gone = sample_evenly(keys, max(1, min(20_000, len(keys) // 10)))
    measured = lf.evaluate(unseen, deleted=gone)
    bits = scaled_bits(lf, len(keys), n_keys)
    return {
        "feasible": True,
        "uses_model": lf.model.kind != "none",
        "bits_per_key": bits,
        "bytes": math.ceil(bits * n_keys / 8),
        "fpr_predicted": lf.plan.fpr,
        "fpr_measured": rate_figures(measured.fpr),
        "fnr_predicted": lf.plan.fnr,
        "deletability": lf.plan.deletability if lf.deletable else None,
        "deletability_measured": rate_figures(measured.deletability),
        "adversarial_fpr": lf.plan.adversarial_fpr,
    }


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """Peers that need a file get it in a folder that goes away with them."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def peer_rows(
    keys: list[bytes], unseen: list[bytes], fpr: float, say: Say = lambda stage, fraction: None
) -> list[dict[str, Any]]:
    """Bits per key and measured rate of every peer that is installed; of the others, why not."""
    rows = []
    with _own_temporary_folder():
        for number, (name, peer) in enumerate(PEERS.items()):
            say(f"building {name}", number / len(PEERS))
            row: dict[str, Any] = {"name": name, "deletable": "remove" not in peer.cannot}
            rows.append(row)
            try:
                row["version"] = importlib.metadata.version(peer.distribution)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made = peer.make(max(2, len(keys)), fpr)
                    if hasattr(made, "build_from"):
                        made = made.build_from(keys)
                    else:
                        made.update(keys)
                    ask = getattr(made, "ask", None) or made.__contains__
                    hits = sum(bool(ask(key)) for key in unseen)
                row["bits_per_key"] = size_in_bits(made) / len(keys)
                row["fpr_measured"] = rate_figures(Rate(hits, len(unseen), fpr))
                del made, ask
            except importlib.metadata.PackageNotFoundError:
                row["missing"] = "not installed"
            except Exception as error:  # a broken peer is said so, whatever it raises
                row["missing"] = f"{type(error).__name__}: {error}"
    return rows


def _bins(explanation: Explanation | None, merged: int = 1) -> dict[str, Any]:
    """Shares of keys and queries that other targets are planned with, so many neighbours in one."""
    if explanation is None or not explanation.bins:
        return {}
    shares = np.add.reduceat(np.array(explanation.bins), np.arange(0, len(explanation.bins), merged), axis=0)
    keys, queries = (shares / shares.sum(axis=0)).T
    return {
        "key_shares": keys,
        "query_shares": queries,
        "query_floor": 1 / explanation.held_out if explanation.held_out else 0.0,
        "model_bits_per_key": explanation.model_bits_per_key,
    }


def curves(
    names: Sequence[str],
    explanation: Explanation | None,
    targets: Targets,
    say: Say = lambda stage, fraction: None,
) -> list[dict[str, Any]]:
    """Bits per key against the false-positive rate: all designs, textbook filters, and the least without a model.

    Computed, not built; designs whose curves coincide are one curve with several names.
    """
    fine, coarse = _bins(explanation), _bins(explanation, COARSE)
    blind = {**fine, "key_shares": [0.5, 0.5], "query_shares": [0.5, 0.5]}
    rates = sorted({*RATES, targets.fpr}, reverse=True)
    few_rates = sorted({min(0.1, 10 * targets.fpr), targets.fpr, targets.fpr / 10}, reverse=True)
    found: list[dict[str, Any]] = []

    def put(name: str, kind: str, deletable: bool, learned: bool, points: list[tuple[float, float]]) -> None:
        for other in found:
            same = (other["kind"], other["deletable"]) == (kind, deletable) and len(other["points"]) == len(points)
            if same and all(
                rate == old_rate and math.isclose(bits, old_bits, rel_tol=0.005)
                for (rate, bits), (old_rate, old_bits) in zip(points, other["points"], strict=True)
            ):
                other["names"].append(name)
                return
        found.append({"names": [name], "kind": kind, "deletable": deletable, "learned": learned, "points": points})

    for number, name in enumerate(names):
        design = DESIGNS[name]
        say(f"curve of {name}", number / len(names))
        if design.learned and not fine and name != "auto":
            continue
        slow = design.shared or design.false_negatives
        # A model that sees only a keyed hash knows nothing, whatever others know.
        shares = blind if design.hides_score else coarse if slow else fine
        points = []
        for rate in few_rates if slow else rates:
            planned = plan(
                name, fpr=rate, deletability=targets.deletability if design.deletable else 0.0,
                adversarial_fpr=targets.adversarial_fpr, **(shares if design.learned else {}),
            )  # fmt: skip
            if planned.feasible:
                points.append((rate, planned.bits))
        if points:
            put(name, "design", design.deletable, design.learned, points)
    logs = [(rate, math.log2(1 / rate)) for rate in rates]
    textbook: list[tuple[str, bool, Callable[[float], float]]] = [
        ("cuckoo, textbook", True, lambda log: (log + 3) / 0.95),
        ("xor", False, lambda log: 1.23 * log),
        ("binary fuse", False, lambda log: 1.125 * log),
    ]
    for name, deletable, cost in textbook:
        put(name, "textbook", deletable, False, [(rate, cost(log)) for rate, log in logs])
    for deletable in (True, False):
        put("least without a model", "bound", deletable, False, logs)
    return found


def forged_tradeoff(explanation: Explanation, targets: Targets) -> list[tuple[float, float]]:
    """Bits per key of ``auto`` against the largest rate allowed to forged keys, the other targets kept."""
    shares = _bins(explanation)
    points = []
    for rate in sorted({*(r for r in FORGED_RATES if r >= targets.fpr), targets.adversarial_fpr}, reverse=True):
        found = plan(
            "auto", fpr=targets.fpr, deletability=targets.deletability, adversarial_fpr=rate, **shares,
        )  # fmt: skip
        if found.feasible:
            points.append((rate, found.bits))
    return points


def for_all_keys(explanation: Explanation, model_bytes: int, n_keys: int) -> Explanation:
    """The plan of a sample as it would be for all keys: the model's share of the bits shrinks."""
    return replace(explanation, model_bits_per_key=8 * model_bytes / n_keys)


def sample_evenly(items: Sequence[bytes], at_most: int) -> list[bytes]:
    """At most so many, evenly spread: a sorted file is not cut off."""
    if len(items) <= at_most:
        return list(items)
    step = len(items) / at_most
    return [items[int(i * step)] for i in range(at_most)]
