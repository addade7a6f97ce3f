"""Comparing a store's filter with its data, all of it."""

from typing import TYPE_CHECKING, Any

from dlbf.errors import DlbfError, FormatError
from dlbf.kernels.readpath import read_record
from dlbf.storage.layout import CHECKPOINT_KEY, LONG_KEY, STORE_KEY, Checkpoint, LongState, StoreInfo
from dlbf.storage.longkeys import Databases, count_keys, scan
from dlbf.storage.replica import Replica
from dlbf.storage.report import Verification

if TYPE_CHECKING:
    from dlbf.storage.store import Store

__all__ = ["verify"]

MAX_EXAMPLES = 10


def verify(store: "Store") -> Verification:
    """See :meth:`dlbf.storage.Store.verify`."""
    dbs = store._dbs
    with store._reading() as txn:
        now = txn.id()
        problems = check_records(txn, dbs)
        # A replica of its own, from what is on disk; and the one that answers now.
        fresh = Replica(dbs, store._secret, str(store.path), quiet=True)
        candidates: dict[str, Any] = {}
        if fresh.catch_up(txn, now):
            candidates["stored"] = fresh.filter
        else:
            problems.append(fresh.reason)
        with store._lock:
            live = store._replica
            if live.filter is not None and live.applied == now:
                candidates["live"] = live.filter.copy()
        n_keys = 0
        missing = 0
        examples: list[bytes] = []
        for key, _ in scan(txn, dbs):
            n_keys += 1
            absent = False
            for filter in candidates.values():
                # Taking every key out of a copy must work for each of them and leave nothing.
                try:
                    filter.remove(key)
                except KeyError:
                    absent = True
            if absent:
                missing += 1
                if len(examples) < MAX_EXAMPLES:
                    examples.append(key)
        extra = max((filter.approximate_count() for filter in candidates.values()), default=0)
        try:
            counted = count_keys(txn, dbs)
            if counted != n_keys:
                problems.append(f"the databases count {counted} keys, the data has {n_keys}; run rebuild()")
        except FormatError:
            pass  # among the problems already
    if missing:
        problems.append(f"{missing} keys are not in the filter; run rebuild()")
    if extra:
        problems.append(f"{extra} entries of the filter belong to no key; run rebuild()")
    return Verification(n_keys, missing, extra, tuple(dict.fromkeys(problems)), tuple(examples))


def check_records(txn: Any, dbs: Databases) -> list[str]:
    """Read every record of ours and say what is wrong with it."""
    problems = []
    for key, unpack in (
        (STORE_KEY, StoreInfo.unpack),
        (CHECKPOINT_KEY, Checkpoint.unpack),
        (LONG_KEY, LongState.unpack),
    ):
        record = txn.get(key, db=dbs.meta)
        if record is None and key != LONG_KEY:
            problems.append(f"record {key.decode()!r} in meta is missing; run rebuild()")
            continue
        try:
            unpack(record)
        except DlbfError as error:
            problems.append(f"{error}; run rebuild()")
    for key, record in txn.cursor(dbs.journal):
        try:
            read_record(record, int.from_bytes(key, "big"))
        except DlbfError as error:
            problems.append(f"{error}; run rebuild()")
    return problems
