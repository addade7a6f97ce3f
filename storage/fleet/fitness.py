"""Whether servers can do what the protocol asks of them: found out when a guard is opened, not at the first put."""

from collections.abc import Callable

from dlbf.errors import StoreError
from dlbf.storage.fleet.commands import LogLook
from dlbf.storage.fleet.data import Data
from dlbf.storage.fleet.messages import FleetError
from dlbf.storage.fleet.servers import LogServer

__all__ = ["refuse_unfit"]

# What a server says of a command that it does not know, or that this user may not give, and of a wrong password.  While
# it is loading or failing over it says other things.
FOR_GOOD = ("ERR", "NOPERM", "WRONGPASS", "NOAUTH", "ResponseError", "AuthenticationError")


def refuse_unfit(server: LogServer, data: Data) -> None:
    """StoreError if a server refuses the functions that it is asked for, or would forget the log.

    One that does not answer is none of that: it may be failing over.
    """
    if policy := server.evicts():
        raise StoreError(
            f"the log's server has maxmemory-policy {policy}: it would forget leases and records when memory is short; "
            "set noeviction, or a volatile policy"
        )
    asks: list[tuple[str, Callable[[], object]]] = [
        ("log's", lambda: server.call(LogLook(b"", 0, 0))),
        ("engine's", data.identities),
    ]
    for what, ask in asks:
        try:
            ask()
        except FleetError as error:
            if str(error).startswith(FOR_GOOD):
                raise StoreError(
                    f"the {what} server refuses the functions of guards of many hosts: expected Valkey or Redis 7 or "
                    f"newer, and a user who may call FUNCTION and FCALL, found: {error}"
                ) from error
