"""Named steps of a commit, so that tests can stop the process at each of them.

In normal use :func:`reached` is a call that does nothing.
"""

from collections.abc import Callable

__all__ = ["GUARD_STEPS", "STEPS", "reached", "set_hook"]

STEPS = (
    "write-began",
    "data-written",
    "journal-written",
    "commit-done",
    "filter-applied",
    "checkpoint-piece-written",
    "checkpoint-record-written",
    "journal-trimmed",
    "growth-scanned",
    "build-stepped",
    "switch-began",
    "switch-written",
    "switch-done",
    "broken-marked",
    "rebuild-negatives",
    "rebuild-scan",
    "rebuild-train",
    "rebuild-build",
    "rebuild-measure",
    "rebuild-switch",
)

# Those of a guarded put or delete, which contains a commit.
GUARD_STEPS = (
    "guard-locked",
    "guard-checked",
    "guard-intent-written",
    "guard-journaled",
    "guard-engine-written",
    "guard-intent-cleared",
    "guard-resolved",
)

_hook: Callable[[str], None] | None = None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call ``hook(name)`` at every step; None: no more."""
    global _hook
    _hook = hook


def reached(name: str) -> None:
    """The store is at this step."""
    if _hook is not None:
        _hook(name)
