"""A shard of a learned filter: the tables of its keys, and nothing that other shards have too.

Model, thresholds, flags and plan are those of the *pattern*, an empty LearnedFilter that the shards share.  The payload
of a shard::

    offset  width   field (all little-endian)
         0      8   u64  keys that answer "maybe" without being stored anywhere
         8      n   for every part of the pattern, in its order, the five parameters of its kind, each as a LEB128
                    number (seven bits to a byte, the lowest first); then zeros up to a multiple of 8
                    and the parts one after the other, each padded to a multiple of 8
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from dlbf import format
from dlbf.errors import FilterFullError, FormatError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, aligned_zeros, check_count, secret_of
from dlbf.kernels.sharded import FILTER_ID
from dlbf.learned import LearnedFilter
from dlbf.learned.assembly import INITIAL, OWN_PARAMS, Part, directory_of, part_bytes, scaled_params
from dlbf.learned.composite import empty_composite, head_of, parts_of, pour, thresholds_of
from dlbf.learned.explanation import Explanation
from dlbf.models import Model
from dlbf.typenames import Memory

__all__ = ["LearnedShard", "empty_shard", "open_learned", "pattern_of", "planned_keys"]

N_PARAMS = 5


def pattern_of(composite: LearnedFilter, secret: bytes | None) -> LearnedFilter:
    """An empty filter with the model, regions and plan of ``composite``, and tables for hardly any key."""
    for part in parts_of(composite):
        if part.row.growable or part.shares_with is not None:
            raise ValueError(
                f"the design {composite.design!r} cannot be split into shards: its tables grow, or regions share one; "
                "use design='static', 'auto' or one with a table of its own in each region"
            )
    if head_of(composite)[2] & 1:
        raise ValueError(f"the design {composite.design!r} cannot be split into shards: its model sees the hash")
    small = [
        replace(part, params=_padded(scaled_params(part.kind, part.params, planned, 1)))
        for part, planned in zip(parts_of(composite), planned_keys(composite), strict=True)
    ]
    return empty_composite(
        LearnedFilter, small, thresholds_of(composite), composite.model, head_of(composite)[2], composite.plan, 1,
        composite.fpr_target or composite.plan.fpr, secret, FILTER_ID,
    )  # fmt: skip


def planned_keys(composite: LearnedFilter) -> list[int]:
    """For how many keys each part was planned."""
    plan = composite.plan
    total = sum(region.n_keys for region in plan.regions)
    return [total if part.role == INITIAL else plan.regions[part.region].n_keys for part in parts_of(composite)]


def _padded(params: Sequence[int]) -> tuple[int, ...]:
    return (*params, *(0,) * (N_PARAMS - len(params)))


class LearnedShard(LearnedFilter):
    """One shard, over a payload as drawn above.  Copied, pickled and saved it is a LearnedFilter, with the model."""

    __hash__ = None

    _pattern: LearnedFilter

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        if any(params[4:]):
            raise ValueError("unknown parameters of a shard")
        return check_count("payload_bytes", params[3], 8, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        self._load(self._directory(), self._pattern, self._head_bytes())
        self._read_directory()
        self._check_parts()

    def _read_parts(self) -> tuple[list[Part], int]:
        """The parts, and how many bytes stand before the first."""
        # What is followed is checked first: a shard is small enough to be checked as a whole.
        payload = self._payload()
        parts, at = [], 8
        for part in parts_of(self._pattern):
            own, at = _read_params(payload, at)
            parts.append(replace(part, params=own))
        return parts, -(-at // 8) * 8

    def _head_bytes(self) -> int:
        return self._read_parts()[1]

    def _directory(self) -> bytes:
        """The directory that a filter with these parts has, which is not in the payload."""
        parts, at = self._read_parts()
        offsets = []
        for part in parts:
            try:
                n_bytes = part_bytes(part.kind, part.params)
            except ValueError as error:
                raise FormatError(f"impossible part of a shard: {error}") from None
            offsets.append(at)
            at += -(-n_bytes // 8) * 8
        if at != self.n_payload_bytes:
            raise FormatError(f"a shard of {self.n_payload_bytes} bytes whose parts need {at}; build it again")
        pattern = self._pattern
        return directory_of(parts, offsets, thresholds_of(pattern), pattern.model, head_of(pattern)[2], 0, 0, 0)

    def _read_plan(self, head: tuple[int, ...]) -> Explanation:
        return self._pattern.plan

    @property
    def nbytes(self) -> int:
        """Bytes of the tables and of their directory."""
        return 0 if self.closed else int(self.n_payload_bytes)

    @property
    def model(self) -> Model:
        """The compiled model, which the shards share."""
        return self._pattern.model

    @property
    def model_bytes(self) -> int:
        """Zero: the model is not this shard's own."""
        return 0

    def _make_room(self, n_key_bytes: int) -> None:
        raise FilterFullError(
            f"no room for one more key after {len(self)}; nothing was lost. Build this shard anew from its keys, with "
            "headroom"
        )

    def begin(
        self, pattern: LearnedFilter, params: tuple[int, ...], payload: Memory, n_items: int, secret: bytes | None
    ) -> Self:
        """Work on ``payload``."""
        self._pattern = pattern
        self._open(params, payload, n_items, secret)
        return self

    def recount(self) -> None:
        """Take the number of keys from the contents, where a killed process has left the header out of date."""
        self._set_items(self._recovered_count())

    # --- alone, with everything that it shares

    def standalone(self) -> LearnedFilter:
        """A LearnedFilter with the same keys, in memory.  It answers for keys of this shard only."""
        pattern = self._pattern
        made = empty_composite(
            LearnedFilter, parts_of(self), thresholds_of(pattern), pattern.model, head_of(pattern)[2], pattern.plan,
            self._params[0], self.fpr_target or pattern.plan.fpr, secret_of(self), FILTER_ID,
        )  # fmt: skip
        pour(self, made)
        return made

    def copy(self) -> LearnedFilter:  # type: ignore[override]
        """The same as ``standalone``."""
        return self.standalone()

    __copy__ = copy  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        """Those of ``standalone()``."""
        return self.standalone().to_bytes()

    def __reduce__(self) -> tuple[object, ...]:
        return self.standalone().__reduce__()


def _read_params(payload: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    """The five parameters of a part, and where the next ones begin."""
    params = []
    for _ in range(N_PARAMS):
        value = shift = 0
        while True:
            if at >= len(payload) or shift > 56:
                raise FormatError("the parameters of a shard make no sense; build it again")
            byte = payload[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        params.append(value)
    return tuple(params), at


def _params_bytes(parts: Sequence[Part]) -> bytes:
    out = bytearray()
    for part in parts:
        for value in _padded(part.params):
            while value > 127:
                out.append(value & 127 | 128)
                value >>= 7
            out.append(value)
    return bytes(out)


def empty_shard(
    pattern: LearnedFilter, params: Sequence[tuple[int, ...]], capacity: int, secret: bytes | None
) -> LearnedShard:
    """A shard in memory whose parts have these parameters, without keys."""
    parts = [replace(part, params=_padded(own)) for part, own in zip(parts_of(pattern), params, strict=True)]
    head = bytes(8) + _params_bytes(parts)
    head = head.ljust(-(-len(head) // 8) * 8, b"\0")
    payload = aligned_zeros(len(head) + sum(-(-part_bytes(part.kind, part.params) // 8) * 8 for part in parts))
    memoryview(payload)[: len(head)] = head
    rate = format.float_to_param(pattern.fpr_target or 0.0)
    own = (len(payload), *(0,) * (len(OWN_PARAMS) - 1))
    return LearnedShard.__new__(LearnedShard).begin(pattern, (capacity, rate, FILTER_ID, *own), payload, 0, secret)


def open_learned(
    pattern: LearnedFilter, header: format.Header, payload: Memory, secret: bytes | None, where: str, recover: bool
) -> LearnedShard:
    """The shard that has this header and payload, which were compared with their sums."""
    secret = format.fitting_secret(header, secret)
    params = header.params[: 3 + len(OWN_PARAMS)]
    if params[3] != header.n_payload_bytes or params[2] != FILTER_ID or any(params[4:]):
        raise FormatError(f"{where}: parameters of another filter; build it again")
    shard = LearnedShard.__new__(LearnedShard).begin(pattern, params, payload, header.n_items, secret)
    if recover:
        shard.recount()
    return shard
