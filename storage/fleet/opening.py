"""How ``Guard(engine, path, log=...)`` becomes a guard of many hosts."""

import inspect
from abc import ABCMeta
from typing import TypeVar

__all__ = ["refuse_shared_options", "takes_log"]

T = TypeVar("T")


def takes_log(cls: type[T]) -> type[T]:
    """A decorator: with ``log`` the class makes a guard of many hosts, which ``isinstance`` takes for its own."""
    inherited = cls.__new__

    def make(own: type, *args: object, **options: object) -> object:
        if options.get("log") is None:
            return inherited(own)
        from dlbf.storage.fleet.guard import FleetGuard

        assert isinstance(cls, ABCMeta)
        cls.register(FleetGuard)
        return FleetGuard(*args, **options)

    make.__signature__ = inspect.signature(cls.__init__)  # type: ignore[attr-defined]
    cls.__new__ = make  # type: ignore[assignment, method-assign]
    return cls


def refuse_shared_options(consistency: str, lease_seconds: float) -> None:
    """ValueError if a guard without a log was given what only one with a log has."""
    if (consistency, lease_seconds) != ("strict", 1.0):
        raise ValueError("consistency and lease_seconds are for guards of many hosts; give them a log=")
