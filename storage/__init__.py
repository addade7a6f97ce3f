"""Persistence for dlbf filters (imported as ``dlbf.storage``)."""

from dlbf.storage.report import Stats, Verification
from dlbf.storage.store import Store
from dlbf.storage.transactions import Snapshot, WriteTransaction

__all__ = ["Snapshot", "Stats", "Store", "Verification", "WriteTransaction"]
