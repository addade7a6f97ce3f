"""Forged high scores among ordinary queries: a Bodega filter beside a keyed Bloom filter, predicted and measured."""

import numpy as np

from dlbf.adversary import Oracle, WhiteBoxMutation, measure_hybrid, reveal
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.figures.bodega import NEGATIVES, built_example, crossovers
from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.figures.report_designs import N_KEYS
from dlbf.learned import LearnedFilter
from dlbf.models import train

__all__ = ["measured_curves"]

_MIXED = (
    ("Bodega, predicted", "Bodega"),
    ("keyed Bloom filter, predicted", "keyed Bloom"),
    ("Bodega, measured", "Bodega measured"),
    ("keyed Bloom filter, measured", "keyed Bloom measured"),
)


def _measured_example() -> tuple[Panel, Claim]:
    """The Bodega example as it was built; the model's verdicts are drawn at its rates."""
    whole, answers = built_example()
    model, n_asked = whole.model, len(answers["plain"])
    rng = np.random.default_rng(0)
    rows = []
    for share in np.linspace(0, 1, 51).tolist():
        forged = rng.random(n_asked) < share
        high = forged | (rng.random(n_asked) < model)
        # Q_N counts half of the low-scoring honest queries, as the paper does.
        counted = high | (rng.random(n_asked) < NEGATIVES)
        rows.append(
            {
                "adversarial share": share,
                "Bodega": whole.hybrid(share, 0.0),
                "keyed Bloom": whole.plain,
                "Bodega measured": float((counted & np.where(high, answers["high"], answers["low"])).mean()),
                "keyed Bloom measured": float(answers["plain"].mean()),
            }
        )
    shares = crossovers()
    predicted, measured = shares["predicted"], shares["measured"]
    claim = Claim(
        "crossover of the published example, filters of its size built and asked",
        "-",
        f"predicted {predicted:.2%}, measured {measured:.2%} (whole numbers of hashes)",
        abs(measured - predicted) < 0.002,
    )
    panel = Panel(
        f"published example, {N_KEYS:,} keys in 2 MB", "adversarial share", "false-positive rate", _MIXED,
        tuple(rows), True, ((measured, f"equal at {measured:.2%}"),),
    )  # fmt: skip
    return panel, claim


def _measured_urls() -> tuple[Panel, Claim]:
    """A bodega and a secure-bloom of equal memory, fitted to URL-like keys and asked for mixtures of queries."""
    bits, secret = 10.0, bytes(16)
    keys, negatives = list(listed_urls(20_000)), list(ordinary_urls(20_000, 1))
    model = train(keys, list(ordinary_urls(20_000)), kind="ngram", max_bytes=1024, validation=negatives, progress=False)
    made = {
        design: LearnedFilter.fit(
            keys, negatives, design=design, bits_per_key=bits, model=model, secret=secret, progress=False
        )
        for design in ("bodega", "secure-bloom")
    }
    oracle = Oracle(made["bodega"], keys, 0, revealed=reveal(made["bodega"]))
    forged = WhiteBoxMutation(0).forge(oracle, 100_000)
    mixture = measure_hybrid(
        made["bodega"], made["secure-bloom"], list(ordinary_urls(60_000, 2)), forged,
        shares=np.linspace(0, 1, 51).tolist(), queries=100_000,
    )  # fmt: skip
    rows = [
        {
            "adversarial share": share, "Bodega": learned.predicted, "keyed Bloom": plain.predicted,
            "Bodega measured": learned.value, "keyed Bloom measured": plain.value,
        }
        for share, learned, plain in zip(mixture.shares, mixture.learned, mixture.plain, strict=True)
    ]  # fmt: skip
    predicted, measured = mixture.crossover_predicted, mixture.crossover_measured
    both = predicted is not None and measured is not None
    claim = Claim(
        f"URL-like keys, {bits:g} bits per key with model: crossover of bodega and secure-bloom",
        "-",
        f"predicted {predicted:.2%}, measured {measured:.2%}" if both else "none: one is better at every share",
        both and abs((measured or 0) - (predicted or 0)) < 0.02,
    )
    marks = ((measured, f"equal at {measured:.1%}"),) if measured is not None else ()
    panel = Panel(
        f"URL-like keys, {bits:g} bits per key", "adversarial share", "false-positive rate", _MIXED, tuple(rows),
        True, marks,
    )  # fmt: skip
    return panel, claim


def measured_curves() -> Curves:
    """Predicted and measured rates of bodega and secure-bloom at equal memory, for every adversarial share."""
    pairs = (_measured_example(), _measured_urls())
    panels, claims = tuple(panel for panel, _ in pairs), tuple(claim for _, claim in pairs)
    rows = [{"panel": number, **row} for number, panel in enumerate(panels, 1) for row in panel.rows]
    return Curves("hybrid-measured", "Forged high scores among ordinary queries", panels, claims, tuple(rows))
