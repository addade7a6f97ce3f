"""The terminal, for rich: plain text where colours are not wanted."""

import os
from typing import Any

from rich.console import Console

__all__ = ["terminal"]


def terminal(*, stderr: bool = False, **settings: Any) -> Console:
    """A console on standard output or standard error.

    With ``NO_COLOR`` in the environment it is treated like a file: no colours, and no bold, cursor movements or
    progress bars either, which rich would still write.
    """
    if os.environ.get("NO_COLOR"):
        settings["force_terminal"] = False
    return Console(stderr=stderr, **settings)
