"""Why a filter cannot be used, and for whom."""

import logging
from dataclasses import dataclass

from dlbf.errors import StoreError

__all__ = ["DAMAGE", "FULL", "SECRET", "VERSION", "Trouble", "Unusable"]

log = logging.getLogger("dlbf.storage")

# DAMAGE: nobody can use it, until it is rebuilt.  FULL: nobody can, until the next commit makes a larger one.  SECRET:
# this process cannot.  VERSION: this version of dlbf cannot.
DAMAGE, FULL, SECRET, VERSION = "damage", "full", "secret", "version"


class Unusable(StoreError):
    """The stored filter cannot be used."""

    def __init__(self, reason: str, kind: str = DAMAGE) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(slots=True)
class Trouble:
    """What is wrong with a ledger's filter; ``kind`` is empty while nothing is."""

    reason: str = ""
    kind: str = ""
    failed_record: bytes | None = None  # the checkpoint record that could not be used: not to be read again
    quiet: bool = False
    warned: str = ""  # the reason that was logged last

    def clear(self) -> None:
        """There is a filter again."""
        self.reason = self.kind = ""
        self.failed_record = None

    def tell(self, where: str) -> None:
        """Log the reason, once."""
        if self.warned != self.reason and not self.quiet:
            self.warned = self.reason
            log.warning("%s: reading without the filter: %s", where, self.reason)
