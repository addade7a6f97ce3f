"""The figures of a store or a guard, gathered from its parts."""

from typing import Any

from dlbf.filters.base import Filter
from dlbf.filters.layered import LayeredFilter
from dlbf.storage import generations
from dlbf.storage.environment import Environment
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.report import Layers, NeedlessReads, Stats
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
    composite = generations.composite_of(filter)
    model_bytes = composite.model_bytes if composite is not None else 0
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
        model=composite.model.kind if composite is not None else "none",
        misses=n_misses,
        needless_reads=needless(filter, traffic.n_false_positives),
        layers=layers_of(filter, ledger.settings.bases.has(filter)) if isinstance(filter, LayeredFilter) else None,
    )


def needless(filter: Filter | None, n_reads: int) -> NeedlessReads:
    """Reads of absent keys by their cause; what is not known to be another one is ordinary."""
    if not isinstance(filter, LayeredFilter):
        return NeedlessReads(ordinary=n_reads)
    absent = filter.absent
    ordinary = max(0, n_reads - absent.n_deleted - absent.n_repeated)
    return NeedlessReads(ordinary, absent.n_deleted, absent.n_repeated, absent.n_answers)


def layers_of(filter: LayeredFilter, shared: bool) -> Layers:
    """The figures of each layer."""
    return Layers(
        base_bytes=filter.base_bytes,
        delta_bytes=filter.delta_bytes,
        absent_bytes=filter.absent.nbytes,
        base_keys=filter.base_keys,
        added_keys=filter.n_added,
        planned_keys=filter.planned_added,
        dead_keys=filter.dead,
        absent_keys=len(filter.absent),
        shared=shared,
        absent_limit_bytes=filter.absent.limit_bytes,
    )
