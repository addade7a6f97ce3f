"""The compiled model: integers that score a key the same way everywhere, and their bytes."""

import secrets
from typing import Any

from dlbf import format
from dlbf.errors import FormatError
from dlbf.kernels.methods import own_methods
from dlbf.kernels.scoring import Scorer
from dlbf.models.features import NO_SPLIT, VIEWS, Features
from dlbf.models.kinds import ROWS, kind_of_number
from dlbf.models.pickles import seal

__all__ = ["Model", "from_bytes", "no_model", "seal_under"]

_FORMS = ("none", "int8 table", "int4 table", "quadratic", "trees")
_PARAM_KIND_NAME = 10
_MASK = 2**64 - 1

# Seals the pickles of models that were made without a secret: this process can open them, no other.
_PROCESS_SECRET = secrets.token_bytes(32)


@own_methods("score")
class Model(Scorer):
    """A compiled model.  Made by `dlbf.models.train`, `dlbf.models.compile` or `dlbf.models.from_bytes`.

    Attributes
    ----------
    kind : str
        ``ngram``, ``trees``, ``naive-bayes``, ``svm``, or ``none`` when learning would not pay.
    form : str
        How it is evaluated: ``int8 table``, ``int4 table``, ``quadratic``, ``trees`` or ``none``.
    features : Features or None
    nbytes : int
        What the model adds to a filter, in bytes (the header of `to_bytes` not counted).
    working_nbytes : int
        What it has in memory besides while it is open, to be faster: masks for trees, at most 256 KiB, or
        weights as bytes, at most 16 KiB.
    scale : float
        Score units per nat of the estimator's log-odds.  For people; nothing is routed by it.
    report : dict
        How it was trained and what it is worth; empty for a model that was loaded.
    estimator : object or None
        The fitted scikit-learn estimator, if this process made the model.

    Notes
    -----
    Immutable and safe to share between threads.  Only integers take part in a score: it is the same on every machine
    and for ever.

    Examples
    --------
    >>> model = no_model()
    >>> model.score(b"any key"), model.nbytes, model.kind
    (0, 0, 'none')
    """

    estimator: Any
    report: dict[str, Any]

    def __init__(
        self,
        params: tuple[int, ...],
        payload: bytes | memoryview,
        estimator: object = None,
        report: dict[str, object] | None = None,
        secret: bytes | None = None,
    ) -> None:
        super().__init__()  # the kernel has read both in __cinit__
        label = params[_PARAM_KIND_NAME] if len(params) > _PARAM_KIND_NAME else 0
        row = kind_of_number(label)
        if row is None:
            raise FormatError(f"model: unknown kind number {label}; written by a newer dlbf?")
        if any(params[_PARAM_KIND_NAME + 1 :]):
            raise FormatError("model: reserved parameters are not zero; written by a newer dlbf?")
        self._label = label
        self._kind = row.name
        self.estimator = estimator
        self.report = {} if report is None else report
        self._secret = secret
        self._pickle: bytes | None = None

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def form(self) -> str:
        return _FORMS[self.params[0]]

    @property
    def features(self) -> Features | None:
        view, order, split, log2_weights = (self.params[i] for i in (1, 3, 4, 5))
        if not view:
            return None
        mark = None if split == NO_SPLIT else bytes([split])
        if VIEWS[view] == "ngram":
            return Features("ngram", 1 << log2_weights, order, mark)
        return Features(VIEWS[view], split=mark)

    @property
    def bias(self) -> int:
        """What a score starts from."""
        return (self.params[6] ^ 1 << 63) - (1 << 63)

    @property
    def scale(self) -> float:
        return self.params[9] / 65536

    @property
    def pickle(self) -> bytes | None:
        """The estimator as a sealed pickle, or None if there is none.

        Sealed under the ``secret`` the model was trained with, or else under one that only this process has; use `seal`
        to write it anywhere.  `dlbf.models.open_pickle` opens it.
        """
        if self._pickle is None and self.estimator is not None:
            self._pickle = seal(self.estimator, self._secret or _PROCESS_SECRET)
        return self._pickle

    def seal(self, secret: bytes) -> bytes | None:
        """The estimator as a pickle sealed under ``secret`` (16 bytes or more), or None if there is none."""
        return None if self.estimator is None else seal(self.estimator, secret)

    def to_bytes(self) -> bytes:
        """The compiled model in the checksummed format; the estimator is not in it."""
        params = (*self.params, self._label)
        return format.pack(format.Header(format.KIND_MODEL, 0, params), self.payload)

    def __reduce__(self) -> tuple[object, ...]:
        return from_bytes, (self.to_bytes(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Model):
            return NotImplemented
        return (self.params, self._label, self.payload) == (other.params, other._label, other.payload)

    def __hash__(self) -> int:
        return hash((self.params, bytes(self.payload)))

    def __repr__(self) -> str:
        return f"<dlbf model {self.kind}: {self.form}, {self.nbytes} bytes>"


def make(
    form: str,
    payload: bytes,
    kind: str,
    features: Features | None,
    bias: int = 0,
    n_items: int = 0,
    sum_shift: int = 0,
    scale: float = 0.0,
    report: dict[str, object] | None = None,
) -> Model:
    """A model from its parts; the meaning of each parameter is set here and in the scoring kernel."""
    params = (
        _FORMS.index(form),
        VIEWS.index(features.view) if features else 0,
        1,
        features.order if features else 0,
        features.split_byte if features else NO_SPLIT,
        features.log2_weights if features else 0,
        bias & _MASK,
        n_items,
        sum_shift,
        min(round(scale * 65536), _MASK),
        ROWS[kind].number,
    )
    return Model(params, payload, report=report)


def seal_under(model: Model, secret: bytes | None) -> None:
    """Say which secret the model's own ``pickle`` is sealed under; None: one that only this process has."""
    model._secret = secret


def no_model(report: dict[str, object] | None = None) -> Model:
    """The model of keys without structure: no bytes, and the score 0 for every key.

    Examples
    --------
    >>> m = no_model()
    >>> m.nbytes, m.score(b"any key")
    (0, 0)
    """
    return make("none", b"", "none", None, report=report)


def from_bytes(data: bytes | bytearray | memoryview) -> Model:
    """Read a compiled model written by ``Model.to_bytes``; every byte is checked, nothing is executed.

    Parameters
    ----------
    data : buffer
        The whole object.  ``bytes`` are used in place, other buffers are copied (they could change).

    Raises
    ------
    FormatError, ChecksumError, VersionError
        If the bytes are not a model, have changed, or are from a newer version.

    Examples
    --------
    >>> from_bytes(no_model().to_bytes())
    <dlbf model none: none, 0 bytes>
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    header, payload = format.unpack(raw, "model")
    if header.kind != format.KIND_MODEL:
        found = format.KIND_NAMES.get(header.kind, f"kind {header.kind}")
        raise FormatError(f"expected a model, found a {found}; open it with dlbf.open_filter or its own from_bytes")
    return Model(header.params, payload)
