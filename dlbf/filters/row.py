"""The row that describes one kind of base filter; ``dlbf.filters.kinds`` has the table of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dlbf.filters.base import Filter
from dlbf.geometry import Price, fingerprint_rate_at_load

__all__ = ["Base", "PlainDesign", "Planned"]


class Planned(Protocol):
    """What a plan asks of one filter: a rate, or exact bits and hashes; see ``dlbf.theory.FilterPlan``."""

    @property
    def fpr(self) -> float:
        """Rate to build it for."""

    @property
    def bits_per_key(self) -> float:
        """Bits per key it stores."""

    @property
    def hashes(self) -> int | None:
        """Hashes, where the plan fixes them."""

    @property
    def marks(self) -> float | None:
        """Share of the bits that mark collisions."""


@dataclass(frozen=True)
class PlainDesign:
    """The design that is this base filter and nothing else.

    Attributes
    ----------
    name, title : str
        Public name, and what people who read no papers may call it.
    summary : str
        One line for tables and help; the base filter's ``words`` if empty.
    planner : str
        Which planner of ``dlbf.theory.planner`` sizes it.
    """

    name: str
    title: str
    summary: str = ""
    planner: str = "single"


@dataclass(frozen=True)
class Base:
    """One row of the table: all that the rest of the library knows about a kind of base filter.

    Attributes
    ----------
    name : str
        What plans and designs call it.
    cls : type
        The public class; it derives from the kernel, and its ``KIND`` is the number in headers and directories.
    words : str
        The same in plain English.
    geometry : callable
        ``geometry(n_keys, planned, counter_bits)``: the class's own parameters for a planned filter.
    scaled : callable
        ``scaled(params, n_before, n_keys)``: those for ``n_keys`` at the rate that ``params`` have with ``n_before``.
    rate : callable
        ``rate(n_keys, params)``: the false-positive rate of that filter when it holds ``n_keys``.
    price : callable or None
        ``price(counter_bits)``: the lines whose lowest is its size; None if no formula of rates alone gives it.
    design : PlainDesign or None
        The design that is this filter alone, if there is one.
    fills : bool
        Can it run out of room?
    growable : bool
        Does a composite give it a larger place when it does?  Its kernel, ``composite.pyx``, must know how to move it.
    forgets : bool
        Can every key that was added be removed again?
    rate_at_load : callable
        ``rate_at_load(fpr, load, hashes)``: the rate of one planned for ``fpr``, with a share ``load`` of its keys.
    static : bool
        Is it built once, from all keys, and never changed?
    """

    name: str
    cls: type[Filter]
    words: str
    geometry: Callable[[int, Planned, int], tuple[int, ...]]
    scaled: Callable[[tuple[int, ...], int, int], tuple[int, ...]]
    rate: Callable[[int, tuple[int, ...]], float]
    price: Callable[[int], tuple[Price, ...]] | None = None
    design: PlainDesign | None = None
    fills: bool = False
    growable: bool = False
    forgets: bool = True
    rate_at_load: Callable[[float, float, int | None], float] = fingerprint_rate_at_load
    static: bool = False

    @property
    def number(self) -> int:
        """What stands for it in headers and directories."""
        return self.cls.KIND

    @property
    def deletable(self) -> bool:
        """Can keys be removed?"""
        return self.cls.DELETABLE
