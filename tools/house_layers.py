"""The layers of the package: who may import whom, lazily and for types too."""

from collections.abc import Iterator
from dataclasses import dataclass

from house_modules import Import, Module

__all__ = ["APART", "LAYERS", "Apart", "Layer", "forbidden", "is_below", "layer_of"]


@dataclass(frozen=True)
class Layer:
    """Modules, by the beginnings of their names, and the layers whose modules they may import besides their own."""

    modules: tuple[str, ...]
    may_import: tuple[str, ...]


# From the ground up: a layer names only layers that are listed before it.  Of several beginnings the longest decides.
LAYERS = {
    "ground": Layer(
        ("dlbf.errors", "dlbf.typenames", "dlbf.plain", "dlbf.notebook", "dlbf._version", "dlbf.datasets"), ()
    ),
    "geometry": Layer(("dlbf.geometry",), ()),
    "kernels": Layer(("dlbf.kernels", "dlbf.capi"), ("ground",)),
    "format": Layer(("dlbf.format",), ("ground", "kernels")),
    "filters": Layer(("dlbf.filters",), ("ground", "geometry", "kernels", "format")),
    "theory": Layer(("dlbf.theory",), ("ground", "geometry", "filters")),
    "models": Layer(("dlbf.models",), ("ground", "kernels", "format", "theory")),
    "learned": Layer(("dlbf.learned",), ("ground", "geometry", "kernels", "format", "filters", "theory", "models")),
    "sharded": Layer(
        ("dlbf.sharded",), ("ground", "kernels", "format", "filters", "theory", "models", "learned")
    ),
    "build": Layer(
        ("dlbf.build",), ("ground", "kernels", "format", "filters", "theory", "models", "learned", "sharded")
    ),
    "storage": Layer(
        ("dlbf.storage",),
        (
            "ground", "geometry", "kernels", "format", "filters", "theory", "models", "learned",
            "sharded", "build",  # a rebuild that others scan for
        ),
    ),
    "metrics": Layer(("dlbf.metrics",), ("ground", "storage")),
    "adversary": Layer(
        ("dlbf.adversary",), ("ground", "geometry", "kernels", "format", "filters", "theory", "models", "learned")
    ),
    "figures": Layer(("dlbf.figures",), ("ground", "filters", "theory", "models", "learned", "adversary")),
    # ``import dlbf``: what users see.  Nothing below may ask it for anything.
    "door": Layer(
        ("dlbf",), ("ground", "kernels", "filters", "theory", "models", "learned", "storage", "sharded", "build")
    ),
    "bench": Layer(
        ("dlbf.bench",),
        (
            "ground", "kernels", "filters", "theory", "models", "learned", "storage", "adversary", "figures", "door",
            "sharded", "build",
        ),
    ),
    "report": Layer(
        ("dlbf.report",), ("ground", "kernels", "filters", "theory", "models", "learned", "storage", "door", "bench")
    ),
    "cli": Layer(
        ("dlbf.cli", "dlbf.__main__"),
        (
            "ground", "kernels", "format", "filters", "theory", "models",
            "learned", "storage", "adversary", "figures", "door", "bench", "report", "metrics",
            "sharded", "build",
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Apart:
    """Modules that must not even lead to others, over however many imports."""

    modules: tuple[str, ...]
    never: tuple[str, ...]
    why: str


APART = (
    Apart(
        ("dlbf.storage.store",),
        ("dlbf.storage.guard", "dlbf.storage.guarding", "dlbf.storage.engines"),
        "a store knows no guard and no other engine",
    ),
    Apart(
        ("dlbf.storage.guard",),
        ("dlbf.storage.store", "dlbf.storage.lmdbsource"),
        "a guard is no store, and its data are not in LMDB",
    ),
    Apart(
        ("dlbf.storage.ledger", "dlbf.kernels.ledger"),
        ("dlbf.storage.source", "dlbf.storage.lmdbsource", "dlbf.storage.enginesource", "dlbf.storage.traffic"),
        "a ledger does not know where the data are, nor who asks",
    ),
    Apart(
        ("dlbf.storage.source",),
        ("dlbf.storage.ledger", "dlbf.storage.generations", "dlbf.kernels.ledger"),
        "a source knows no filters",
    ),
    Apart(
        ("dlbf.storage.log",),
        ("dlbf.storage.ledger", "dlbf.storage.generations", "dlbf.storage.lmdblog", "dlbf.storage.environment"),
        "the protocol of a log knows no filters and no LMDB",
    ),
    Apart(
        ("dlbf.kernels.traffic",),
        ("dlbf.kernels.ledger", "dlbf.kernels.lmdblog", "dlbf.kernels.lookup"),
        "counters of traffic know no store",
    ),
)


def is_below(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning}.")


def layer_of(name: str) -> str | None:
    """The layer of a module; None if there is none, which for the package's own is an error."""
    fitting = [
        (beginning, title)
        for title, layer in LAYERS.items()
        for beginning in layer.modules
        # The package itself is a layer; it does not take in every module that has no other.
        if (name == beginning if beginning == "dlbf" else is_below(name, beginning))
    ]
    return max(fitting, key=lambda found: len(found[0]))[1] if fitting else None


def forbidden(modules: dict[str, Module]) -> Iterator[tuple[str, Import, str]]:
    """Imports against the layers: the module that imports, the import, and which rule it breaks."""
    for name, module in modules.items():
        if not is_below(name, "dlbf"):
            continue  # tests and tools may import everything
        layer = layer_of(name)
        for edge in module.imports:
            target = layer_of(edge.target)
            if layer is None or target is None:
                missing = name if layer is None else edge.target
                yield name, edge, f"{missing} has no layer; add it in tools/house_layers.py"
            elif target != layer and target not in LAYERS[layer].may_import:
                yield name, edge, f"{layer} may not import {target}"
    for rule in APART:
        for name in modules:
            if any(is_below(name, start) for start in rule.modules):
                yield from leading(modules, name, rule)


def leading(modules: dict[str, Module], start: str, rule: Apart) -> Iterator[tuple[str, Import, str]]:
    """The last imports of the ways that lead from ``start`` to a module of which it should know nothing."""
    seen = {start}
    todo = [start]
    while todo:
        name = todo.pop()
        for edge in modules[name].imports:
            if any(is_below(edge.target, never) for never in rule.never):
                yield name, edge, f"{start} leads to it, but {rule.why}"
            elif edge.target not in seen:
                seen.add(edge.target)
                todo.append(edge.target)
