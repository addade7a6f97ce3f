"""The figures of a store or a guard, gathered from its parts."""

from typing import Any

from dlbf.storage import generations
from dlbf.storage.environment import Environment
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.report import Stats
from dlbf.storage.source import Source
from dlbf.storage.traffic import Traffic

__all__ = ["gather"]


def gather(environment: Environment, ledger: Ledger[Txn], source: Source[Txn], traffic: Traffic) -> Stats:
    """See ``dlbf.storage.Store.stats``."""
    state, reason = ledger.state()
    log: Any = ledger.log
    filter = ledger.filter
    with environment.reading() as txn:
        n_keys = source.count_cheaply(txn, filter)
        journal_records = log.count_records(txn)
        n_misses = txn.stat(environment.dbs.misses)["entries"]
        last_txn = txn.id()
        info = environment.handle.info()
    model_bytes = getattr(filter, "model_bytes", 0)
    return Stats(
        keys=n_keys,
        filter_bytes=filter.nbytes - model_bytes if filter is not None else 0,
        model_bytes=model_bytes,
        lookups=traffic.n_lookups,
        filtered=traffic.n_filtered,
        false_positives=traffic.n_false_positives,
        unfiltered=traffic.n_unfiltered,
        fpr_target=ledger.settings.info.fpr,
        state=state,
        reason=reason,
        capacity=ledger.sizes.capacity if filter is not None else 0,
        generation=ledger.generation if filter is not None else 0,
        journal_records=journal_records,
        journal_bytes=ledger.log_bytes,
        checkpoint_txn=ledger.checkpoint.txn_id if ledger.checkpoint is not None else 0,
        last_txn=last_txn,
        map_size=info["map_size"],
        map_used=(info["last_pgno"] + 1) * environment.page_bytes,
        file_bytes=environment.data_bytes,
        readers=info["num_readers"],
        design="none" if filter is None else generations.design_of(filter),
        model=filter.model.kind if generations.is_learned(filter) else "none",
        misses=n_misses,
    )
