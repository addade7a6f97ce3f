"""One small model and fits of every design, made once for all tests of learned filters."""

import functools
import random
import warnings
from typing import Any

import dlbf
from dlbf import models
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.theory import DESIGNS
from support.samples import SECRET

N_KEYS = 1500
KEYS = list(listed_urls(N_KEYS))
NEGATIVES = list(ordinary_urls(12_000))
# Negatives that no fit has seen.
FRESH = list(ordinary_urls(20_000, seed=5))


@functools.cache
def small_model() -> models.Model:
    return models.train(KEYS, NEGATIVES[:4000], kind="ngram", max_bytes=256, epochs=4, progress=False)


def secret_of(design: str) -> bytes | None:
    return SECRET if design in DESIGNS and DESIGNS[design].keyed else None


def fit(keys: Any = None, negatives: Any = None, **arguments: Any) -> dlbf.LearnedFilter:
    """``LearnedFilter.fit`` with the small model, silent, and with the secret that a keyed design needs."""
    arguments.setdefault("model", small_model())
    arguments.setdefault("progress", False)
    arguments.setdefault("secret", secret_of(arguments.get("design", "auto")))
    with warnings.catch_warnings():
        # A test that is about the warning calls LearnedFilter.fit itself.
        warnings.filterwarnings("ignore", message=".* negatives cannot show a rate")
        return dlbf.LearnedFilter.fit(
            KEYS if keys is None else keys, NEGATIVES if negatives is None else negatives, **arguments
        )


@functools.cache
def fitted(design: str, bits_per_key: float = 20.0, **more: Any) -> dlbf.LearnedFilter:
    """A filter of that design holding `KEYS`; copy it before changing it."""
    return fit(design=design, bits_per_key=bits_per_key, **more)


@functools.cache
def with_exact_set() -> tuple[dlbf.LearnedFilter, tuple[bytes, ...]]:
    """A pddbf whose upper regions keep deleted keys in an exact set, and the keys of those regions."""
    made = fit(design="pddbf", fpr=0.05, deletability=0.9, deletions=0.02)
    exact = [region.deleted_base == "exact" for region in made.plan.regions]
    return made, tuple(key for key, r in zip(KEYS, made.region_of(KEYS), strict=True) if exact[r])


def awkward_keys(n: int = 12) -> list[bytes]:
    """Keys that are nothing like URLs."""
    rng = random.Random(7)
    return [b"", b"\0", b"/", b"long" * 200, *(rng.randbytes(rng.randint(1, 40)) for _ in range(n))]
