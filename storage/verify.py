"""Comparing a store's filter with its data, all of it."""

from typing import Any

import lmdb

from dlbf.errors import DlbfError
from dlbf.filters.base import Filter
from dlbf.kernels.journal import read_record
from dlbf.kernels.locks import Held
from dlbf.storage import generations
from dlbf.storage.layout import (
    BUILD_KEY,
    CHECKPOINT_KEY,
    COMPILED_KEY,
    ESTIMATOR_KEY,
    GUARD_KEY,
    LONG_KEY,
    STORE_KEY,
    TRAFFIC_KEY,
    BuildInfo,
    Checkpoint,
    GuardInfo,
    LongState,
    StoreInfo,
    TrafficRecord,
    opened,
)
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import Databases, long_state
from dlbf.storage.misses import check_misses
from dlbf.storage.report import Verification
from dlbf.storage.source import Source
from dlbf.storage.tablelog import TableLog

__all__ = ["check_meta", "unknown_meta", "verify"]

MAX_EXAMPLES = 10
META_KEYS = (STORE_KEY, CHECKPOINT_KEY, LONG_KEY, GUARD_KEY, BUILD_KEY, TRAFFIC_KEY)


def verify(ledger: Ledger[Txn], source: Source[Txn]) -> Verification:
    """See ``dlbf.storage.Store.verify``."""
    log: Any = ledger.log
    with log.reading() as txn:
        now = log.position(txn)
        try:
            problems = check_records(txn, log)
        except lmdb.Error as error:
            problems = [f"LMDB cannot read the filter's databases ({error}); run rebuild()"]
        # A ledger of its own, from what is on disk; and the one that answers now.
        fresh = Ledger(log, ledger.settings)
        fresh.trouble.quiet = True
        candidates: list[Filter] = []
        if fresh.catch_up(txn, now):
            candidates.append(fresh.filter)
            problems.extend(check_model(txn, log.dbs, fresh.filter))
        else:
            problems.append(fresh.trouble.reason)
        with Held(ledger.lock):
            if ledger.filter is not None and ledger.applied == now:
                candidates.append(ledger.filter.copy())
        n_keys = missing = 0
        examples: list[bytes] = []
        for key in source.scan(txn):
            n_keys += 1
            # Taking every key out of a copy must work for each of them and leave nothing.
            if sum(took_out(filter, key) for filter in candidates) < len(candidates):
                missing += 1
                if len(examples) < MAX_EXAMPLES:
                    examples.append(key)
        extra = max((generations.remainder(filter) for filter in candidates), default=0)
        counted = log.n_stored(txn)
        if counted not in (None, n_keys):
            problems.append(f"the databases count {counted} keys, the data has {n_keys}; run rebuild()")
    if missing:
        problems.append(f"{missing} keys are not in the filter; run rebuild()")
    if extra:
        problems.append(f"{extra} entries of the filter belong to no key; run rebuild()")
    return Verification(n_keys, missing, extra, tuple(dict.fromkeys(problems)), tuple(examples))


def took_out(filter: Filter, key: bytes) -> bool:
    """Take a key out of a filter; False if it was not there."""
    if key not in filter:
        return False  # a layered filter could take it out and deny it all the same
    try:
        filter.remove(key)
        return True
    except KeyError:
        return False


def check_meta(txn: Txn, dbs: Databases, keys: tuple[bytes, ...]) -> list[str]:
    """Read records of ``meta`` and say what is wrong with them."""
    unpack: dict[bytes, Any] = {
        STORE_KEY: StoreInfo.unpack,
        CHECKPOINT_KEY: Checkpoint.unpack,
        LONG_KEY: LongState.unpack,
        GUARD_KEY: GuardInfo.unpack,
        BUILD_KEY: BuildInfo.unpack,
        TRAFFIC_KEY: TrafficRecord.unpack,
    }
    problems = []
    for key in keys:
        record = txn.get(key, db=dbs.meta)
        needed = key in (STORE_KEY, CHECKPOINT_KEY) or (key == LONG_KEY and long_state(txn, dbs).n_nodes)
        if record is None and needed:
            problems.append(f"record {key.decode()!r} in meta is missing; run rebuild()")
        elif record is not None:
            try:
                unpack[key](record)
            except DlbfError as error:
                problems.append(f"{error}; run rebuild()")
    return problems


def unknown_meta(txn: Txn, dbs: Databases) -> list[bytes]:
    """Keys in ``meta`` that are not ours."""
    return [bytes(key) for key in txn.cursor(dbs.meta).iternext(values=False) if key not in META_KEYS]


def check_records(txn: Txn, log: TableLog) -> list[str]:
    """Read every record of ours and say what is wrong with it."""
    dbs = log.dbs
    problems = check_meta(txn, dbs, META_KEYS)
    problems.extend(f"unknown record {key!r} in meta; run rebuild()" for key in unknown_meta(txn, dbs))
    try:
        check_misses(txn, dbs)
    except DlbfError as error:
        problems.append(f"{error}; run rebuild()")
    try:
        for number, record in log.entries(txn):
            read_record(record, number)
    except (DlbfError, OverflowError) as error:
        problems.append(f"{error}; run rebuild()")
    return problems


def check_model(txn: Txn, dbs: Databases, filter: Filter) -> list[str]:
    """Compare what is kept of the model with the filter's own; the pickle's checksum is checked, nothing is opened."""
    composite = generations.composite_of(filter)
    expected = composite.model.to_bytes() if composite is not None and composite.model_bytes else None
    problems = []
    found = {}
    for key, record in txn.cursor(dbs.model):
        name = key.decode(errors="replace")
        if key not in (COMPILED_KEY, ESTIMATOR_KEY):
            problems.append(f"unknown record {name!r} in model; run rebuild(), or use a newer dlbf")
            continue
        try:
            found[key] = opened(record, 0, name, "model")
        except DlbfError as error:
            problems.append(f"{error}; run rebuild()")
    if not problems and found.get(COMPILED_KEY) != expected:
        problems.append("the model kept beside the filter is not the filter's; run rebuild()")
    return problems
