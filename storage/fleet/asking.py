"""How an operation asks the log, and what it does when the log's epoch is not the host's."""

from dlbf.storage.fleet.commands import LogCommand, LogLook, LogNewEpoch, LogSettle
from dlbf.storage.fleet.host import EpochChanged, Host
from dlbf.storage.fleet.messages import LogReply, Operation, Pause, epoch_number

__all__ = ["LOOK_LIMIT", "ask", "learn_epoch", "outbid", "settle"]

LOOK_LIMIT = 512  # records in one reply


def ask(host: Host, command: LogCommand) -> Operation[LogReply]:
    """One command to the log.

    Raises
    ------
    EpochChanged
        If it was not done because the log's epoch is another one.
    Lost
        If no reply came.
    """
    answer = yield command
    reply = LogReply(answer)
    try:
        host.heard(reply)
    except EpochChanged:
        since = host.older_since
        if since and reply.received - since >= host.settings.grace:
            # No late reply and no old primary speaks for that long: the log lost its epoch.
            host.older_since = 0
            yield from outbid(host, epoch_number(host.epoch), reply.epoch)
        raise
    if not reply.rest:  # another operation of this host has seen the new epoch before
        raise EpochChanged(f"the log is in the epoch {reply.epoch!r}")
    return reply


def outbid(host: Host, number: int, epoch: bytes = b"") -> Operation[None]:
    """Have the log begin an epoch with a higher number than one that was seen elsewhere."""
    answer = yield LogNewEpoch(epoch or host.epoch, number + 1)
    host.heard(LogReply(answer))


def learn_epoch(host: Host) -> Operation[None]:
    """Make sure that the host knows an epoch."""
    while not host.epoch:
        try:
            yield from ask(host, LogLook(b"", 0, 0))
        except EpochChanged:
            continue


def settle(host: Host) -> Operation[None]:
    """Wait until no lease and no primary of an older epoch can be valid.

    That takes `Settings.grace` from the first reply of an epoch that this host got.  The log is asked again afterwards:
    what still answers then is no primary that was replaced before.
    """
    yield from learn_epoch(host)
    while not host.settled:
        epoch = host.epoch
        yield Pause(host.epoch_seen + host.settings.grace)
        if host.epoch == epoch:  # another operation of this host may have seen the next one meanwhile
            yield from ask(host, LogSettle(epoch))
