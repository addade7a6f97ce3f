"""The composite as a set-like, deletable, savable filter: a model, and base filters in one buffer."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import (
    ChecksumError,
    FilterFullError,
    FormatError,
    NotDeletableError,
    ReinsertionError,
    StaticFilterError,
)
from dlbf.filters.base import (
    MAX_PAYLOAD_BYTES,
    Filter,
    aligned_zeros,
    check_count,
    detach,
    open_over,
    secret_of,
)
from dlbf.filters.kinds import base_of_kind
from dlbf.filters.part import after_kill, check_part, grown_params, needs_check
from dlbf.kernels.composite import CompositeCore
from dlbf.learned.assembly import (
    AT_MODEL_PARAMS,
    DELETED,
    DIRECTORY,
    FLAG_OWN_KEYS,
    INITIAL,
    MEMBER,
    OWN_PARAMS,
    PART,
    Part,
    bare_directory,
    directed_bytes,
    lay_out,
    part_bytes,
)
from dlbf.learned.explanation import Explanation
from dlbf.models import Model
from dlbf.theory import get_design
from dlbf.typenames import Key, Keys

__all__ = ["Composite", "empty_composite", "empty_like", "open_part", "part_filter", "parts_of", "with_plan"]


class Composite(CompositeCore, Filter):
    """Everything of ``dlbf.LearnedFilter`` but how it is fitted and measured."""

    KIND = format.KIND_LEARNED
    PARAMS = OWN_PARAMS

    __hash__ = None

    _plan: Explanation
    _model: Model | None = None
    _layout: tuple[tuple[Part, int, int], ...] = ()  # parts with their offsets and sizes in bytes

    def __init__(self) -> None:
        raise TypeError("make a LearnedFilter with LearnedFilter.fit(keys, negatives, fpr=0.01)")

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
        directory = self._directory()
        head = DIRECTORY.unpack_from(directory)
        self._plan = self._read_plan(head)
        if len(self._plan.regions) != head[0]:
            raise FormatError(f"a plan of {len(self._plan.regions)} regions in a filter of {head[0]}; build it again")
        layout: list[tuple[Part, int, int]] = []
        at: dict[int, int] = {}
        for number in range(head[1]):
            role, region, kind, _, offset, n_bytes, filter_id, *own = PART.unpack_from(
                directory, DIRECTORY.size + PART.size * number
            )
            layout.append((Part(role, region, kind, filter_id, tuple(own), at.get(offset)), offset, n_bytes))
            at.setdefault(offset, number)
        self._layout = tuple(layout)

    def _read_plan(self, head: tuple[int, ...]) -> Explanation:
        plan_at, n_plan_bytes = head[-3], head[-2]
        try:
            plan = Explanation.from_dict(json.loads(bytes(self._payload()[plan_at : plan_at + n_plan_bytes])))
            get_design(plan.design)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FormatError(f"the plan of a learned filter cannot be read ({error}); build it again") from None
        return plan

    def _check_parts(self) -> None:
        """What a part follows (offsets in an exact set) is followed only after all of it has been looked at."""
        for number, (part, _, _) in enumerate(self._layout):
            if needs_check(part.row.cls):
                with open_part(self, number) as inside:
                    check_part(inside)

    def _part_bytes(self, kind: int, params: tuple[int, ...]) -> int:
        try:
            return part_bytes(kind, params)
        except ValueError as error:
            raise FormatError(f"impossible part of a learned filter: {error}") from None

    def _part_core(self, kind: int, params: tuple[int, ...]) -> tuple[Filter, bool, bool, bool]:
        row = base_of_kind(kind)
        assert row is not None  # its size has been checked
        core = row.cls.__new__(row.cls)
        core._apply((0, 0, 0, *params[: len(row.cls.PARAMS)]))
        return core, row.deletable, row.fills, row.static

    def _part_filter(self, number: int, payload: memoryview | None = None) -> Filter:
        """A filter of the part's class over its bytes, here or in the payload of an equal filter."""
        part, offset, n_bytes = self._layout[number]
        buffer = (self._payload() if payload is None else payload)[offset : offset + n_bytes]
        cls = part.row.cls
        params = (0, 0, part.filter_id, *part.params[: len(cls.PARAMS)])
        return open_over(cls, params, buffer, cls._items_in(buffer), self._secret)

    def _recovered_count(self) -> int:
        for part, _, _ in self._layout:
            if torn := after_kill(part.row.cls, part.params):
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
        if self.closed:
            return 0
        parts = parts_of(self)
        bare = bare_directory(self._params[3:]) is not None
        return parts[0].nbytes if bare else directed_bytes(parts, self._head()[-4])

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
            with open_part(self, number) as inside:
                n_keys = float(inside.approximate_count())
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

    def region_of(self, keys: Keys) -> npt.NDArray[np.uint8]:
        """The score region of each key, as a numpy array."""
        return self._regions_many(keys)

    # --- changing

    def _need_deletable(self) -> None:
        if not self.deletable:
            raise NotDeletableError(
                f"the design {self.design!r} cannot remove keys; fit with design='auto' or another deletable one"
            )

    def remove(self, key: Key) -> bool:
        """Remove one key; see ``dlbf.CountingBloomFilter.remove``.

        False means that the filter still answers "maybe": it kept nothing of the key that could be taken away.
        """
        self._need_deletable()
        return super().remove(key)

    def discard(self, key: Key) -> bool:
        """Like ``remove``, but False instead of KeyError."""
        self._need_deletable()
        return super().discard(key)

    def remove_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """``discard`` every key of a batch."""
        self._need_deletable()
        return super().remove_many(keys)

    @property
    def is_static(self) -> bool:
        """Whether it was built once from all keys, so that none can be added."""
        return any(part.row.static for part, _, _ in self._layout)

    def _need_changeable(self) -> None:
        if self.is_static:
            raise StaticFilterError(
                f"the design {self.design!r} is built once, from all keys, and cannot be changed; fit another one, or "
                "use design='auto' where keys come and go"
            )

    def clear(self) -> None:
        """Forget every key; model, plan and size stay."""
        if self.is_writable:
            self._need_changeable()
        super().clear()

    def _refuse_key(self) -> None:
        self._need_changeable()
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
                with open_part(self, number) as inside:
                    params = grown_params(inside, n_key_bytes)
            full |= params is not None
            parts.append(part if params is None else replace(part, params=params + (0,) * (5 - len(params))))
        if not full:
            return False
        head = self._head()
        own, buffer = lay_out(parts, head[4 : 4 + head[0] - 1], self.model, head[2], self._plan.to_dict())
        params = (*self._params[:3], *own)
        other = open_over(type(self), params, buffer, 0, self._secret)
        pour(self, other)
        detach(other)
        self._adopt(buffer)
        self._params = params
        self._read_directory()
        return True

    # --- sets

    def _merge(self, other: "Composite", union: bool) -> bool:
        """Union of two filters of equal plans, part by part; False, and no change, if one does not fit."""
        self._need_changeable()
        if any(part.role == DELETED for part, _, _ in self._layout):
            raise ValueError("filters with deleted sets cannot be united: a key of one may be deleted in the other")
        theirs: Composite = other.copy()
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
                    detach(target)
            unstored = self._unstored + _unstored(theirs)
            mine[:] = merged
            self._set_unstored(unstored)
            self._add_items(len(theirs))
        finally:
            self._unlock()
        return True

    def _differences(self, other: Filter) -> str:
        assert isinstance(other, Composite)
        parts = []
        if format.hash_identity(self._secret) != format.hash_identity(secret_of(other)):
            parts.append("hash (different secrets, or only one has one)")
        if self.design != other.design:
            parts.append(f"design ({self.design} and {other.design})")
        elif self.model != other.model:
            parts.append("model")
        elif _geometry(self) != _geometry(other):
            parts.append("geometry (thresholds or sizes of the parts)")
        return ", ".join(parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite):
            return NotImplemented
        if self._differences(other):
            return False
        mine, theirs = self.copy(), other.copy()  # each at one moment
        return len(mine) == len(theirs) and all(
            ours == others for ours, others in zip(mine._part_payloads(), theirs._part_payloads(), strict=True)
        )

    def _part_payloads(self) -> Iterator[memoryview]:
        """The bytes of each part."""
        payload = self._payload()
        return (payload[at : at + n_bytes] for _, at, n_bytes in self._layout)


# --- for the rest of the library: what its users have no use for

C = TypeVar("C", bound=Composite)


def _geometry(composite: Composite) -> tuple[bytes, list[Part]]:
    """What two filters must have in common beside the model: thresholds and parts."""
    return composite._directory()[:AT_MODEL_PARAMS], parts_of(composite)


def _unstored(composite: Composite) -> int:
    """Keys held by no filter because their region lets everything pass."""
    return composite._unstored


def empty_composite(
    cls: type[C],
    parts: Sequence[Part],
    thresholds: Sequence[int],
    model: Model,
    flags: int,
    plan: Explanation,
    capacity: int,
    fpr: float,
    secret: bytes | None,
    filter_id: int = 0,
) -> C:
    """An empty filter with these parts; the flags are those of the directory."""
    own, payload = lay_out(parts, thresholds, model, flags, plan.to_dict())
    made = open_over(cls, (capacity, format.float_to_param(fpr), filter_id, *own), payload, 0, secret)
    made._model = model
    return made


def empty_like(composite: C, parts: Sequence[Part], plan: Explanation, capacity: int, keep_keys: bool = True) -> C:
    """An empty filter with these parts and that plan; model, thresholds, flags and secret are the same.

    Without ``keep_keys`` every part sees the key's hash under its own number, not under a key of its own.
    """
    head = composite._head()
    flags = head[2] if keep_keys else head[2] & ~FLAG_OWN_KEYS
    return empty_composite(
        type(composite), parts, thresholds_of(composite), composite.model, flags, plan, capacity,
        composite.fpr_target or plan.fpr, secret_of(composite),
    )  # fmt: skip


def with_plan(composite: C, plan: Explanation) -> C:
    """The same filter with another plan in it (its text has another length, so the parts move)."""
    made = empty_like(composite, parts_of(composite), plan, composite._params[0])
    pour(composite, made)
    return made


def head_of(composite: Composite) -> tuple[int, ...]:
    """The fields of the directory before the parts; see ``DIRECTORY`` of ``dlbf.learned.assembly``."""
    return composite._head()


def thresholds_of(composite: Composite) -> tuple[int, ...]:
    """The scores at which regions begin, the lowest region's left out."""
    head = composite._head()
    return head[4 : 4 + head[0] - 1]


def pour(source: Composite, target: Composite) -> None:
    """Copy all contents to an empty filter with the same parts, its exact sets perhaps larger."""
    source._pour(target)


def member_id(composite: Composite, region: int) -> int:
    """The filter id with which the hashes of a region's keys are mixed."""
    return composite._member_id(region)


def fill_parts(composite: Composite) -> list[memoryview]:
    """The bytes of each part, to be written by whoever alone has the filter."""
    return list(composite._part_payloads())


def set_counts(composite: Composite, n_keys: int, n_unstored: int) -> None:
    """Say how many keys a filter has whose parts were written, and how many of them no part holds."""
    composite._set_items(n_keys)
    composite._set_unstored(n_unstored)


def parts_of(composite: Composite) -> list[Part]:
    """The base filters, in the order of the directory."""
    return [part for part, _, _ in composite._layout]


def part_filter(composite: Composite, number: int) -> Filter:
    """A filter over the bytes of one part; ``detach`` it when it is no longer needed."""
    return composite._part_filter(number)


@contextmanager
def open_part(composite: Composite, number: int) -> Iterator[Filter]:
    """A filter over the bytes of one part, for as long as the ``with`` lasts."""
    inside = part_filter(composite, number)
    try:
        yield inside
    finally:
        detach(inside)
