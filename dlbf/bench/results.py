"""Results between measuring and showing: bars of stores, and how a dataclass becomes what JSON can write."""

from dataclasses import dataclass, fields, is_dataclass

__all__ = ["Bar", "plain"]


@dataclass(frozen=True)
class Bar:
    """What the project asks of a store, and what was measured."""

    store: str
    what: str
    found: float
    at_most: float

    @property
    def met(self) -> bool:
        """Whether it is no more than that."""
        return self.found <= self.at_most

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return vars(self) | {"met": self.met}


def plain(result: object) -> object:
    """A result as a dict: what its ``to_dict`` says if it has one, else its fields; for ``json.dumps(default=plain)``.

    Examples
    --------
    >>> import json
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Bar:
    ...     ratio: float
    >>> json.dumps({"bars": [Bar(1.5)]}, default=plain)
    '{"bars": [{"ratio": 1.5}]}'
    """
    to_dict = getattr(result, "to_dict", None)
    if to_dict is not None:
        return to_dict()
    if is_dataclass(result):
        return {each.name: getattr(result, each.name) for each in fields(result)}
    raise TypeError(f"expected a dataclass, found {type(result).__name__}")
