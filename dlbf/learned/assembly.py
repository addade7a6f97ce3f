"""Putting a composite together: from a plan, a model and counts of keys to one flat buffer.

The layout of the buffer is drawn in ``dlbf/kernels/composite.pxd``; this module writes it, the kernel reads it.
"""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.filters.base import aligned_zeros
from dlbf.filters.kinds import BASES, base_of_kind
from dlbf.filters.row import Base
from dlbf.models import Model, no_model
from dlbf.models.kinds import ROWS
from dlbf.theory import Design, FilterPlan, Plan, get_design

__all__ = [
    "OWN_PARAMS",
    "Part",
    "assemble",
    "bare_directory",
    "build_parts",
    "composite_bytes",
    "directed_bytes",
    "directory_of",
    "is_bare",
    "lay_out",
    "part_bytes",
    "part_fpr",
    "scaled_params",
]

DIRECTORY = struct.Struct("<IIII16i11QQQQQQ")
PART = struct.Struct("<IIIIQQQ5Q")
ALIGN = 64
AT_MODEL_PARAMS = 80
N_PART_PARAMS = 5
# What a composite has in the header beside the parameters of every filter; all but the first are for one base filter
# and nothing else, which has no directory.
OWN_PARAMS = ("payload_bytes", "plan_bytes", "flags", "part_kind", *(f"part_{n}" for n in range(1, N_PART_PARAMS + 1)))

INITIAL, MEMBER, DELETED = 0, 1, 2
FLAG_HIDES_SCORE, FLAG_OWN_KEYS = 1, 2

# A key meets at most one filter of each role, so only the roles must see different hashes; members, which every query
# asks, see the hash as it is.  With a secret these numbers are not used: every part has a key of its own.
MEMBER_ID, INITIAL_ID, DELETED_ID = 0, 1, 2

# Smaller rates cost bits that nobody could ever see the use of, and tables do not reach them.
LEAST_RATE = 4e-6
# A region that has no keys yet still gets a filter, for the few that may come.
FEW_KEYS = 16


@dataclass(frozen=True)
class Part:
    """One base filter of a composite."""

    role: int
    region: int
    kind: int
    filter_id: int
    params: tuple[int, ...]
    shares_with: int | None = None  # number of the part whose bytes it uses

    @property
    def row(self) -> Base:
        """What there is to know of its kind."""
        return _row(self.kind)

    @property
    def base(self) -> str:
        """The name the designs use."""
        return self.row.name

    @property
    def nbytes(self) -> int:
        """Bytes of its own."""
        return 0 if self.shares_with is not None else part_bytes(self.kind, self.params)


def _row(kind: int) -> Base:
    row = base_of_kind(kind)
    if row is None:
        raise ValueError(f"unknown kind of part {kind}")
    return row


def part_bytes(kind: int, params: Sequence[int]) -> int:
    """Bytes of a part; ValueError for parameters that make no sense."""
    cls = _row(kind).cls
    n = len(cls.PARAMS)
    if any(params[n:]):
        raise ValueError(f"unknown parameters of a {cls.__name__}")
    return cls._payload_bytes((0, 0, 0, *params[:n]))


def part_fpr(kind: int, params: tuple[int, ...], n_keys: int) -> float:
    """False-positive rate of a part that holds ``n_keys``."""
    return _row(kind).rate(n_keys, params)


def part_params(plan: FilterPlan, n_keys: int, counter_bits: int) -> tuple[int, ...] | None:
    """The geometry of one planned filter for ``n_keys`` keys; None where everything passes."""
    if plan.base == "all" or plan.fpr >= 0.9999:
        return None
    if plan.hashes is None and plan.fpr < LEAST_RATE:
        plan = replace(plan, fpr=LEAST_RATE)
    if plan.base not in BASES:
        raise ValueError(f"no base filter called {plan.base!r}")
    return BASES[plan.base].geometry(max(1, n_keys), plan, counter_bits)


def scaled_params(kind: int, params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    """The geometry of a part for ``n_keys`` at the rate that ``params`` have with ``n_before``."""
    return _row(kind).scaled(params, max(1, n_before), max(1, n_keys))


def _usual_base(design: Design) -> str:
    """What the design stores members in, where it stores them."""
    base = design.member[0]
    return base if base not in ("chosen", "all") else "cuckoo"


def build_parts(plan: Plan, key_counts: Sequence[int], headroom: float) -> list[Part]:
    """The parts that a plan asks for, sized for the keys of each region times ``headroom``."""
    design = get_design(plan.design)
    parts: list[Part] = []
    capacities = [math.ceil(count * headroom) for count in key_counts]
    total = sum(capacities)

    def put(role: int, region: int, filter_id: int, planned: FilterPlan, n_keys: int) -> None:
        if planned.fpr <= 0 and planned.base != "exact":
            base = planned.base if planned.base != "all" else _usual_base(design)
            planned, n_keys = FilterPlan(base, 0.01, 0.0), max(n_keys, FEW_KEYS)
        params = part_params(planned, n_keys, plan.counter_bits)
        if params is not None:
            parts.append(Part(role, region, BASES[planned.base].number, filter_id, params))

    if plan.initial is not None:
        put(INITIAL, 0, INITIAL_ID, plan.initial, total)
    if plan.shared:
        base = next((region.member.base for region in plan.regions if region.member.hashes), "bits")
        cell_bits = 1 if base == "bits" else plan.counter_bits
        n_cells = max(64, math.ceil(plan.filter_bits * total / cell_bits / 64) * 64)
        kind = BASES[base].number
        first = None
        for number, region in enumerate(plan.regions):
            if region.member.hashes:
                params = (n_cells, region.member.hashes, 0, cell_bits)
                parts.append(Part(MEMBER, number, kind, MEMBER_ID, params, first))
                first = len(parts) - 1 if first is None else first
        return parts
    for number, region in enumerate(plan.regions):
        put(MEMBER, number, MEMBER_ID, region.member, capacities[number])
        if region.deleted is not None:
            gone = math.ceil(capacities[number] * plan.deletions)
            put(DELETED, number, DELETED_ID, region.deleted, gone)
    return parts


def is_bare(parts: Sequence[Part], model_bytes: int) -> bool:
    """Whether the composite is one base filter and nothing else, which is laid out without a directory."""
    return len(parts) == 1 and parts[0].role == MEMBER and not parts[0].row.growable and not model_bytes


def composite_bytes(parts: Sequence[Part], model_bytes: int) -> int:
    """Bytes of what ``lay_out`` makes, without its explanatory text."""
    return parts[0].nbytes if is_bare(parts, model_bytes) else directed_bytes(parts, model_bytes)


def directed_bytes(parts: Sequence[Part], model_bytes: int) -> int:
    """Bytes of a composite with a directory, without its explanatory text."""
    return sum(_rounded(n) for n in (DIRECTORY.size + PART.size * len(parts), model_bytes, *(p.nbytes for p in parts)))


def _rounded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN


def lay_out(
    parts: Sequence[Part], thresholds: Sequence[int], model: Model, flags: int, explanation: dict[str, object]
) -> tuple[tuple[int, ...], npt.NDArray[np.uint8]]:
    """An empty composite: its own parameters (``OWN_PARAMS``) and its payload."""
    if is_bare(parts, model.nbytes):
        text = _text(explanation)
        part = parts[0]
        payload = aligned_zeros(part.nbytes + len(text))
        memoryview(payload)[part.nbytes :] = text
        own = part.params + (0,) * (N_PART_PARAMS - len(part.params))
        return (len(payload), len(text), flags, part.kind, *own), payload
    payload = assemble(parts, thresholds, model, flags, explanation)
    return (len(payload), *(0,) * (len(OWN_PARAMS) - 1)), payload


def bare_directory(own: tuple[int, ...]) -> bytes | None:
    """The directory that the parameters of a composite stand for; None if it is in the payload.

    Raises
    ------
    ValueError
        For parameters that make no sense.
    """
    if not any(own[1:]):
        return None
    n_payload_bytes, n_text_bytes, flags, kind, *params = own
    if _row(kind).growable or flags > FLAG_HIDES_SCORE | FLAG_OWN_KEYS:
        raise ValueError(f"a part of kind {kind} with flags {flags:#x}")
    n_bytes = part_bytes(kind, params)
    if n_bytes + n_text_bytes != n_payload_bytes:
        raise ValueError(f"{n_payload_bytes} bytes for a part of {n_bytes} and a text of {n_text_bytes}")
    part = Part(MEMBER, 0, kind, MEMBER_ID, tuple(params))
    return directory_of([part], [0], [], no_model(), flags, 0, n_bytes, n_text_bytes)


def _text(explanation: dict[str, object]) -> bytes:
    return json.dumps(explanation, separators=(",", ":"), allow_nan=False).encode()


def directory_of(
    parts: Sequence[Part],
    offsets: Sequence[int],
    thresholds: Sequence[int],
    model: Model,
    flags: int,
    model_at: int,
    text_at: int,
    n_text_bytes: int,
) -> bytes:
    """The directory of a composite with these parts at these offsets."""
    head = DIRECTORY.pack(
        len(thresholds) + 1,
        len(parts),
        flags,
        0,
        *thresholds,
        *(0,) * (16 - len(thresholds)),
        *model.params,
        ROWS[model.kind].number,
        model_at,
        len(model.payload),
        text_at,
        n_text_bytes,
        0,
    )
    return head + b"".join(
        PART.pack(
            part.role, part.region, part.kind, 0, offset, part_bytes(part.kind, part.params), part.filter_id,
            *part.params, *(0,) * (N_PART_PARAMS - len(part.params)),
        )
        for part, offset in zip(parts, offsets, strict=True)
    )  # fmt: skip


def assemble(
    parts: Sequence[Part], thresholds: Sequence[int], model: Model, flags: int, explanation: dict[str, object]
) -> Any:
    """The payload of an empty composite with a directory: that, model, parts of zeros, and plan."""
    text = _text(explanation)
    model_payload = bytes(model.payload)
    at = DIRECTORY.size + PART.size * len(parts)

    def place(n_bytes: int) -> int:
        nonlocal at
        start = _rounded(at)
        at = start + n_bytes
        return start

    model_at = place(len(model_payload))
    offsets: list[int] = []
    for part in parts:
        shared = part.shares_with
        offsets.append(place(part.nbytes) if shared is None else offsets[shared])
    text_at = place(len(text))
    buffer = aligned_zeros(-(-at // 8) * 8 + 8)
    payload = memoryview(buffer)
    directory = directory_of(parts, offsets, thresholds, model, flags, model_at, text_at, len(text))
    payload[: len(directory)] = directory
    payload[model_at : model_at + len(model_payload)] = model_payload
    payload[text_at : text_at + len(text)] = text
    return buffer
