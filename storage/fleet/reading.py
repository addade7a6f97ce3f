"""Load a generation, hold a lease, follow the log."""

import zlib

from dlbf.storage.fleet.asking import LOOK_LIMIT, ask, learn_epoch
from dlbf.storage.fleet.commands import LogChunk, LogHello, LogLook, LogRenew
from dlbf.storage.fleet.host import Copy, Gap, Generation, Host
from dlbf.storage.fleet.messages import FleetError, LogReply, Operation, epoch_mark, pairs, text, whole
from dlbf.storage.fleet.records import Add, Begin, Done, decode, encode

__all__ = ["catch_up", "checksum", "hello", "load", "renew"]

DONE_LIMIT = 512  # adds reported as done in one renewal


def checksum(data: bytes) -> bytes:
    """What is kept beside a chunk."""
    return b"%08x" % zlib.crc32(data)


def load(host: Host) -> Operation[bool]:
    """Fetch the newest generation and the records after it, and answer from it; False if there is none.

    The copy that answers meanwhile goes on doing so.

    Raises
    ------
    Gap, EpochChanged, Lost
        Try again.
    """
    yield from learn_epoch(host)
    reply = yield from ask(host, LogLook(host.epoch, 0, 0))
    upload, position, meta, begun, adds = reply.rest[1:6]
    if not reply.generation:
        return False
    begin = decode(text(begun))[1]
    assert isinstance(begin, Begin)
    generation = Generation(reply.generation, begin.identities)
    chunks = []
    for number in range(host.replicas.count(text(meta))):
        chunks.append((yield from _chunk(host, reply.epoch, text(upload), number)))
    replica = host.replicas.load(generation.number, whole(position), text(meta), chunks)
    copy = Copy(reply.epoch, generation, whole(position), replica)
    for where, data in pairs(adds):
        add = decode(data)[1]
        assert isinstance(add, Add)
        copy.open[where] = add.keys
    while copy.position < max(reply.head, host.copy.position if host.copy else 0):
        following = copy.position + 1
        reply = yield from ask(host, LogLook(copy.epoch, copy.position, LOOK_LIMIT))
        found = list(pairs(reply.rest[6]))
        if following <= reply.head and (not found or found[0][0] != following):
            yield from _missing(
                host, copy.epoch, text(upload), f"record {following} of {reply.head} in the log is lost"
            )
        copy.follow(found)
    if host.epoch == copy.epoch:
        host.adopt(copy)
    return host.copy is copy


def _chunk(host: Host, epoch: bytes, upload: bytes, number: int) -> Operation[bytes]:
    """A part of a filter; `Gap` if it is not there, or is not what was stored."""
    reply = yield from ask(host, LogChunk(epoch, upload, number))
    if not reply.granted or checksum(text(reply.rest[1])) != text(reply.rest[2]):
        yield from _missing(host, epoch, upload, f"chunk {number} of the filter on the log's server is damaged")
    return text(reply.rest[1])


def _missing(host: Host, epoch: bytes, upload: bytes, what: str) -> Operation[None]:
    """Raise `Gap`: something is gone that a load needs.

    Unless the filter was replaced meanwhile, and the log trimmed, nobody can load it: a rebuild is due.
    """
    reply = yield from ask(host, LogLook(epoch, 0, 0))
    if text(reply.rest[1]) != upload:
        raise Gap("the filter was replaced while it was being loaded")
    host.rebuild_due = what
    raise Gap(what)


def hello(host: Host) -> Operation[None]:
    """Register a lease and read the head of the log, in one step, from where this host's copy is.

    Raises
    ------
    FleetError
        If the leases of other hosts last another time.
    """
    copy = host.copy
    if copy is None:
        return
    lease = host.next_lease()
    ttl_ms = host.settings.ttl // 1_000_000
    command = LogHello(copy.epoch, lease, host.label, ttl_ms, copy.position, LOOK_LIMIT)
    reply = yield from ask(host, command)
    if not reply.granted and whole(reply.rest[1]) != ttl_ms:
        raise FleetError(
            f"leases of this log last {whole(reply.rest[1])} ms, but this host was given {ttl_ms} ms; "
            "give every host the same lease_seconds"
        )
    if reply.granted:
        host.lease = lease
        _granted(host, reply)


def _granted(host: Host, reply: LogReply) -> None:
    host.granted(reply)
    host.follow(pairs(reply.rest[1]))


def renew(host: Host, report: bool = True) -> Operation[bool]:
    """Renew the lease, follow the log to its head, and acknowledge what was applied; whether the copy still answers.

    Without a lease one is registered; without a copy nothing is done (`load` first).  With ``report`` the log is told
    which adds are done, too: a record that every host has to follow.
    """
    acked = -1
    while (copy := host.copy) is not None and acked < host.head:
        before = copy.position
        if not host.lease:
            yield from hello(host)
        else:
            yield from _renew(host, copy, report)
        acked = before
        if host.copy is copy and copy.position == before < host.head:
            host.copy = None  # the log was trimmed beyond what we have
    return host.copy is not None


def catch_up(host: Host) -> Operation[None]:
    """Follow the log up to where it is at this moment, without a word about leases."""
    copy = host.copy
    if copy is None:
        return
    head = -1
    while host.copy is copy and (head < 0 or copy.position < head):
        before = copy.position
        reply = yield from ask(host, LogLook(copy.epoch, before, LOOK_LIMIT))
        head = reply.head if head < 0 else head
        if host.copy is copy:
            host.follow(pairs(reply.rest[6]))
            if copy.position == before < head:
                host.copy = None  # the log was trimmed beyond what we have


def _renew(host: Host, copy: Copy, report: bool) -> Operation[None]:
    done = tuple(host.finished[:DONE_LIMIT]) if report else ()
    record = encode(Done(done), epoch_mark(host.epoch)) if done else b""
    lease = host.lease
    reply = yield from ask(host, LogRenew(copy.epoch, lease, copy.position, LOOK_LIMIT, done, record))
    host.finished = [one for one in host.finished if one not in done]
    if reply.granted:
        _granted(host, reply)
    elif host.lease == lease:
        yield from hello(host)
