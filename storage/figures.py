"""The figures of a filter, for reports."""

import math

from dlbf.filters.base import Filter
from dlbf.storage import generations
from dlbf.storage.layers import Gathering
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.observing import observed_rate
from dlbf.storage.report import FilterFigures

__all__ = ["NO_MODEL", "figures", "figures_now"]

# What a build record calls a filter without a model.
NO_MODEL = "none"


def figures_now(ledger: Ledger[Txn]) -> FilterFigures | None:
    """The figures of the filter that serves now; None if there is none."""
    is_filtering = ledger.state()[0] == "filtering"
    filter = ledger.filter  # another thread may take it away at any time
    if not is_filtering or filter is None:
        return None
    with ledger.log.reading() as txn:
        traffic = ledger.log.read_traffic(txn)
    rate = observed_rate(traffic)[0] if traffic.generation == ledger.generation else math.nan
    return figures(filter, len(filter), rate)


def figures(filter: Filter | Gathering, n_keys: int, measured: float = math.nan) -> FilterFigures:
    """The figures of a filter with ``n_keys`` in it, or of one that is planned."""
    if isinstance(filter, Gathering):
        pattern = filter.pattern
        model, model_bytes = (NO_MODEL, 0) if pattern is None else (pattern.model.kind, pattern.model_bytes)
        n_bytes, rate = filter.nbytes - model_bytes, filter.plan.base_fpr
        return FilterFigures(
            generations.LAYERS, model, n_keys, n_bytes, model_bytes, filter.capacity, rate, measured, deletability=0.0
        )
    model, model_bytes = NO_MODEL, 0
    composite = generations.composite_of(filter)
    if composite is not None:
        model, model_bytes = composite.model.kind, composite.model_bytes
    rate, deletability = generations.expected_rates(filter, n_keys)
    return FilterFigures(
        design=generations.design_of(filter),
        model=model,
        keys=n_keys,
        filter_bytes=filter.nbytes - model_bytes,
        model_bytes=model_bytes,
        capacity=generations.capacity_of(filter),
        fpr_predicted=rate,
        fpr_measured=measured,
        deletability=deletability,
    )
