"""What is asked of a learned filter, checked."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dlbf.learned.holding import Groups
from dlbf.models import Model
from dlbf.theory import get_design

__all__ = ["Progress", "Targets"]

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What is asked of a filter: the parameters of ``dlbf.LearnedFilter.fit``, which see, and its defaults.

    Examples
    --------
    >>> Targets(fpr=0.01).design
    'auto'
    >>> Targets(fpr=2)
    Traceback (most recent call last):
    ValueError: fpr must be above 0 and at most 1, found 2
    """

    fpr: float | None = None
    deletability: float | None = None
    adversarial_fpr: float | None = None
    design: str = "auto"
    model: str | Model | None = "auto"
    counter_bits: int | None = None
    bits_per_key: float | None = None
    headroom: float = 1.0
    deletions: float = 0.1
    secret: bytes | None = field(default=None, repr=False)
    random_state: int = 0
    max_model_bytes: int | None = None
    groups: Groups | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.fpr is not None and self.bits_per_key is not None:
            raise ValueError("pass either fpr= or bits_per_key=, not both: one follows from the other")
        if self.deletability is not None and not 0 <= self.deletability < 1:
            raise ValueError(f"deletability must be at least 0 and below 1, found {self.deletability!r}")
        for name, value in (("fpr", self.fpr), ("adversarial_fpr", self.adversarial_fpr)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, found {value!r}")
        if self.fpr is not None and self.fpr >= 1:
            raise ValueError(f"fpr must be below 1, found {self.fpr!r}")
        if self.bits_per_key is not None and not 0 < self.bits_per_key < 4096:
            raise ValueError(f"bits_per_key must be above 0, found {self.bits_per_key!r}")
        if not 1 <= self.headroom <= 1000:
            raise ValueError(f"headroom must be between 1 and 1000, found {self.headroom!r}")
        if get_design(self.design).keyed and self.secret is None:
            raise ValueError(f"the design {self.design!r} is keyed: pass secret= (16 bytes, secrets.token_bytes(16))")

    def with_defaults(self) -> "Targets":
        """The same with the rate, the deletability and the worst case that hold where none was given."""
        fpr, deletability = self.fpr, self.deletability
        if fpr is None and self.bits_per_key is None:
            fpr = 0.01
        if deletability is None:
            deletability = 0.9 if self.design == "auto" and self.bits_per_key is None else 0.0
        worst = get_design(self.design).worst_case(deletability, self.adversarial_fpr)
        return replace(self, fpr=fpr, deletability=deletability, adversarial_fpr=worst)
