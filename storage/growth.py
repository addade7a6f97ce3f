"""How far the next generation of a filter is, and what has kept it from being made."""

from dataclasses import dataclass

from dlbf.storage.build import Builder
from dlbf.storage.lmdbtypes import Txn

__all__ = ["Growth"]

# A larger filter that could not be made is tried again after 2, 4, 8 commits, at most so many.
GROWTH_PAUSE_COMMITS = 1024


@dataclass(slots=True)
class Growth:
    """See the module."""

    builder: Builder[Txn] | None = None
    generation: int = 0  # that the builder's filter will follow
    misfit: int = 0  # generation whose successor had no room in one of its regions
    failure: str = ""  # why the successor of the following generation was last not made
    failed_at: int = 0
    n_failures: int = 0
    pause: int = 0  # commits until it is tried again
    # What a model was last found to save, and of what state of things; see dlbf.storage.drift.
    estimate: tuple[tuple[int, int, int], float] | None = None

    def is_paused(self, generation: int) -> bool:
        """Whether this commit tries nothing; failures of another generation are forgotten."""
        if self.failed_at != generation:
            self.failure, self.failed_at = "", generation
            self.n_failures = self.pause = 0
        if self.pause:
            self.pause -= 1
            return True
        return False

    def has_failed(self, reason: str) -> bool:
        """Another failure; whether it is a new one."""
        self.n_failures += 1
        self.pause = min(1 << self.n_failures, GROWTH_PAUSE_COMMITS)
        is_new = reason != self.failure
        self.failure = reason
        return is_new
