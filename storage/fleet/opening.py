"""How ``Guard(engine, path, log=...)`` becomes a guard of many hosts."""

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

__all__ = ["refuse_shared_options", "shared_guard"]

T = TypeVar("T")


def shared_guard(cls: type[T], args: Sequence[object], options: Mapping[str, object]) -> T:
    """A guard of many hosts, which ``isinstance`` then takes for one of ``cls``."""
    from dlbf.storage.fleet.guard import FleetGuard

    assert isinstance(cls, ABCMeta)
    cls.register(FleetGuard)
    return cast(T, FleetGuard(*args, **options))


def refuse_shared_options(consistency: str, lease_seconds: float) -> None:
    """ValueError if a guard without a log was given what only one with a log has."""
    if (consistency, lease_seconds) != ("strict", 1.0):
        raise ValueError("consistency and lease_seconds are for guards of many hosts; give them a log=")
