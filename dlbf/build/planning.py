"""The blueprint: trained and planned on a sample, for keys that nobody has seen all of."""

import warnings

from dlbf.filters.base import check_count
from dlbf.kernels.keys import read_keys
from dlbf.learned import LearnedFilter
from dlbf.learned.holding import distinct
from dlbf.learned.preparing import prepare
from dlbf.learned.targets import Progress, Targets
from dlbf.models import Model
from dlbf.sharded.blueprint import pack_blueprint
from dlbf.sharded.container import MAX_SHARDS
from dlbf.theory import get_design
from dlbf.typenames import Keys

__all__ = ["SHARD_KEYS", "auto_shards", "blueprint"]

# Keys of a shard that is built in about 50 MiB; see ``shard_memory``.
SHARD_KEYS = 1 << 22


def auto_shards(n_keys: int, shard_keys: int = SHARD_KEYS) -> int:
    """The power of two of shards with which each has at most ``shard_keys``, on average.

    Examples
    --------
    >>> [auto_shards(n) for n in (1000, 10**7, 10**9, 10**11)]
    [1, 4, 256, 32768]
    """
    return 1 << max(0, -(-n_keys // shard_keys) - 1).bit_length()


def blueprint(
    keys_sample: Keys,
    negatives: Keys,
    *,
    n_keys: int,
    fpr: float = 0.01,
    shards: int | None = None,
    design: str = "static",
    model: str | Model | None = "auto",
    deletability: float | None = None,
    adversarial_fpr: float | None = None,
    headroom: float = 1.0,
    max_model_bytes: int | None = None,
    secret: bytes | None = None,
    random_state: int = 0,
    progress: Progress | None = None,
) -> bytes:
    """Train and plan on a sample; what every shard is built to, as bytes that can be broadcast.

    Parameters
    ----------
    keys_sample : iterable of keys
        A random sample of the keys; some 100,000 are enough.
    negatives : iterable of keys
        A sample of what is asked for and absent, as for ``dlbf.LearnedFilter.fit``.
    n_keys : int
        How many keys there are; a tenth more or less does no harm, as every shard is sized by its own keys.
    fpr : float
        Target false-positive rate for queries like ``negatives``.
    shards : int, optional
        A power of two; by default as many as leave 4 million keys in each.
    design : str
        ``"static"`` (smallest, built once), ``"auto"`` (keys can be removed), or a name of ``dlbf.theory.DESIGNS`` with
        a table of its own in each region.
    model : str, Model or None
        As for ``dlbf.LearnedFilter.fit``; None for none.
    deletability : float, optional
        As for ``dlbf.LearnedFilter.fit``.
    adversarial_fpr : float, optional
        As for ``dlbf.LearnedFilter.fit``.
    headroom : float
        Room in every shard for so many times its keys, where keys can be added.
    max_model_bytes : int, optional
        Largest model to consider.
    secret : bytes, optional
        16 bytes for keyed hashing.  Not part of the blueprint: whoever builds shards must be given it, too.
    random_state : int
        Same input and state give the same blueprint.
    progress : callable, optional
        ``callable(stage, fraction)``.

    Returns
    -------
    bytes
        Some KiB and the model.  The same blueprint and keys give the same shards, byte by byte, anywhere.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> keys, absent = list(listed_urls(8000)), list(ordinary_urls(8000))
    >>> plan = blueprint(keys[:4000], absent, n_keys=8000, shards=4, model="ngram")
    >>> type(plan), len(plan) < 64_000
    (<class 'bytes'>, True)
    """
    n_keys = check_count("n_keys", n_keys, 1, 1 << 42)
    n_shards = auto_shards(n_keys) if shards is None else check_count("shards", shards, 1, MAX_SHARDS)
    if n_shards & (n_shards - 1):
        raise ValueError(f"shards must be a power of two, found {n_shards}; try {1 << n_shards.bit_length()}")
    if get_design(design).false_negatives:
        raise ValueError(f"the design {design!r} may deny keys that are stored; use design='static' or 'auto'")
    targets = Targets(
        fpr=fpr,
        deletability=deletability,
        adversarial_fpr=adversarial_fpr,
        design=design,
        model=model,
        headroom=headroom,
        secret=secret,
        random_state=random_state,
        max_model_bytes=max_model_bytes,
    )
    sample = distinct(read_keys(keys_sample))
    with warnings.catch_warnings():
        # Of those that a sample repeats, nobody need know.
        warnings.filterwarnings("ignore", message=".* negatives are among the keys")
        planned = prepare(
            LearnedFilter, sample, negatives, targets, progress or _silent, n_keys=n_keys, compare=False
        ).filter
    return pack_blueprint(planned, n_keys, n_shards, headroom, secret)


def _silent(stage: str, fraction: float) -> None:
    pass
