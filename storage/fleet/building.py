"""Make the next generation, or a checkpoint of the present one."""

from dlbf.storage.fleet.asking import LOOK_LIMIT, ask, outbid, settle
from dlbf.storage.fleet.commands import LogBegin, LogCheckpoint, LogEnd, LogLook, LogPutChunk, LogTrim
from dlbf.storage.fleet.host import EpochChanged, Gap, Generation, Host, identities_of
from dlbf.storage.fleet.messages import (
    Build,
    Identities,
    Operation,
    Pause,
    RaiseFences,
    Scan,
    array,
    epoch_mark,
    fence_number,
    foreign,
    pairs,
    text,
    whole,
)
from dlbf.storage.fleet.reading import checksum
from dlbf.storage.fleet.records import Add, Begin, End, decode, encode

__all__ = ["checkpoint", "rebuild"]


def rebuild(host: Host, build: Build) -> Operation[Generation | None]:
    """Make a generation from a scan of all keys.

    None if it is void: a data server or the layout changed meanwhile, or a newer generation is there.  Every host loads
    what the first builder finishes; several may work at once.

    Raises
    ------
    Gap, EpochChanged, Lost
        It was in vain; begin another.
    """
    yield from settle(host)
    epoch = host.epoch
    if not host.settings.exact:
        # Puts of the epoch before, of which this one knows nothing, are stored by then or announced again.
        yield Pause(host.epoch_seen + host.settings.grace + host.settings.put_limit)
    # Before the log confirms the epoch: see _mend in writing.py.
    servers = yield Identities()
    places = tuple(text(one) for one in array(servers.raw)[1:])
    reply = yield from ask(host, LogBegin(epoch, encode(Begin(places), epoch_mark(epoch))))
    if not reply.granted:
        raise EpochChanged("the epoch is not settled")
    number = whole(reply.rest[1])
    build.start(number, [key for _, data in pairs(reply.rest[2]) for key in _keys(data)])
    if host.settings.fenced:
        yield from _raise(host, epoch, identities_of(places))
    yield Scan(build)
    again = yield Identities()
    if again.raw != servers.raw:
        return None
    position = yield from _catch_up(host, build, epoch, number)
    upload, meta = yield from _upload(host, epoch, *build.finish())
    record = encode(End(number, places), epoch_mark(epoch))
    reply = yield from ask(host, LogEnd(epoch, number, position, upload, meta, record))
    if not reply.granted and reply.generation < number:
        raise Gap(f"the log knows of no beginning of generation {number}, or was trimmed after record {position}")
    host.rebuild_due = ""
    return Generation(number, places) if reply.generation == number else None


def _keys(data: bytes) -> tuple[bytes, ...]:
    record = decode(data)[1]
    return record.keys if isinstance(record, Add) else ()


def _raise(host: Host, epoch: bytes, identities: tuple[bytes, ...]) -> Operation[None]:
    """Refuse every put of an older epoch from here on: its add is not in this log."""
    answer = yield RaiseFences(epoch, identities)
    refused = text(answer.raw)
    if refused:
        if foreign(refused, epoch):
            yield from outbid(host, fence_number(refused))
        raise EpochChanged(f"a fence is at {refused!r}")


def _catch_up(host: Host, build: Build, epoch: bytes, position: int) -> Operation[int]:
    """Take in what was announced since the beginning; up to where."""
    while True:
        reply = yield from ask(host, LogLook(epoch, position, LOOK_LIMIT))
        before = position
        for where, data in pairs(reply.rest[6]):
            if where != position + 1:
                raise Gap(f"the log was trimmed up to {where} during a rebuild that needs {position + 1}")
            build.added(_keys(data))
            position = where
        if position >= reply.head:
            return position
        if position == before:
            raise Gap(f"the log was trimmed during a rebuild that needs record {position + 1}")


def _upload(host: Host, epoch: bytes, meta: bytes, chunks: list[bytes]) -> Operation[tuple[bytes, bytes]]:
    upload = host.next_upload()
    for number, data in enumerate(chunks):
        yield from ask(host, LogPutChunk(epoch, upload, number, data, checksum(data)))
    return upload, meta


def checkpoint(host: Host) -> Operation[bool]:
    """Store what this host's copy has become, and trim the log up to there; False if there is nothing to store."""
    copy = host.copy
    if copy is None or copy.newest.number != copy.generation.number:
        return False
    position = copy.position
    meta, chunks = copy.replica.save()
    upload, meta = yield from _upload(host, copy.epoch, meta, chunks)
    reply = yield from ask(host, LogCheckpoint(copy.epoch, copy.generation.number, position, upload, meta))
    if not reply.granted:
        return False
    # Readers that are behind would have to load again.
    yield from ask(host, LogTrim(copy.epoch, min(position, reply.floor)))
    return True
