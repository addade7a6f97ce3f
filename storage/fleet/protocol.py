"""The operations of the protocol, without input and output.

Each is a generator: it yields a `Request` and is sent an `Answer`, or `Lost` is thrown into it when no reply came.  The
rules they follow are in ``docs/fleet-protocol.md``.  A driver runs any number of operations of one `Host`, but only one
of them between two requests.
"""

from dlbf.storage.fleet.asking import ask, learn_epoch, settle
from dlbf.storage.fleet.building import checkpoint, rebuild
from dlbf.storage.fleet.reading import catch_up, hello, load, renew
from dlbf.storage.fleet.writing import delete, delete_many, flush, put, put_many

__all__ = [
    "ask",
    "catch_up",
    "checkpoint",
    "delete",
    "delete_many",
    "flush",
    "hello",
    "learn_epoch",
    "load",
    "put",
    "put_many",
    "rebuild",
    "renew",
    "settle",
]
