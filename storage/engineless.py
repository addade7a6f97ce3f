"""A guard's directory without its engine: what its filter tells."""

import os
from collections.abc import Iterator
from typing import Any, NoReturn

from dlbf.errors import FormatError, StoreError
from dlbf.kernels.filelog import NOTHING, REMOVING
from dlbf.storage.engines.base import Adapter
from dlbf.storage.folder import NO_BOOT
from dlbf.storage.guard import Guard
from dlbf.storage.layout import GUARD_KEY, GuardInfo
from dlbf.storage.rebuild import Progress

__all__ = ["EnginelessGuard", "InspectedGuard"]


class NoEngine(Adapter):
    """Stands where the engine is not; whoever asks it is told so."""

    def _refuse(self) -> NoReturn:
        raise StoreError("this needs the guard's engine, which is not open here; do it in the program that opens it")

    def get(self, key: bytes) -> bytes | None:
        """Refused."""
        self._refuse()

    def put(self, key: bytes, value: bytes) -> None:
        """Refused."""
        self._refuse()

    def delete(self, key: bytes) -> None:
        """Refused."""
        self._refuse()

    def scan(self, start: bytes) -> Iterator[bytes]:
        """Refused."""
        self._refuse()


class InspectedGuard(Guard):
    """A guard that is opened ``readonly`` to be looked at."""

    def facts(self) -> dict[str, Any]:
        """What there is to tell beside ``stats``, as plain data."""
        file = self._writes.log.folder.state.file
        intent, _ = file.head.noted()
        writer = "nothing under way"
        if intent != NOTHING:
            what = "deleting" if intent == REMOVING else "adding"
            writer = f"{what} keys, or died while it did; the next writer settles that"
        if file.head.boot != NO_BOOT:
            writer += ' (sync="none")'
        return {
            "engine": self._engine_of(),
            "writer": writer,
            "open": f'g = Guard(engine, "{self.path}")',
        }

    def _engine_of(self) -> str:
        """The class of the adapter and what it told about the engine when its keys were last read."""
        with self._environment.reading() as txn:
            record = txn.get(GUARD_KEY, db=self._environment.dbs.meta)
        try:
            name, _, told = GuardInfo.unpack(record or b"").identity[8:].partition(b" ")
        except FormatError:
            return "unknown: its record cannot be read"
        text = told.decode("ascii", errors="replace")
        about = text if text.isprintable() and "\ufffd" not in text else told.hex()
        return name.decode(errors="replace") + (f" {about}" if about else "")


class EnginelessGuard(InspectedGuard):
    """A guard that is opened to be looked at: ``stats`` and ``drift`` tell what the filter knows.

    Parameters
    ----------
    path : path
        The directory of a guard.
    readonly : bool
        True, and nothing else.
    secret : bytes, optional
        If it is not kept in the directory.
    """

    def __init__(self, path: str | os.PathLike[str], readonly: bool = True, secret: bytes | None = None) -> None:
        assert readonly, "nobody may write without the engine"
        super().__init__(NoEngine(), path, readonly=True, secret=secret, sample_misses=False)

    def _check_engine(self, attach: bool, progress: Progress | None) -> None:
        """Whose filter it is cannot be checked here."""
