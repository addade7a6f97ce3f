"""Results between measuring and showing: how a dataclass becomes what JSON can write."""

from dataclasses import fields, is_dataclass

__all__ = ["plain"]


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
