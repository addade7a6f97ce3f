"""LearnedFilter: the composite as a set-like, deletable, savable filter."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dlbf import format
from dlbf.errors import ChecksumError, FilterFullError, FormatError, NotDeletableError, ReinsertionError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, aligned_zeros, check_count, float_to_param
from dlbf.filters.kinds import base_of_kind
from dlbf.kernels.composite import CompositeCore
from dlbf.learned.assembly import (
    AT_MODEL_PARAMS,
    DELETED,
    DIRECTORY,
    FEW_KEYS,
    INITIAL,
    MEMBER,
    OWN_PARAMS,
    PART,
    Part,
    bare_directory,
    composite_bytes,
    directed_bytes,
    lay_out,
    part_bytes,
    part_fpr,
    scaled_params,
)
from dlbf.learned.evaluation import Evaluation, evaluate
from dlbf.learned.explanation import Explanation
from dlbf.models import Model
from dlbf.theory import get_design

__all__ = ["LearnedFilter"]


class LearnedFilter(CompositeCore, Filter):
    """A deletable filter with a model in it: several times smaller than one without, where keys have structure.

    Make one with ``fit``; open a saved one with ``dlbf.open_filter`` or ``from_bytes``.  It has every
    method of the other filters, and holds a key once: like a store, do not add a key that is there.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> keys, negatives = list(listed_urls(3000)), list(ordinary_urls(20000))
    >>> lf = LearnedFilter.fit(keys, negatives, fpr=0.01, model="ngram")
    >>> all(key in lf for key in keys), lf.design
    (True, 'auto')
    >>> lf.remove(keys[0]) in (True, False)
    True
    """

    KIND = format.KIND_LEARNED
    PARAMS = OWN_PARAMS

    __hash__ = None

    _plan: Explanation
    _model: Model | None = None
    _layout: tuple[tuple[Part, int, int], ...] = ()  # parts with their offsets and sizes in bytes
    _n_bytes: int = 0

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
            A sample of what is asked for and absent; each counts once, and those that are among ``keys`` are left out
            with a warning.  A part of it is held out of training and decides.
        fpr : float, optional
            Target false-positive rate for queries like ``negatives``; 0.01 unless ``bits_per_key`` is given.
        deletability : float, optional
            Least share of removed keys that answer "absent" afterwards.  A removed key still looks like a key, so this
            is what costs most: 0.9 (the default of ``auto``) needs at least 3.3 bits per key.  Other designs take what
            their plan gives unless asked.
        adversarial_fpr : float
            Largest rate for somebody who can forge any score (with ``secret``: but not the hash).
        design : str
            ``"auto"``, or a name of ``dlbf.theory.DESIGNS``.
        model : str, Model or None
            ``"auto"``, a kind of ``dlbf.models.train``, a compiled model, or None for none.
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
        from dlbf.learned.fitting import Targets, fit

        targets = Targets(
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
        )
        return fit(keys, negatives, targets, progress)

    @classmethod
    def _assemble(
        cls,
        parts: Sequence[Part],
        thresholds: Sequence[int],
        model: Model,
        flags: int,
        plan: Explanation,
        capacity: int,
        fpr: float,
        secret: bytes | None,
    ) -> "LearnedFilter":
        """An empty filter with these parts; the flags are those of the directory."""
        own, payload = lay_out(parts, thresholds, model, flags, plan.to_dict())
        self = cls.__new__(cls)
        self._open((capacity, float_to_param(fpr), 0, *own), payload, 0, secret)
        self._model = model
        return self

    def _with_plan(self, plan: Explanation) -> "LearnedFilter":
        """The same filter with another plan in it (its text has another length, so the parts move)."""
        head = self._head()
        parts = [part for part, _, _ in self._layout]
        made = self._assemble(
            parts, head[4 : 4 + head[0] - 1], self.model, head[2], plan, self._params[0],
            self.fpr_target or plan.fpr, self._secret,
        )  # fmt: skip
        self._pour(made)
        return made

    def _relaid(self, rooms: Sequence[int], region_keys: Sequence[int] | None = None) -> "LearnedFilter":
        """An empty filter with the same model, regions and rates, and room for so many keys in each region.

        ``region_keys`` are the keys that each region has; without them, keys are expected where they were planned.
        """
        before, deletions = self._region_rooms(), self._plan.deletions
        sizes = [max(FEW_KEYS, int(n)) for n in rooms]
        parts = []
        for part, _, _ in self._layout:
            old, new = sum(before), sum(sizes)
            if part.role != INITIAL and not self._is_shared:
                old, new = before[part.region], sizes[part.region]
            if part.role == DELETED:
                old, new = math.ceil(old * deletions), math.ceil(new * deletions)
            parts.append(replace(part, params=scaled_params(part.kind, part.params, old, new)))
        shares = [region.key_share for region in self._plan.regions]
        if region_keys is not None and any(region_keys):
            shares = [n / sum(region_keys) for n in region_keys]
        initial, members = predicted_rates(parts, [math.ceil(share * sum(sizes)) for share in shares])
        rates = initial * np.array(members)
        regions = self._plan.regions
        total = sum(sizes)
        n_bytes = {(part.role, part.region): part.nbytes for part in parts}
        head = self._head()
        plan = replace(
            self._plan,
            fpr=float(np.array([region.query_share for region in regions]) @ rates),
            bits_per_key=8 * composite_bytes(parts, self.model_bytes) / total,
            model_bits_per_key=8 * self.model_bytes / total,
            n_keys=total,
            initial_fpr=initial,
            initial_bytes=n_bytes.get((INITIAL, 0), 0),
            targets=self._plan.targets | {"headroom": 1.0},
            measured_fpr=None,
            regions=tuple(
                replace(
                    region,
                    key_share=shares[r],
                    n_keys=sizes[r],
                    n_bytes=n_bytes.get((MEMBER, r), 0),
                    fpr=members[r],
                    measured_fpr=None,
                )
                for r, region in enumerate(regions)
            ),
        )
        return self._assemble(
            parts, head[4 : 4 + head[0] - 1], self.model, head[2], plan, total,
            self.fpr_target or plan.fpr, self._secret,
        )  # fmt: skip

    # --- regions: what each holds and has room for

    @property
    def _is_shared(self) -> bool:
        return any(part.shares_with is not None for part, _, _ in self._layout)

    def _region_rooms(self) -> list[int]:
        """Keys that each region was planned for."""
        headroom = float(self._plan.targets.get("headroom") or 1.0)
        return [max(FEW_KEYS, math.ceil(region.n_keys * headroom)) for region in self._plan.regions]

    def _part_counts(self) -> list[int]:
        """Keys in each part, in the order of the parts; exact for tables, estimated for cells."""
        counts = []
        for number in range(len(self._layout)):
            inside = self._part_filter(number)
            counts.append(int(inside.approximate_count()))
            inside._detach()
        return counts

    def _region_counts(self) -> list[int]:
        """Keys in each region now; where nothing tells them apart, by the shares they were planned with."""
        regions = self._plan.regions
        counts: list[int | None] = [None] * len(regions)
        if not self._is_shared:
            for (part, _, _), n_keys in zip(self._layout, self._part_counts(), strict=True):
                if part.role == MEMBER:
                    counts[part.region] = n_keys
        rest = max(0, len(self) - sum(n for n in counts if n is not None))
        unknown = sum(region.key_share for region, n in zip(regions, counts, strict=True) if n is None)
        return [
            n if n is not None else round(rest * region.key_share / unknown) if unknown else 0
            for region, n in zip(regions, counts, strict=True)
        ]

    def _slack(self, share: float) -> int:
        """Keys that may come, wherever they fall, before any part holds more than ``share`` of its planned number."""
        least = int(share * (self.capacity or 0)) - len(self)
        if self._is_shared:
            return least
        rooms = self._region_rooms()
        for (part, _, _), n_keys in zip(self._layout, self._part_counts(), strict=True):
            if part.role == MEMBER:
                least = min(least, int(share * rooms[part.region]) - n_keys)
            elif part.role == DELETED and not part.row.growable:
                least = min(least, math.ceil(rooms[part.region] * self._plan.deletions) - n_keys)
        return least

    # --- opening

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        directory = bare_directory(params[3:])
        return check_count("payload_bytes", params[3], DIRECTORY.size if directory is None else 1, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        self._load(bare_directory(params[3:]))
        self._read_directory()
        self._check_parts()

    def _directory(self) -> bytes:
        """The directory: the start of the payload, or what stands for it in the header."""
        payload = self._payload()
        n_parts = int.from_bytes(payload[4:8], "little")
        return bare_directory(self._params[3:]) or bytes(payload[: DIRECTORY.size + PART.size * n_parts])

    def _head(self) -> tuple[int, ...]:
        """The fields of the directory before the parts."""
        return DIRECTORY.unpack_from(self._directory())

    def _read_directory(self) -> None:
        """What Python needs of the directory; the kernel has checked that it is sound."""
        payload = self._payload()
        directory = self._directory()
        head = DIRECTORY.unpack_from(directory)
        model_bytes, plan_at, n_plan_bytes = head[-4], head[-3], head[-2]
        try:
            self._plan = Explanation.from_dict(json.loads(bytes(payload[plan_at : plan_at + n_plan_bytes])))
            get_design(self._plan.design)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FormatError(f"the plan of a learned filter cannot be read ({error}); build it again") from None
        if len(self._plan.regions) != head[0]:
            raise FormatError(f"a plan of {len(self._plan.regions)} regions in a filter of {head[0]}; build it again")
        found: list[tuple[Part, int, int]] = []
        at: dict[int, int] = {}
        for number in range(head[1]):
            role, region, kind, _, offset, n_bytes, filter_id, *own = PART.unpack_from(
                directory, DIRECTORY.size + PART.size * number
            )
            found.append((Part(role, region, kind, filter_id, tuple(own), at.get(offset)), offset, n_bytes))
            at.setdefault(offset, number)
        self._layout = tuple(found)
        parts = [part for part, _, _ in found]
        bare = bare_directory(self._params[3:]) is not None
        self._n_bytes = parts[0].nbytes if bare else directed_bytes(parts, model_bytes)

    def _check_parts(self) -> None:
        """What a part follows (offsets in an exact set) is followed only after all of it has been looked at."""
        for number, (part, _, _) in enumerate(self._layout):
            if part.row.cls._check_part is Filter._check_part:
                continue  # nothing to check: do not open it for that
            probe = self._part_filter(number)
            try:
                probe._check_part()
            finally:
                probe._detach()

    def _part_bytes(self, kind: int, params: tuple[int, ...]) -> int:
        try:
            return part_bytes(kind, params)
        except ValueError as error:
            raise FormatError(f"impossible part of a learned filter: {error}") from None

    def _part_core(self, kind: int, params: tuple[int, ...]) -> tuple[Filter, bool, bool]:
        row = base_of_kind(kind)
        assert row is not None  # its size has been checked
        core = row.cls.__new__(row.cls)
        core._apply((0, 0, 0, *params[: len(row.cls.PARAMS)]))
        return core, row.deletable, row.fills

    def _part_filter(self, number: int, payload: memoryview | None = None) -> Any:
        """A filter of the part's class over its bytes, here or in the payload of an equal filter."""
        part, offset, n_bytes = self._layout[number]
        buffer = (self._payload() if payload is None else payload)[offset : offset + n_bytes]
        cls = part.row.cls
        params = (0, 0, part.filter_id, *part.params[: len(cls.PARAMS)])
        made = cls.__new__(cls)
        made._open(params, buffer, cls._items_in(buffer), self._secret)
        return made

    def _recovered_count(self) -> int:
        for part, _, _ in self._layout:
            if torn := part.row.cls._after_kill(part.params):
                raise ChecksumError(f"was being written and not closed; {torn}. Build it again")
        return self.approximate_count()

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
            head = self._head()
            params, at, n_bytes = head[20:31], head[31], head[32]
            self._model = Model(params, bytes(payload[at : at + n_bytes]))
        return self._model

    @property
    def bits_per_key(self) -> float:
        """Bits per key stored now, model included (the explanatory text in the file is not counted)."""
        return 8 * self.nbytes / len(self) if len(self) else math.nan

    @property
    def nbytes(self) -> int:
        """Bytes of model, filters and directory; the explanatory text in the file is not counted.

        Without a model, what the one base filter has.
        An open filter with a model of ``trees`` has up to 256 KiB besides (see ``Model.working_nbytes``).
        """
        return 0 if self.closed else self._n_bytes

    @property
    def model_bytes(self) -> int:
        """Bytes of the model, which ``nbytes`` counts too."""
        return 0 if self.closed else self._head()[-4]

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
        """Number of keys, estimated from the contents alone; less what the deleted sets hold."""
        total = float(self._unstored)
        for number, (part, _, _) in enumerate(self._layout):
            if part.role == INITIAL or part.shares_with is not None:
                continue
            inside = self._part_filter(number)
            n_keys = float(inside.approximate_count())
            inside._detach()
            if part.role == DELETED:
                # What is deleted from a region without a filter was taken off when it was deleted.
                total -= n_keys if self._plan.regions[part.region].base != "all" else 0
                continue
            sharers = [p for p, _, _ in self._layout if p.role == MEMBER]
            if any(p.shares_with is not None for p in sharers):
                # One array: its estimate is for one number of hashes, and keys of other regions have others.
                share = {p.region: self._plan.regions[p.region].key_share for p in sharers}
                hashes = sum(share[p.region] * p.params[1] for p in sharers) / max(1e-9, sum(share.values()))
                n_keys *= part.params[1] / max(1e-9, hashes)
            total += n_keys
        return max(0, round(total))

    @property
    def expected_fpr(self) -> float:
        """False-positive rate predicted for queries like the training negatives, at the planned number of keys."""
        return self._plan.fpr

    def _expected_rates(self, n_keys: int) -> tuple[float, float]:
        """The plan's false-positive rate and deletability, for ``n_keys`` spread over the regions as planned."""
        parts = [part for part, _, _ in self._layout]
        if self.false_negatives or any(part.role == DELETED or not part.row.forgets for part in parts):
            return self._plan.fpr, self._plan.deletability
        regions = self._plan.regions
        initial, members = predicted_rates(parts, [math.ceil(region.key_share * n_keys) for region in regions])
        passing = sum(region.query_share * rate for region, rate in zip(regions, members, strict=True))
        kept = sum(region.key_share * rate for region, rate in zip(regions, members, strict=True))
        return initial * passing, 1 - initial * kept

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
            Keys that are in the filter; they are removed from a copy to measure deletability and false negatives.  What
            is predicted beside it is for the keys that then remain: removing many at once makes each easier to forget.

        Returns
        -------
        Evaluation
            Rates with 99 % intervals; print it.
        """
        return evaluate(self, negatives, deleted)

    def _predicted_deletability(self, deleted: list[bytes]) -> float:
        """Share of these keys that will answer "absent" once all of them are removed."""
        parts = [part for part, _, _ in self._layout]
        told = any(part.role == DELETED for part in parts)
        if not deleted or told or not all(part.row.forgets for part in parts):
            return self._plan.deletability
        n_regions = len(self._plan.regions)
        gone = np.bincount(self._regions_many(deleted), minlength=n_regions)
        left = [
            max(0, round(region.key_share * len(self)) - int(n))
            for region, n in zip(self._plan.regions, gone, strict=True)
        ]
        initial, members = predicted_rates(parts, left)
        return 1 - float(gone @ (initial * np.array(members))) / len(deleted)

    # --- changing

    def _need_deletable(self) -> None:
        if not self.deletable:
            raise NotDeletableError(
                f"the design {self.design!r} cannot remove keys; fit with design='auto' or another deletable one"
            )

    def remove(self, key: Any) -> bool:
        """Remove one key; see ``dlbf.CountingBloomFilter.remove``.

        False means that the filter still answers "maybe": it kept nothing of the key that could be taken away.
        """
        self._need_deletable()
        return super().remove(key)

    def discard(self, key: Any) -> bool:
        """Like ``remove``, but False instead of KeyError."""
        self._need_deletable()
        return super().discard(key)

    def remove_many(self, keys: Iterable[Any]) -> Any:
        """``discard`` every key of a batch."""
        self._need_deletable()
        return super().remove_many(keys)

    def _refuse_key(self) -> None:
        raise ReinsertionError(
            f"the design {self.design!r} remembers deleted keys in a filter that cannot forget, and this key is (or "
            "collides with) one of them; use lbf-3cbf or auto where keys come back"
        )

    def _make_room(self, n_key_bytes: int) -> None:
        if self._file is None:
            self._lock()  # other threads may be changing keys at this moment
            try:
                grown = self._grow(n_key_bytes)
            finally:
                self._unlock()
            can_fill = [part.row for part, _, _ in self._layout if part.row.fills]
            # If only growing parts can be full, and all have room, another thread has made it meanwhile.
            if grown or (can_fill and all(row.growable for row in can_fill)):
                return
        raise FilterFullError(
            f"a region of this filter has no room for one more key ({len(self)} stored, planned for {self.capacity}); "
            "nothing was lost. Fit again with headroom= above 1, or on the present keys"
            + ("; or change a copy in memory, whose set of deleted keys grows" if self._file is not None else "")
        )

    def _grow(self, n_key_bytes: int) -> bool:
        """Move to a buffer where every part that grows has room for such a key; False if they all have already."""
        parts: list[Part] = []
        full = False
        for number, (part, _, _) in enumerate(self._layout):
            params = None
            if part.row.growable:
                inside = self._part_filter(number)
                params = inside._grown(n_key_bytes)
                inside._detach()
            full |= params is not None
            parts.append(part if params is None else replace(part, params=params + (0,) * (5 - len(params))))
        if not full:
            return False
        head = self._head()
        own, buffer = lay_out(parts, head[4 : 4 + head[0] - 1], self.model, head[2], self._plan.to_dict())
        params = (*self._params[:3], *own)
        other = type(self).__new__(type(self))
        other._open(params, buffer, 0, self._secret)
        self._pour(other)
        other._detach()
        self._adopt(buffer)
        self._params = params
        self._read_directory()
        return True

    # --- sets

    def _merge(self, other: "LearnedFilter", union: bool) -> bool:
        """Union of two filters of equal plans, part by part; False, and no change, if one does not fit."""
        if any(part.role == DELETED for part, _, _ in self._layout):
            raise ValueError("filters with deleted sets cannot be united: a key of one may be deleted in the other")
        theirs = other.copy()
        self._lock()
        try:
            mine = self._payload()
            merged = aligned_zeros(len(mine))
            merged[:] = mine
            for number, (part, _, _) in enumerate(self._layout):
                if part.shares_with is None:
                    target = self._part_filter(number, merged)
                    if not target._merge(theirs._part_filter(number), True):
                        return False
                    target._detach()
            unstored = self._unstored + theirs._unstored
            mine[:] = merged
            self._set_unstored(unstored)
            self._add_items(len(theirs))
        finally:
            self._unlock()
        return True

    def _differences(self, other: Filter) -> str:
        assert isinstance(other, LearnedFilter)
        parts = []
        if format.hash_identity(self._secret) != format.hash_identity(other._secret):
            parts.append("hash (different secrets, or only one has one)")
        if self.design != other.design:
            parts.append(f"design ({self.design} and {other.design})")
        elif self.model != other.model:
            parts.append("model")
        elif self._geometry() != other._geometry():
            parts.append("geometry (thresholds or sizes of the parts)")
        return ", ".join(parts)

    def _geometry(self) -> tuple[bytes, list[Part]]:
        """What two filters must have in common beside the model: thresholds and parts."""
        return self._directory()[:AT_MODEL_PARAMS], [part for part, _, _ in self._layout]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LearnedFilter):
            return NotImplemented
        if self._differences(other):
            return False
        mine, theirs = self.copy(), other.copy()  # each at one moment
        return len(mine) == len(theirs) and all(
            mine._payload()[at : at + n_bytes] == theirs._payload()[their_at : their_at + n_bytes]
            for (_, at, n_bytes), (_, their_at, _) in zip(mine._layout, theirs._layout, strict=True)
        )


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
