"""Options that the sections of ``dlbf bench`` share."""

from collections.abc import Callable
from typing import TypeVar

import click

__all__ = ["RATE", "counted"]

Command = TypeVar("Command", bound=Callable[..., object])
RATE = click.FloatRange(0, 1, min_open=True, max_open=True)


def counted(*names: str, default: int, help: str, least: int = 1) -> Callable[[Command], Command]:
    """An option that is a whole number of at least ``least``; fewer would leave nothing to measure."""
    return click.option(*names, type=click.IntRange(min=least), default=default, show_default=True, help=help)
