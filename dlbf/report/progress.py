"""How a report tells the stage it is at and how far it is."""

from collections.abc import Callable

__all__ = ["Say", "part_of", "say_nothing"]

# Told the stage, and how far the whole is, from 0 to 1.
Say = Callable[[str, float], None]


def say_nothing(stage: str, fraction: float) -> None:
    """For callers that do not ask."""


def part_of(say: Say, start: float, stop: float) -> Say:
    """One that is told how far a part is, and passes on how far the whole is."""
    return lambda stage, fraction: say(stage, start + (stop - start) * min(1.0, fraction))
