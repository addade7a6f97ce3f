"""LearnedFilter: the composite as a set-like, deletable, savable filter."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from dlbf import format
from dlbf.errors import FilterFullError, FormatError, NotDeletableError, ReinsertionError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, aligned_zeros, check_count, float_to_param
from dlbf.filters.exact import ExactSet
from dlbf.kernels.composite import CompositeCore
from dlbf.learned.assembly import CLASSES, DELETED, DIRECTORY, PART, Part, assemble, part_bytes, part_fpr
from dlbf.learned.evaluation import Evaluation, evaluate
from dlbf.learned.explanation import Explanation
from dlbf.models import Model
from dlbf.theory import Design, get_design

__all__ = ["LearnedFilter"]


class LearnedFilter(CompositeCore, Filter):
    """A deletable filter with a model in it: several times smaller than one without, where keys have structure.

    Make one with :meth:`fit`; open a saved one with :func:`dlbf.open_filter` or :meth:`from_bytes`.  It has every method
    of the other filters.

    Examples
    --------
    >>> from dlbf.bench.keys import listed_urls, ordinary_urls
    >>> keys, negatives = list(listed_urls(3000)), list(ordinary_urls(20000))
    >>> lf = LearnedFilter.fit(keys, negatives, fpr=0.01, model="ngram")
    >>> all(key in lf for key in keys), lf.design
    (True, 'auto')
    >>> lf.remove(keys[0]) in (True, False)
    True
    """

    KIND = format.KIND_LEARNED
    PARAMS = ("payload_bytes",)

    _plan: Explanation
    _model: Model | None = None

    def __init__(self) -> None:
        raise TypeError("make a LearnedFilter with LearnedFilter.fit(keys, negatives, fpr=0.01)")

    # --- making

    @classmethod
    def fit(
        cls,
        keys: Iterable[Any],
        negatives: Iterable[Any],
        fpr: float | None = None,
        *,
        deletability: float | None = None,
        adversarial_fpr: float = 1.0,
        design: str = "auto",
        model: str | Model | None = "auto",
        counter_bits: int | None = None,
        bits_per_key: float | None = None,
        headroom: float = 1.0,
        deletions: float = 0.1,
        secret: bytes | None = None,
        random_state: int = 0,
        max_model_bytes: int | None = None,
        progress: Any = None,
    ) -> "LearnedFilter":
        """Learn from keys and absent keys, plan, build and fill.

        Parameters
        ----------
        keys : iterable of keys
            What is stored; duplicates count once.
        negatives : iterable of keys
            A sample of what is asked for and absent.  A part of it is held out of training and decides.
        fpr : float, optional
            Target false-positive rate for queries like ``negatives``; 0.01 unless ``bits_per_key`` is given.
        deletability : float, optional
            Least share of removed keys that answer "absent" afterwards.  A removed key still looks like a key, so this is
            what costs most: 0.9 (the default of ``auto``) needs at least 3.3 bits per key.  Other designs take what
            their plan gives unless asked.
        adversarial_fpr : float
            Largest rate for somebody who can forge any score (with ``secret``: but not the hash).
        design : str
            ``"auto"``, or a name of :data:`dlbf.theory.DESIGNS`.
        model : str, Model or None
            ``"auto"``, a kind of :func:`dlbf.models.train`, a compiled model, or None for none.
        counter_bits : {2, 4, 8}, optional
            Width of counters where the design has them; 4 by default.
        bits_per_key : float, optional
            A budget, model included, instead of ``fpr``.
        headroom : float
            Room for so many times the keys; 1.5 leaves space for half as many again.
        deletions : float
            Share of keys that will be deleted, for designs that keep a deleted set.
        secret : bytes, optional
            16 bytes for keyed hashing.
        random_state : int
            Same input and state give the same filter.
        max_model_bytes : int, optional
            Largest model to consider.
        progress : bool or callable, optional
            ``callable(stage, fraction)``; True writes to standard error; by default only on a terminal.

        Returns
        -------
        LearnedFilter

        Raises
        ------
        ValueError
            If the targets cannot be met by the design; the message has the smallest budget that would do.
        """
        from dlbf.learned.fitting import fit

        return fit(
            keys,
            negatives,
            fpr=fpr,
            deletability=deletability,
            adversarial_fpr=adversarial_fpr,
            design=design,
            model=model,
            counter_bits=counter_bits,
            bits_per_key=bits_per_key,
            headroom=headroom,
            deletions=deletions,
            secret=secret,
            random_state=random_state,
            max_model_bytes=max_model_bytes,
            progress=progress,
        )

    @classmethod
    def _assemble(
        cls,
        parts: Sequence[Part],
        thresholds: Sequence[int],
        model: Model,
        hides_score: bool,
        plan: Explanation,
        capacity: int,
        fpr: float,
        secret: bytes | None,
    ) -> "LearnedFilter":
        """An empty filter with these parts."""
        payload = assemble(parts, thresholds, model, hides_score, plan.to_dict())
        self = cls.__new__(cls)
        self._open((capacity, float_to_param(fpr), 0, len(payload)), payload, 0, secret)
        self._model = model
        return self

    def _take_parts(self, other: "LearnedFilter") -> None:
        """Copy the contents of a filter with the same parts."""
        mine, theirs = self._payload(), other._payload()
        for (_, offset, n_bytes), (_, their_offset, _) in zip(self._parts(), other._parts(), strict=True):
            mine[offset : offset + n_bytes] = theirs[their_offset : their_offset + n_bytes]
        mine[DIRECTORY.size - 8 : DIRECTORY.size] = theirs[DIRECTORY.size - 8 : DIRECTORY.size]
        self._set_items(len(other))

    # --- opening

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        return check_count("payload_bytes", params[3], DIRECTORY.size, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        self._load()
        payload = self._payload()
        head = DIRECTORY.unpack_from(payload)
        plan_at, n_plan = head[-3], head[-2]
        try:
            self._plan = Explanation.from_dict(json.loads(bytes(payload[plan_at : plan_at + n_plan])))
            get_design(self._plan.design)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"the plan of a learned filter cannot be read ({error}); build it again") from None
        for part, offset, n_bytes in self._parts():
            if part.kind == format.KIND_EXACT:
                # Offsets in an exact set are followed only after all of them have been looked at.
                probe = ExactSet.__new__(ExactSet)
                probe._attach(payload[offset : offset + n_bytes], None, 0, 0)
                probe._set_geometry(*part.params[:2])
                probe._set_items(int.from_bytes(payload[offset : offset + 8], "little"))
                sound = probe._is_sound()
                probe._detach()
                if not sound:
                    raise FormatError("an exact set in a learned filter points outside of itself; build it again")

    def _part_bytes(self, kind: int, params: tuple[int, ...]) -> int:
        try:
            return part_bytes(kind, params)
        except ValueError as error:
            raise FormatError(f"impossible part of a learned filter: {error}") from None

    def _parts(self) -> list[tuple[Part, int, int]]:
        """The parts with their offsets and sizes, as the directory has them."""
        payload = self._payload()
        n_parts = int.from_bytes(payload[4:8], "little")
        found = []
        for number in range(n_parts):
            role, region, kind, _, offset, n_bytes, filter_id, *params = PART.unpack_from(
                payload, DIRECTORY.size + PART.size * number
            )
            found.append((Part(role, region, kind, filter_id, tuple(params)), offset, n_bytes))
        return found

    # --- what it is

    @property
    def design(self) -> str:
        """Name of the design."""
        return self._plan.design

    @property
    def plan(self) -> Explanation:
        """What was planned and why; print it."""
        return self._plan

    @property
    def model(self) -> Model:
        """The compiled model (kind ``"none"`` if learning did not pay)."""
        if self._model is None:
            payload = self._payload()
            head = DIRECTORY.unpack_from(payload)
            params, at, n_bytes = head[20:31], head[31], head[32]
            self._model = Model(params, bytes(payload[at : at + n_bytes]))
        return self._model

    @property
    def bits_per_key(self) -> float:
        """Bits per key stored now, model included (the explanatory text in the file is not counted)."""
        return 8 * self.nbytes / len(self) if len(self) else math.nan

    @property
    def nbytes(self) -> int:
        """Bytes of model, filters and directory; the explanatory text in the file is not counted."""
        if not self.n_payload_bytes:
            return 0
        head = DIRECTORY.unpack_from(self._payload())
        return int(self.n_payload_bytes) - head[-2]

    def _header(self, flags: int = 0, sums_checksum: int = 0) -> format.Header:
        header = super()._header(flags, sums_checksum)
        values = {name: getattr(header, name) for name in header.__dataclass_fields__}
        values["n_payload_bytes"] = self.n_payload_bytes
        return format.Header(**values)

    def copy(self) -> "LearnedFilter":
        """An independent filter with the same contents, in memory and writable."""
        own = aligned_zeros(self.n_payload_bytes)
        own[:] = self._payload()
        other = type(self).__new__(type(self))
        other._open(self._params, own, len(self), self._secret)
        return other

    @property
    def false_negatives(self) -> bool:
        """Whether the design may answer "absent" for a stored key."""
        return get_design(self.design).false_negatives

    @property
    def deletable(self) -> bool:
        """Whether keys can be removed."""
        return get_design(self.design).deletable

    @property
    def fill(self) -> float:
        """Keys stored over keys planned for."""
        return len(self) / self.capacity if self.capacity else math.nan

    def approximate_count(self) -> int:
        """Number of keys: what was added less what was removed."""
        return len(self)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate predicted for queries like the training negatives, at the planned number of keys."""
        return self._plan.fpr

    def region_of(self, keys: Iterable[Any]) -> Any:
        """The score region of each key, as a numpy array."""
        return self._regions_many(keys)

    def evaluate(self, negatives: Iterable[Any], deleted: Iterable[Any] | None = None) -> Evaluation:
        """Measure the filter beside what its plan predicts.

        Parameters
        ----------
        negatives : iterable of keys
            Absent keys that were not used to fit.
        deleted : iterable of keys, optional
            Keys that are in the filter; they are removed from a copy to measure deletability and false negatives.

        Returns
        -------
        Evaluation
            Rates with 99 % intervals; print it.
        """
        return evaluate(self, negatives, deleted)

    # --- changing

    def _design(self) -> Design:
        return get_design(self.design)

    def _need_deletable(self) -> None:
        if not self.deletable:
            raise NotDeletableError(
                f"the design {self.design!r} cannot remove keys; fit with design='auto' or another deletable one"
            )

    def remove(self, key: Any) -> bool:
        """Remove one key; see :meth:`dlbf.CountingBloomFilter.remove`.

        False means that the filter still answers "maybe": it kept nothing of the key that could be taken away.
        """
        self._need_deletable()
        return super().remove(key)

    def discard(self, key: Any) -> bool:
        """Like :meth:`remove`, but False instead of KeyError."""
        self._need_deletable()
        return super().discard(key)

    def remove_many(self, keys: Iterable[Any]) -> Any:
        """:meth:`discard` every key of a batch."""
        self._need_deletable()
        return super().remove_many(keys)

    def _refuse_key(self) -> None:
        raise ReinsertionError(
            f"the design {self.design!r} remembers deleted keys in a filter that cannot forget, and this key is (or "
            "collides with) one of them; use lbf-3cbf or auto where keys come back"
        )

    def _make_room(self) -> None:
        exact = [part for part, _, _ in self._parts() if part.kind == format.KIND_EXACT]
        if exact and self._file is None and self._grow_exact():
            return
        raise FilterFullError(
            f"a region of this filter has no room for one more key ({len(self)} stored, planned for {self.capacity}); "
            "nothing was lost. Fit again with headroom= above 1, or on the present keys"
        )

    def _grow_exact(self) -> bool:
        """Double the exact sets that are more than half full; False if none is."""
        parts = self._parts()
        payload = self._payload()
        grown: list[Part] = []
        contents: list[Any] = []
        changed = False
        for part, offset, n_bytes in parts:
            params = part.params
            content: Any = payload[offset : offset + n_bytes]
            if part.kind == format.KIND_EXACT and part.role == DELETED:
                inside = ExactSet.__new__(ExactSet)
                inside._attach(content, None, 0, 0)
                inside._set_geometry(*params[:2])
                inside_keys = inside._keys()
                inside._detach()
                used = sum(15 + len(key) for key in inside_keys)
                if 2 * len(inside_keys) >= params[0] or 2 * used >= params[1]:
                    changed = True
                    params = (2 * params[0] + 8, max(2 * params[1], 4 * used) + 256, 0, 0, 0)
                content = inside_keys
            grown.append(Part(part.role, part.region, part.kind, part.filter_id, params))
            contents.append(content)
        if not changed:
            return False
        head = DIRECTORY.unpack_from(payload)
        thresholds = head[4 : 4 + head[0] - 1]
        fresh = assemble(grown, thresholds, self.model, bool(head[2]), self._plan.to_dict())
        fresh[DIRECTORY.size - 8 : DIRECTORY.size] = payload[DIRECTORY.size - 8 : DIRECTORY.size]
        other = type(self).__new__(type(self))
        params = (*self._params[:3], len(fresh))
        other._open(params, fresh, len(self), self._secret)
        for (part, offset, n_bytes), content in zip(other._parts(), contents, strict=True):
            if isinstance(content, list):
                inside = ExactSet.__new__(ExactSet)
                inside._attach(fresh[offset : offset + n_bytes], self._secret, 0, part.filter_id)
                inside._set_geometry(*part.params[:2])
                inside.update(content)
                inside._detach()
            else:
                fresh[offset : offset + n_bytes] = content
        other._detach()
        self._open(params, fresh, len(self), self._secret)
        return True

    def clear(self) -> None:
        """Forget every key; model, plan and sizes stay."""
        parts = self._parts()
        self._payload()[DIRECTORY.size - 8 : DIRECTORY.size] = bytes(8)
        for _, offset, n_bytes in parts:
            self._payload()[offset : offset + n_bytes] = bytes(n_bytes)
        self._set_items(0)

    # --- sets

    def _merge(self, other: "LearnedFilter", union: bool) -> bool | None:
        """Union of two filters of equal plans: part by part."""
        mine, theirs = self._parts(), other._parts()
        seen: set[int] = set()
        for (part, offset, n_bytes), (_, their_offset, _) in zip(mine, theirs, strict=True):
            if offset in seen:
                continue
            seen.add(offset)
            kernel = _kernel_over(part, self._payload()[offset : offset + n_bytes])
            if part.role == DELETED:
                raise ValueError("filters with deleted sets cannot be united: a key of one may be deleted in the other")
            fits = kernel._merge(_kernel_over(part, other._payload()[their_offset : their_offset + n_bytes]), True)
            if fits is False:
                return False
        start = DIRECTORY.size - 8
        total = self._unstored + other._unstored
        self._payload()[start : DIRECTORY.size] = total.to_bytes(8, "little")
        return None

    def _differences(self, other: Filter) -> str:
        assert isinstance(other, LearnedFilter)
        parts = []
        if format.hash_identity(self._secret) != format.hash_identity(other._secret):
            parts.append("hash (different secrets, or only one has one)")
        mine, theirs = self._payload(), other._payload()
        if self.design != other.design:
            parts.append(f"design ({self.design} and {other.design})")
        elif self.model != other.model:
            parts.append("model")
        elif bytes(mine[:168]) != bytes(theirs[:168]) or [p for p, _, _ in self._parts()] != [
            p for p, _, _ in other._parts()
        ]:
            parts.append("geometry (thresholds or sizes of the parts)")
        return ", ".join(parts)


def _kernel_over(part: Part, buffer: memoryview) -> Any:
    """A filter of the part's class over its bytes."""
    cls = CLASSES[part.kind]
    made = cls.__new__(cls)
    made._attach(buffer, None, 0, 0)
    made._set_geometry(*part.params[: len(cls.PARAMS)])
    return made


def predicted_rates(parts: Sequence[Part], key_counts: Sequence[int]) -> tuple[float, list[float]]:
    """Rates of the initial filter and of each region's members, as built and filled."""
    initial, members = 1.0, [1.0] * len(key_counts)
    shared = [part for part in parts if part.shares_with is not None]
    for part in parts:
        if part.role == 0:
            initial = part_fpr(part.kind, part.params, sum(key_counts))
        elif part.role == 1:
            if shared:
                # One array for all regions: the load is that of all of them together.
                probes = sum(key_counts[other.region] * other.params[1] for other in parts if other.role == 1)
                filled = -math.expm1(-probes / part.params[0])
                members[part.region] = filled ** part.params[1]
            else:
                members[part.region] = part_fpr(part.kind, part.params, key_counts[part.region])
    return initial, members
