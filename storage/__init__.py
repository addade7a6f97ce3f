"""Persistence for dlbf filters (imported as ``dlbf.storage``)."""

from dlbf.storage.distribution import Freshness, Published, Publisher, Subscription, publish, subscribe
from dlbf.storage.guard import Guard
from dlbf.storage.report import Drift, FilterFigures, Layers, NeedlessReads, RebuildReport, Stats, Verification
from dlbf.storage.store import Store
from dlbf.storage.transactions import Snapshot, WriteTransaction

__all__ = [
    "Drift",
    "FilterFigures",
    "Freshness",
    "Guard",
    "Layers",
    "NeedlessReads",
    "Published",
    "Publisher",
    "RebuildReport",
    "Snapshot",
    "Stats",
    "Store",
    "Subscription",
    "Verification",
    "WriteTransaction",
    "publish",
    "subscribe",
]
