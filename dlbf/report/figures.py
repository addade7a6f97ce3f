"""Everything that a report says, as typed figures: measuring returns them, the page shows them, JSON carries them."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from dlbf.plain import plain_data
from dlbf.theory import Trade

__all__ = [
    "Built",
    "Curve",
    "DesignRow",
    "EqualForgetting",
    "Figures",
    "InputFigures",
    "KeyFigures",
    "MeasuredRate",
    "NegativeFigures",
    "PeerRow",
    "PlainFigures",
    "Point",
    "PriceCurve",
    "ReadPath",
    "Recommendation",
    "RegionFigures",
    "Scores",
    "StepTimes",
    "TargetFigures",
    "Tradeoff",
]

# What is asked for (a rate, or a share of removed keys), and the bits per key it takes.
Point = tuple[float, float]


@dataclass(frozen=True)
class TargetFigures:
    """What was asked for; of the secret only whether there is one."""

    fpr: float
    deletability: float
    adversarial_fpr: float
    keyed: bool
    seed: int


@dataclass(frozen=True)
class KeyFigures:
    """Where the keys came from, and what was in there."""

    name: str
    is_store: bool
    lines: int
    used: int
    sampled: bool
    duplicates: int
    n_keys: int  # to be stored; estimated if they were sampled
    mean_bytes: float


@dataclass(frozen=True)
class NegativeFigures:
    """Where the absent keys came from, and what was in there."""

    name: str
    is_store: bool
    lines: int
    used: int
    sampled: bool
    overlapping: int
    repeated: int
    learnt: int
    unseen: int


@dataclass(frozen=True)
class InputFigures:
    """What the report was made from."""

    keys: KeyFigures
    negatives: NegativeFigures
    built_keys: int  # keys that every design was built for
    asked_absent: int
    asked_made_up: bool  # the absent keys asked for are nobody's requests


@dataclass(frozen=True)
class MeasuredRate:
    """A share that was counted, with its 99 % interval."""

    value: float
    interval_99: tuple[float, float]
    hits: int
    trials: int


@dataclass(frozen=True)
class Built:
    """A filter that was built and asked, its size scaled to all keys."""

    uses_model: bool
    bits_per_key: float
    bytes: int
    fpr_predicted: float
    fpr_measured: MeasuredRate | None
    fnr_predicted: float
    deletability: float | None  # None: it cannot remove
    deletability_measured: MeasuredRate | None
    adversarial_fpr: float

    @property
    def fpr(self) -> float:
        """False-positive rate: measured if it was, else predicted."""
        return self.fpr_predicted if self.fpr_measured is None else self.fpr_measured.value

    @property
    def forgotten(self) -> float | None:
        """Share of removed keys that it then says "no" to: measured if it was; None if it cannot remove."""
        if self.deletability is None:
            return None
        measured = self.deletability_measured
        return float(self.deletability if measured is None else measured.value)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Built":
        """The inverse of ``asdict``."""
        rates = {name: _rate(data[name]) for name in ("fpr_measured", "deletability_measured")}
        return cls(**data | rates)


@dataclass(frozen=True)
class DesignRow:
    """One design, and what became of it; in JSON the figures of ``built`` stand beside the others."""

    design: str
    summary: str
    learned: bool
    deletable: bool
    can_lose_keys: bool
    keyed: bool
    reason: str | None = None  # why it cannot be built
    built: Built | None = None

    @property
    def feasible(self) -> bool:
        """Whether it meets the targets."""
        return self.reason is None

    def to_dict(self) -> dict[str, object]:
        """As JSON has it: only what there is."""
        data = asdict(self)
        reason, built = data.pop("reason"), data.pop("built")
        return data | {"feasible": self.feasible} | ({} if reason is None else {"reason": reason}) | (built or {})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "DesignRow":
        """The inverse of ``to_dict``."""
        names = ("design", "summary", "learned", "deletable", "can_lose_keys", "keyed", "reason")
        own = {name: data[name] for name in names if name in data}
        built = {name: value for name, value in data.items() if name not in (*names, "feasible")}
        return cls(**own, built=Built.from_dict(built) if built else None)


@dataclass(frozen=True)
class PeerRow:
    """A filter of another library; what is None is not in the JSON."""

    name: str
    deletable: bool
    version: str | None = None
    bits_per_key: float | None = None
    fpr_measured: MeasuredRate | None = None
    missing: str | None = None  # why it was not measured

    def to_dict(self) -> dict[str, object]:
        """As JSON has it: only what there is."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PeerRow":
        """The inverse of ``to_dict``."""
        return cls(**data | {"fpr_measured": _rate(data.get("fpr_measured"))})


@dataclass(frozen=True)
class Curve:
    """Bits per key against the false-positive rate, of all filters for which it is the same."""

    names: list[str]
    kind: str  # design, textbook, bound
    deletable: bool
    learned: bool
    points: list[Point]


@dataclass(frozen=True)
class PriceCurve:
    """Bits per key against the share of removed keys that are forgotten, at one false-positive rate."""

    fpr: float
    points: list[Point]


@dataclass(frozen=True)
class Tradeoff:
    """What more forgetting, and what more resistance to forged keys, would cost."""

    deletability: list[PriceCurve]
    forged: list[Point]
    worst_case: list[Trade]


@dataclass(frozen=True)
class EqualForgetting:
    """What a model saves if removed keys must be forgotten as well as without one."""

    deletability: float
    bits_per_key: float
    plain_bits_per_key: float
    saved_share: float


@dataclass(frozen=True)
class Scores:
    """Histograms of the scores of keys and of absent keys, with the borders of the regions."""

    edges: list[int]
    keys: list[float]
    absent: list[float]
    overlap: float
    borders: list[int]
    for_comparison_only: bool  # the recommendation is to do without this model
    model: str


@dataclass(frozen=True)
class RegionFigures:
    """One range of scores of the recommended filter."""

    score_from: int | None  # None: no bound
    key_share: float
    query_share: float
    filter: str
    bits_per_key: float
    share_of_bytes: float
    fpr_predicted: float
    fpr_measured: float | None
    example_keys: list[str]
    example_absent: list[str]


@dataclass(frozen=True)
class StepTimes:
    """Nanoseconds per key of each step of a read.

    ``hash_ns``, ``model_ns`` and ``filter_ns`` are those of a batch; ``call_ns`` is what reading the key and one call
    from Python add; together they are ``learned_ns``.
    """

    asked_keys: int
    stored_keys: int
    mean_key_bytes: float
    rounds: int
    hash_ns: float
    model_ns: float
    filter_ns: float
    call_ns: float
    learned_ns: float
    learned_batch_ns: float
    plain_ns: float
    lmdb_miss_ns: float
    lmdb_hit_ns: float
    learned_hit_ns: float


@dataclass(frozen=True)
class ReadPath:
    """What the steps add up to for a request, in memory and on a disk; in JSON the steps stand before the sums."""

    steps: StepTimes
    fpr: float
    plain_fpr: float
    learned: bool
    absent_ns: float
    absent_plain_ns: float
    saved_share: float
    passes_per_1000: float
    disk_read_ns: float
    disk_without_ns: float
    disk_with_ns: float
    pays_from: float | None  # share of requests for absent keys; None: it never saves time
    disk_pays_from: float | None

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        sums = asdict(self)
        del sums["steps"]
        return asdict(self.steps) | sums

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ReadPath":
        """The inverse of ``to_dict``."""
        sums = dict(data)
        steps = StepTimes(**{field.name: sums.pop(field.name) for field in fields(StepTimes)})
        return cls(steps, **sums)


@dataclass(frozen=True)
class PlainFigures:
    """The smallest design without a model that can delete and meets the targets."""

    design: str
    bits_per_key: float
    bytes: int
    deletability: float | None


@dataclass(frozen=True)
class Recommendation:
    """The answer in one sentence, and the figures of the recommended filter; in JSON those of ``plain`` among them."""

    sentence: str
    price: str | None
    learned: bool
    design: str
    model: str
    model_bytes: int
    filter: str
    n_keys: int
    bits_per_key: float
    bytes: int
    plain: PlainFigures | None
    forgotten: float | None
    plain_forgotten: float | None
    saved_share: float
    saved_bytes: int | None
    fpr_predicted: float
    fpr_measured: MeasuredRate | None
    deletability: float | None
    deletability_measured: MeasuredRate | None
    adversarial_fpr: float
    absent_ns: float | None
    without_filter_ns: float | None
    lost_keys: int

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        data: dict[str, object] = {}
        for name, value in asdict(self).items():
            if name == "plain":
                data |= {f"plain_{inner.name}": (value or {}).get(inner.name) for inner in fields(PlainFigures)}
            else:
                data[name] = value
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Recommendation":
        """The inverse of ``to_dict``."""
        own = dict(data)
        plain = {field.name: own.pop(f"plain_{field.name}") for field in fields(PlainFigures)}
        rates = {name: _rate(own[name]) for name in ("fpr_measured", "deletability_measured")}
        return cls(**own | rates, plain=None if plain["design"] is None else PlainFigures(**plain))


@dataclass(frozen=True)
class Figures:
    """The whole report; the order of fields is that of the JSON."""

    dlbf: str
    made: str
    machine: dict[str, str]
    targets: TargetFigures
    inputs: InputFigures
    warnings: list[str]
    recommendation: Recommendation
    designs: list[DesignRow]
    peers: list[PeerRow]
    curves: list[Curve]
    tradeoff: Tradeoff
    equal_forgetting: EqualForgetting | None
    scores: Scores | None
    regions: list[RegionFigures]
    read_path: ReadPath | None
    examples_shown: bool
    quick: bool

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        parts = {
            "recommendation": self.recommendation.to_dict(),
            "designs": [row.to_dict() for row in self.designs],
            "peers": [row.to_dict() for row in self.peers],
            "read_path": self.read_path.to_dict() if self.read_path else None,
        }
        data: dict[str, object] = plain_data(asdict(self) | parts)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Figures":
        """The inverse of ``to_dict``, also when it was read back from JSON."""
        inputs, tradeoff = data["inputs"], data["tradeoff"]
        parts = {
            "targets": TargetFigures(**data["targets"]),
            "inputs": InputFigures(
                **inputs | {"keys": KeyFigures(**inputs["keys"]), "negatives": NegativeFigures(**inputs["negatives"])}
            ),
            "recommendation": Recommendation.from_dict(data["recommendation"]),
            "designs": [DesignRow.from_dict(row) for row in data["designs"]],
            "peers": [PeerRow.from_dict(row) for row in data["peers"]],
            "curves": [Curve(**curve | {"points": _points(curve["points"])}) for curve in data["curves"]],
            "tradeoff": Tradeoff(
                [PriceCurve(curve["fpr"], _points(curve["points"])) for curve in tradeoff["deletability"]],
                _points(tradeoff["forged"]),
                [Trade(**row) for row in tradeoff["worst_case"]],
            ),
            "equal_forgetting": EqualForgetting(**data["equal_forgetting"]) if data["equal_forgetting"] else None,
            "scores": Scores(**data["scores"]) if data["scores"] else None,
            "regions": [RegionFigures(**region) for region in data["regions"]],
            "read_path": ReadPath.from_dict(data["read_path"]) if data["read_path"] else None,
        }
        return cls(**data | parts)


def _rate(data: dict[str, Any] | None) -> MeasuredRate | None:
    if data is None:
        return None
    low, high = data["interval_99"]
    return MeasuredRate(**data | {"interval_99": (low, high)})


def _points(data: list[list[float]]) -> list[Point]:
    return [(at, bits) for at, bits in data]
