"""The figures of stores and guards for monitoring: Prometheus text, ``prometheus_client``, OpenTelemetry.

One table (``METRICS``) has every name; all three ways give the same ones.  Nothing here is needed by anything else, and
nothing but the standard library is imported until it is asked for.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dlbf.errors import DlbfError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from dlbf.storage.logs import FleetFigures, FleetStats
    from dlbf.storage.report import Stats as OneHostStats

    Stats = OneHostStats | FleetStats

__all__ = ["CONTENT_TYPE", "METRICS", "Collector", "Metric", "collector", "observe"]

# What a web server says about ``Collector.text``.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OWN_LABELS = ("store", "layer", "cause", "host", "lease")

# A figure and the labels that tell it from others of its name.
Figures = Iterable[tuple[dict[str, str], float]]


class Told(Protocol):
    """A store or a guard, as far as this module knows it."""

    @property
    def path(self) -> os.PathLike[str]:
        """The directory."""
        ...

    def stats(self) -> "Stats":
        """See ``dlbf.storage.Store.stats``."""
        ...


@dataclass(frozen=True)
class Metric:
    """One name: what it counts, and where ``stats()`` has it.

    Attributes
    ----------
    name : str
        Counters end in ``_total``, sizes in ``_bytes``.
    kind : {"counter", "gauge"}
    help : str
    read : callable
        From ``Stats`` to figures with their labels; none where a store has no such figure.
    """

    name: str
    kind: str
    help: str
    read: Callable[["Stats"], Figures]


def _plain(attribute: str) -> Callable[["Stats"], Figures]:
    return lambda stats: [({}, float(getattr(stats, attribute)))]


def _known(attribute: str) -> Callable[["Stats"], Figures]:
    """A figure that is NaN as long as there is nothing to tell."""
    return lambda stats: [({}, value)] if not math.isnan(value := float(getattr(stats, attribute))) else []


def _layers(attributes: dict[str, str]) -> Callable[["Stats"], Figures]:
    def read(stats: "Stats") -> Figures:
        if stats.layers is None:
            return []
        return [({"layer": layer}, float(getattr(stats.layers, name))) for layer, name in attributes.items()]

    return read


def _causes(stats: "Stats") -> Figures:
    reads = stats.needless_reads
    return [({"cause": cause}, float(getattr(reads, cause))) for cause in ("ordinary", "deleted", "repeated")]


def _fleet(read: Callable[["FleetFigures"], Figures]) -> Callable[["Stats"], Figures]:
    """A figure that only hosts of many have."""

    def of(stats: "Stats") -> Figures:
        figures = getattr(stats, "fleet", None)
        return [] if figures is None else read(figures)

    return of


def _by_host(figures: dict[str, float] | dict[str, int]) -> Figures:
    """By what hosts call themselves; leases, whose names are new each time, are added up."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        label = name.rpartition(" (")[0] or "gone"
        found[label] = found.get(label, 0.0) + value
    return [({"host": label}, value) for label, value in sorted(found.items())]


METRICS = (
    Metric("dlbf_keys", "gauge", "Keys stored.", _plain("keys")),
    Metric("dlbf_capacity_keys", "gauge", "Keys that the filter is planned for.", _plain("capacity")),
    Metric("dlbf_filter_bytes", "gauge", "Memory of the filter without its model.", _plain("filter_bytes")),
    Metric("dlbf_model_bytes", "gauge", "Memory of the model.", _plain("model_bytes")),
    Metric("dlbf_bits_per_key", "gauge", "Bits of filter and model per key.", _known("bits_per_key")),
    Metric("dlbf_lookups_total", "counter", "Keys asked for, by this process.", _plain("lookups")),
    Metric("dlbf_filtered_total", "counter", "Reads that the filter has saved, by this process.", _plain("filtered")),
    Metric("dlbf_false_positives_total", "counter", "Reads of absent keys that passed.", _plain("false_positives")),
    Metric("dlbf_unfiltered_total", "counter", "Reads without asking the filter.", _plain("unfiltered")),
    Metric("dlbf_needless_reads_total", "counter", "Reads of absent keys, by why they passed.", _causes),
    Metric("dlbf_remembered_total", "counter", "Reads saved by knowing the key to be absent.", _plain("remembered")),
    Metric("dlbf_observed_fpr", "gauge", "Share of absent keys that passed.", _known("observed_fpr")),
    Metric("dlbf_target_fpr", "gauge", "Share of absent keys that may pass.", _plain("fpr_target")),
    Metric(
        "dlbf_filtering",
        "gauge",
        "1: the filter answers; 0: every read goes to the data.",
        lambda stats: [({}, float(stats.state == "filtering"))],
    ),
    Metric("dlbf_generation", "gauge", "Number of the filter; another one after each rebuild.", _plain("generation")),
    Metric("dlbf_journal_records", "gauge", "Records of the journal.", _plain("journal_records")),
    Metric("dlbf_journal_bytes", "gauge", "Bytes of the journal since the checkpoint.", _plain("journal_bytes")),
    Metric("dlbf_position", "gauge", "Newest position of the journal.", _plain("last_txn")),
    Metric("dlbf_sampled_misses", "gauge", "Absent keys kept to learn from.", _plain("misses")),
    Metric("dlbf_file_bytes", "gauge", "Bytes of the store's file.", _plain("file_bytes")),
    Metric(
        "dlbf_layer_bytes",
        "gauge",
        "Memory of each layer of the filter.",
        _layers({"base": "base_bytes", "delta": "delta_bytes", "absent": "absent_bytes"}),
    ),
    Metric(
        "dlbf_layer_keys",
        "gauge",
        "Keys in each layer of the filter.",
        _layers({"base": "base_keys", "delta": "added_keys", "absent": "absent_keys", "dead": "dead_keys"}),
    ),
    Metric("dlbf_fleet_hosts", "gauge", "Hosts that hold a lease.", _fleet(lambda f: [({}, float(len(f.hosts)))])),
    Metric("dlbf_fleet_epoch", "gauge", "Epoch of the shared log.", _fleet(lambda f: [({}, float(f.epoch))])),
    Metric(
        "dlbf_fleet_lease_seconds",
        "gauge",
        "How long this host may still answer without a word of the log; 0: its reads pass through.",
        _fleet(lambda f: [({}, f.lease_left_seconds)]),
    ),
    Metric(
        "dlbf_fleet_behind_records",
        "gauge",
        "Records of the shared log that a host has not acknowledged.",
        _fleet(lambda f: [({"host": one.label, "lease": one.name}, float(one.behind)) for one in f.hosts]),
    ),
    Metric(
        "dlbf_fleet_waits_total", "counter", "Puts that waited for hosts.", _fleet(lambda f: [({}, float(f.waits))])
    ),
    Metric(
        "dlbf_fleet_waited_seconds_total",
        "counter",
        "How long puts waited for hosts.",
        _fleet(lambda f: [({}, f.waited_seconds)]),
    ),
    Metric(
        "dlbf_fleet_waited_for_seconds_total",
        "counter",
        "How long puts waited, by the host they waited for.",
        _fleet(lambda f: _by_host(f.waited_for)),
    ),
    Metric(
        "dlbf_fleet_lapsed_total",
        "counter",
        "Leases that this host took away because they stood still, by their host.",
        _fleet(lambda f: _by_host(f.lapsed)),
    ),
)


class Collector:
    """The figures of some stores and guards, taken anew whenever they are asked for; see ``collector``.

    A store that cannot tell (it was closed) is left out, and counted in ``dlbf_silent``.
    """

    def __init__(self, stores: tuple[Told, ...], labels: dict[str, str]) -> None:
        self._stores = stores
        self._labels = labels

    def _told(self) -> Iterator[tuple[dict[str, str], "Stats"]]:
        for store in self._stores:
            try:
                stats = store.stats()
            except DlbfError:
                continue
            yield {"store": os.fspath(store.path), **self._labels}, stats

    def figures(self) -> list[tuple[Metric, list[tuple[dict[str, str], float]]]]:
        """Every metric with its figures, in the order of ``METRICS``."""
        told = list(self._told())
        silent = Metric("dlbf_silent", "gauge", "Stores that could not tell their figures.", lambda _: [])
        rows = [
            (metric, [(labels | more, value) for labels, stats in told for more, value in metric.read(stats)])
            for metric in METRICS
        ]
        return [*rows, (silent, [(dict(self._labels), float(len(self._stores) - len(told)))])]

    def text(self) -> str:
        """Prometheus' text format, to be served as ``CONTENT_TYPE``."""
        lines = []
        for metric, figures in self.figures():
            if figures:
                lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
                lines += [f"{metric.name}{_in_braces(labels)} {_number(value)}" for labels, value in figures]
        return "\n".join(lines) + "\n"

    def collect(self) -> Iterator[object]:
        """For ``prometheus_client``, whose registry calls this."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric, figures in self.figures():
            if not figures:
                continue
            names = sorted({name for labels, _ in figures for name in labels})
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=names)
            for labels, value in figures:
                family.add_metric([labels.get(name, "") for name in names], value)
            yield family


def collector(*stores: Told, **labels: str) -> Collector:
    """What gives the figures of stores and guards to Prometheus.

    Parameters
    ----------
    *stores : Store or Guard
        They must stay open as long as this is asked.
    **labels : str
        Put beside ``store``, the path, on every figure.

    Returns
    -------
    Collector
        Register it with ``prometheus_client.REGISTRY.register(...)``, or serve its ``text()``.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store[b"key"] = b"value"
    ...     store.get(b"absent")
    ...     text = collector(store, service="shop").text()
    >>> [line.split()[-1] for line in text.splitlines() if line.startswith("dlbf_filtered_total")]
    ['1']
    """
    for store in stores:
        if not callable(getattr(store, "stats", None)):
            raise TypeError(f"expected stores or guards, found a {type(store).__name__}")
    for name, value in labels.items():
        if name in OWN_LABELS or not isinstance(value, str):
            raise ValueError(f"expected labels of text, and none of {', '.join(OWN_LABELS)}; found {name}={value!r}")
    return Collector(stores, labels)


def observe(meter: "Meter", *stores: Told, **labels: str) -> None:
    """Give the same figures to OpenTelemetry, by the same names.

    Parameters
    ----------
    meter : opentelemetry.metrics.Meter
    *stores, **labels
        As for ``collector``.

    Examples
    --------
    ::

        from opentelemetry import metrics
        dlbf.metrics.observe(metrics.get_meter("shop"), store)
    """
    from opentelemetry.metrics import Observation

    source = collector(*stores, **labels)

    def callback(metric: Metric) -> Callable[["CallbackOptions"], list["Observation"]]:
        def tell(options: "CallbackOptions") -> list["Observation"]:
            return [
                Observation(value, base | more) for base, stats in source._told() for more, value in metric.read(stats)
            ]

        return tell

    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(metric.name, callbacks=[callback(metric)], description=metric.help)


def _in_braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
