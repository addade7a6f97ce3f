"""Builds every design, and every peer that is installed, for the user's keys and measures it."""

import contextlib
import importlib.metadata
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dlbf.bench.contenders import PEERS, Contender, size_in_bits
from dlbf.learned import LearnedFilter, Rate
from dlbf.report.figures import Built, DesignRow, MeasuredRate, PeerRow
from dlbf.report.inputs import Targets, sample_evenly
from dlbf.report.progress import Say, say_nothing
from dlbf.theory import DESIGNS

__all__ = ["design_rows", "measure_built", "peer_rows", "smallest_plain"]

# Designs with a key of their own get this one where the user gave none: their sizes and rates do not depend on it.
ANY_SECRET = bytes(range(16))


def _measured(rate: Rate | None) -> MeasuredRate | None:
    """None where nothing was measured."""
    if rate is None or not rate.trials:
        return None
    return MeasuredRate(rate.value, rate.interval, rate.hits, rate.trials)


def _scaled_bits(lf: LearnedFilter, n_fitted: int, n_keys: int) -> float:
    """Bits per key for ``n_keys`` keys of a filter built for some: filters grow with the keys, a model does not."""
    fixed = lf.model.nbytes
    return 8 * (lf.nbytes - fixed) / n_fitted + 8 * fixed / n_keys


def measure_built(lf: LearnedFilter, keys: list[bytes], absent: list[bytes], n_keys: int) -> Built:
    """Figures of a filter that was built for ``keys``, its size scaled to ``n_keys``."""
    # Evenly spread: the beginning of a sorted file is not like the rest.
    removed = sample_evenly(keys, max(1, min(20_000, len(keys) // 10)))
    measured = lf.evaluate(absent, deleted=removed)
    bits = _scaled_bits(lf, len(keys), n_keys)
    return Built(
        uses_model=lf.model.kind != "none",
        bits_per_key=bits,
        bytes=math.ceil(bits * n_keys / 8),
        fpr_predicted=lf.plan.fpr,
        fpr_measured=_measured(measured.fpr),
        fnr_predicted=lf.plan.fnr,
        deletability=lf.plan.deletability if lf.deletable else None,
        deletability_measured=_measured(measured.first_removal),
        adversarial_fpr=lf.plan.adversarial_fpr,
    )


def design_rows(
    names: Sequence[str],
    keys: list[bytes],
    learnt: list[bytes],
    absent: list[bytes],
    targets: Targets,
    basis: LearnedFilter | None,
    n_keys: int,
    say: Say = say_nothing,
) -> list[DesignRow]:
    """Each of these designs, built for these keys at the targets, measured on absent keys it has not seen.

    Parameters
    ----------
    names : sequence of str
        Which designs.
    keys, learnt, absent : list of bytes
        What is built, sized by, and measured on.
    basis : LearnedFilter or None
        Its model serves all; fitted on the same ``learnt`` with the same seed, so that the same part is held out.
    n_keys : int
        Keys to scale the sizes to.
    """
    rows = []
    for number, name in enumerate(names):
        say(f"building {name}", number / len(names))
        design = DESIGNS[name]
        row = DesignRow(
            name, design.summary, design.learned, design.deletable, can_lose_keys=design.false_negatives,
            keyed=design.keyed,
        )  # fmt: skip
        if design.learned and basis is None and not design.chooses_model:
            rows.append(replace(row, reason="needs a model, and there is nothing to train one on"))
            continue
        try:
            lf = _build(name, keys, learnt, targets, basis)
        except ValueError as error:
            rows.append(replace(row, reason=str(error)))
            continue
        rows.append(replace(row, built=measure_built(lf, keys, absent, n_keys)))
    return rows


def _build(
    name: str, keys: list[bytes], learnt: list[bytes], targets: Targets, basis: LearnedFilter | None
) -> LearnedFilter:
    design = DESIGNS[name]
    with warnings.catch_warnings():
        # Said once for the whole report.
        warnings.simplefilter("ignore", UserWarning)
        return LearnedFilter.fit(
            keys, learnt, fpr=targets.fpr, deletability=targets.deletability if design.deletable else 0.0,
            adversarial_fpr=targets.adversarial_fpr, design=name,
            model=basis.model if basis is not None and design.learned else None,
            secret=targets.secret or (ANY_SECRET if design.keyed else None), random_state=targets.seed,
            progress=False,
        )  # fmt: skip


def smallest_plain(rows: Sequence[DesignRow]) -> tuple[str, Built] | None:
    """The smallest design without a model that can delete and meets the targets."""
    able = [(row.design, row.built) for row in rows if row.built and row.deletable and not row.learned]
    return min(able, key=lambda pair: pair[1].bits_per_key) if able else None


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


def peer_rows(keys: list[bytes], absent: list[bytes], fpr: float, say: Say = say_nothing) -> list[PeerRow]:
    """Bits per key and measured rate of every peer that is installed; of the others, why not."""
    rows = []
    with _own_temporary_folder():
        for number, (name, peer) in enumerate(PEERS.items()):
            say(f"building {name}", number / len(PEERS))
            row = PeerRow(name, deletable="remove" not in peer.cannot)
            try:
                row = replace(row, version=importlib.metadata.version(peer.distribution))
                bits_per_key, rate = _measure_peer(peer, keys, absent, fpr)
                row = replace(row, bits_per_key=bits_per_key, fpr_measured=_measured(rate))
            except importlib.metadata.PackageNotFoundError:
                row = replace(row, missing="not installed")
            except Exception as error:  # a broken peer is said so, whatever it raises
                row = replace(row, missing=f"{type(error).__name__}: {error}")
            rows.append(row)
    return rows


def _measure_peer(peer: Contender, keys: list[bytes], absent: list[bytes], fpr: float) -> tuple[float, Rate]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = peer.make(max(2, len(keys)), fpr)
        if hasattr(made, "build_from"):
            made = made.build_from(keys)
        else:
            made.update(keys)
        ask = getattr(made, "ask", None) or made.__contains__
        hits = sum(bool(ask(key)) for key in absent)
    return size_in_bits(made) / len(keys), Rate(hits, len(absent), fpr)
