"""What tests need of the inside of filters, stores and guards, in one place."""

from typing import Any

from dlbf.filters.base import Filter
from dlbf.filters.bloom import CellFilter
from dlbf.learned.assembly import Part
from dlbf.learned.composite import Composite
from dlbf.storage.commits import Commits
from dlbf.storage.environment import Environment, Writes
from dlbf.storage.fleet.keeper import Keeper
from dlbf.storage.guarding import GuardedWrites
from dlbf.storage.lmdblog import LmdbLog
from dlbf.storage.longkeys import Databases


def environment(face: Any) -> Environment:
    """The open LMDB environment."""
    return face._environment


def commits(face: Any) -> Commits:
    """What commits, grows and switches."""
    return face._commits


def writes(face: Any) -> Writes:
    """The write transactions of this process."""
    return environment(face).writes


def log(face: Any) -> LmdbLog:
    """The log."""
    return commits(face).log


def dbs(face: Any) -> Databases:
    """The databases."""
    return environment(face).dbs


def reading(face: Any, buffers: bool = False) -> Any:
    """A read transaction."""
    return environment(face).reading(buffers)


def secret(face: Any) -> bytes | None:
    """The secret of the keyed hash."""
    return face.ledger.settings.secret


def changes(store: Any) -> Any:
    """Changes of single keys."""
    return store._changes


def keeper(guard: Any) -> Keeper:
    """What goes on beside reads and writes of a guard of many hosts."""
    found: Keeper = guard._keeper
    return found


def guarded(guard: Any) -> GuardedWrites:
    """The write protocol of a guard."""
    return guard._writes


def late_keys(guard: Any) -> frozenset[bytes]:
    """Keys whose writes may still arrive."""
    return guarded(guard).late_keys([b""])


def close_untidily(face: Any) -> None:
    """Close without the checkpoint that close() makes."""
    face._close()


# --- filters


def payload(filter: Filter) -> memoryview:
    """The bytes that a filter works on."""
    return filter._payload()


def params(filter: Filter) -> tuple[int, ...]:
    """All parameters, the common ones first."""
    return filter._params


def param(filter: Filter, name: str) -> int:
    """One of them."""
    return filter._param(name)


def is_sound(filter: Any) -> bool:
    """Whether the contents agree with themselves."""
    return filter._is_sound()


def is_summarised(filter: CellFilter) -> bool:
    """Whether counters have their bits beside them."""
    return filter._is_summarised


def layout(composite: Composite) -> tuple[tuple[Part, int, int], ...]:
    """The parts with their offsets and sizes in bytes."""
    return composite._layout


def part(composite: Composite, number: int) -> Filter:
    """A filter over one part."""
    return composite._part_filter(number)


def head(composite: Composite) -> tuple[int, ...]:
    """The fields of the directory before the parts."""
    return composite._head()


def directory(composite: Composite) -> bytes:
    """The directory."""
    return composite._directory()
