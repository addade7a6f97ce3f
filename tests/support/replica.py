"""What another process has of a store or a guard, in this one."""

from typing import Any

from dlbf.kernels.ledger import ABSENT
from dlbf.storage.ledger import Ledger
from support import peek


class Replica:
    """A ledger of its own on the same log, and its own reads of the data."""

    def __init__(self, face: Any) -> None:
        self.face = face
        self.ledger: Ledger[Any] = Ledger(peek.log(face), face.ledger.settings)
        self.ledger.watch(peek.log(face).word)

    def ask(self, key: bytes) -> int:
        """What the filter says, as of now."""
        if not self.ledger.is_current():
            assert self.ledger.refresh(wait=True)
        return self.ledger.ask(key)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; it is remembered if it is not there."""
        if self.ask(key) == ABSENT:
            return None
        moment = self.ledger.moment()
        value: bytes | None = self.face.source.fetch(key)
        if value is None:
            self.ledger.remember(key, moment)
        return value

    def knows(self, key: bytes) -> bool:
        """Whether it knows that a key is absent."""
        return key in self.ledger.filter.absent
