"""Put and delete: announce, wait until every reader knows, store once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from dlbf.storage.fleet.asking import ask, learn_epoch, outbid, settle
from dlbf.storage.fleet.commands import (
    DataDelete,
    DataPut,
    DataReplace,
    LogAdd,
    LogDone,
    LogLeases,
    LogRemove,
    LogRevoke,
    RaiseFence,
)
from dlbf.storage.fleet.host import EpochChanged, Generation, Host
from dlbf.storage.fleet.messages import (
    Answer,
    Batch,
    FleetError,
    LeaseRow,
    LogReply,
    Lost,
    Operation,
    Pause,
    Raw,
    array,
    epoch_mark,
    fence_number,
    foreign,
    lease_rows,
    text,
    whole,
)
from dlbf.storage.fleet.records import MAX_KEYS, Add, Done, Remove, encode

__all__ = ["delete", "delete_many", "flush", "put", "put_many"]


@dataclass(frozen=True, slots=True)
class Announced:
    """An add that every reader knows of, and the generation seen when it was logged."""

    epoch: bytes
    position: int
    generation: Generation | None
    sent: int


def put(host: Host, key: bytes, value: bytes, px: int = 0) -> Operation[bool]:
    """Store one value; whether the key was there before.

    Parameters
    ----------
    px
        Milliseconds until the engine forgets it; 0 for never.

    Raises
    ------
    Lost
        If the last attempt had no answer: the value may be stored, or may be later.
    FleetError
        If the log's epoch or the data servers changed at every attempt.
    """
    existed = yield from put_many(host, [(key, value)], px)
    return existed == 1


def put_many(host: Host, items: Iterable[tuple[bytes, bytes]], px: int = 0) -> Operation[int]:
    """Store values; how many of the keys were there before.  Up to 8,192 keys are announced together.

    A key may be among ``items`` once in each 8,192; later ones of the same key win.
    """
    existed = 0
    source = iter(items)
    while part := dict(islice(source, MAX_KEYS)):
        existed += yield from _put_part(host, part, px)
    return existed


def _put_part(host: Host, part: dict[bytes, bytes], px: int) -> Operation[int]:
    """Overwrite what exists without a word; announce the rest and store it."""
    replaced = yield from _replace(host, part, px)
    todo = {key: value for key, value in part.items() if key not in replaced}
    existed = len(replaced)
    trouble: FleetError = FleetError(f"nothing was tried: tries is {host.settings.tries}")
    for _ in range(host.settings.tries):
        if not todo:
            break
        try:
            announced = yield from _announce(host, tuple(todo))
            stored, overwrote = yield from _store(host, announced, todo, px)
        except (EpochChanged, Lost) as error:
            trouble = error
            continue
        existed += overwrote
        todo = {key: value for key, value in todo.items() if key not in stored}
        trouble = FleetError(f"{len(todo)} of {len(part)} keys were not stored: no answer, or fences refused them")
    if todo:
        raise trouble
    return existed


def _replace(host: Host, part: dict[bytes, bytes], px: int) -> Operation[set[bytes]]:
    """Overwrite keys that the filter does not deny, where what exists is known to everybody; those that did exist."""
    generation = host.replaceable()
    keys = [key for key in part if host.maybe(key)] if generation else []
    if generation is None or not keys:
        return set()
    answer = yield Batch(tuple(DataReplace(key, part[key], px, host.servers(generation, key)) for key in keys))
    replaced = set()
    for key, one in zip(keys, answer.batch, strict=True):
        if isinstance(one, Lost):
            continue  # overwriting twice harms nobody
        existed, identity = array(one.raw)
        if whole(existed):
            replaced.add(key)
        else:
            _look_at(host, key, text(identity))
    return replaced


def _look_at(host: Host, key: bytes, identity: bytes) -> None:
    """A rebuild is due if the newest generation did not read a key's slot from the data server that has it."""
    if host.known is not None and identity not in host.servers(host.known, key):
        host.rebuild_due = "a data server was replaced, or a slot has moved"


def _announce(host: Host, keys: tuple[bytes, ...]) -> Operation[Announced]:
    """Append an add and wait until every lease has acknowledged it, or has lapsed and was revoked."""
    yield from settle(host)
    generation = host.removable()
    record = encode(Add(keys), epoch_mark(host.epoch))
    reply = yield from ask(host, LogAdd(host.epoch, host.name, record))
    position = whole(reply.rest[1])
    announced = Announced(reply.epoch, position, generation, reply.sent)
    if host.settings.strict:
        yield from _acknowledged(host, position, reply)
    return announced


def _acknowledged(host: Host, position: int, reply: LogReply) -> Operation[None]:
    """Wait until each lease but our own has acknowledged a position, or stood still for too long.

    Our own need not: every reply raises this host's head, and it answers only when its replica is as far.
    """
    epoch = reply.epoch
    rows = lease_rows(reply.rest[2])
    since: dict[tuple[bytes, int], int] = {}  # when we first knew that a lease's counter has this value
    while True:
        waiting = [row for row in rows if row.acked < position and not host.owns(row.name)]
        if not waiting:
            return
        # Counted from receiving: the counter may have been raised at any time before.
        since = {(row.name, row.counter): since.get((row.name, row.counter), reply.received) for row in waiting}
        lapses = {row: since[row.name, row.counter] + _lapse(host, row) for row in waiting}
        lapsed = [row for row, when in lapses.items() if when <= reply.received]
        for row in lapsed:
            yield from ask(host, LogRevoke(epoch, row.name, row.counter))
        if not lapsed:
            answer = yield Pause(min(lapses.values()), wake=position)
            host.blame((row.name for row in waiting), answer.received - answer.sent)
            if answer.raw == epoch:
                return
        reply = yield from ask(host, LogLeases(epoch))
        rows = lease_rows(reply.rest[1])


def _lapse(host: Host, row: LeaseRow) -> int:
    """How long a lease's counter must stand still before the lease counts as lapsed."""
    return row.ttl_ns + host.settings.margin


def _store(host: Host, announced: Announced, items: dict[bytes, bytes], px: int) -> Operation[tuple[set[bytes], int]]:
    """Store what was announced, each key once; keys that were stored, and how many of them existed."""
    epoch = announced.epoch
    answer = yield Batch(tuple(DataPut(key, value, epoch, px) for key, value in items.items()))
    stored: set[bytes] = set()
    overwrote: list[bytes] = []
    refused: list[tuple[bytes, bytes]] = []
    generation = announced.generation
    certain = True
    n_existed = 0
    for key, one in zip(items, answer.batch, strict=True):
        if isinstance(one, Lost):
            certain = False  # it may still arrive: its add stays open for ever
            continue
        done, existed, identity, _ = array(one.raw)
        if not whole(done):
            refused.append((key, text(identity)))
            continue
        if not host.settings.exact and one.received - announced.sent > host.settings.put_limit:
            continue  # a scan may have been before it, and not know of the add
        stored.add(key)
        n_existed += whole(existed)
        _look_at(host, key, text(identity))
        if whole(existed) and generation is not None and text(identity) in host.servers(generation, key):
            overwrote.append(key)
    if certain and host.epoch == epoch:
        host.finished.append(announced.position)
    yield from _take_back(host, epoch, generation, overwrote)
    yield from _mend(host, epoch, refused)
    return stored, n_existed


def _mend(host: Host, epoch: bytes, refused: Sequence[tuple[bytes, bytes]]) -> Operation[None]:
    """Raise fences that are lower than our epoch, or whose server was replaced; begin a newer epoch if one is higher.

    The log is asked first: only who knew of a server *before* an epoch was confirmed may raise that server's fence
    to it.  So nobody who slept through the beginning of an epoch can lower the fences of servers promoted since.
    """
    if not refused:
        return
    yield from ask(host, LogLeases(epoch))
    answer = yield Batch(tuple(RaiseFence(key, epoch, identity) for key, identity in refused))
    for one in answer.batch:
        if not isinstance(one, Lost):
            raised, fence = array(one.raw)
            if not whole(raised) and foreign(text(fence), epoch):
                yield from outbid(host, fence_number(text(fence)))


def _take_back(host: Host, epoch: bytes, generation: Generation | None, keys: Sequence[bytes]) -> Operation[None]:
    """Log that entries of keys are one too many in a generation, once: if no answer comes, they stay."""
    if generation is None:
        return
    for start in range(0, len(keys), MAX_KEYS):
        part = tuple(keys[start : start + MAX_KEYS])
        record = encode(Remove(generation.number, part), epoch_mark(epoch))
        try:
            yield from ask(host, LogRemove(epoch, generation.number, record))
        except (Lost, EpochChanged):
            return


def delete(host: Host, key: bytes) -> Operation[bool]:
    """Delete one key; whether it was there.

    Raises
    ------
    Lost
        If no answer came: it may be deleted, or may be later.  It may be tried again.
    """
    return (yield from delete_many(host, [key])) == 1


def delete_many(host: Host, keys: Iterable[bytes]) -> Operation[int]:
    """Delete keys; how many of them were there."""
    deleted = 0
    source = iter(keys)
    while part := tuple(dict.fromkeys(islice(source, MAX_KEYS))):
        yield from learn_epoch(host)
        epoch = host.epoch
        generation = host.removable()  # noted before, so that the generation counted what is deleted
        answer = yield Batch(tuple(DataDelete(key) for key in part))
        gone = []
        lost: Lost | None = None
        for key, one in zip(part, answer.batch, strict=True):
            if isinstance(one, Lost):
                lost = one
            elif _counted(host, generation, key, one):
                gone.append(key)
            deleted += not isinstance(one, Lost) and whole(array(one.raw)[0])
        yield from _take_back(host, epoch, generation, gone)
        if lost is not None:
            raise lost
    return deleted


def _counted(host: Host, generation: Generation | None, key: bytes, answer: Answer) -> bool:
    """Whether a deletion took away a key that the generation counted."""
    raw: list[Raw] = array(answer.raw)
    identity = text(raw[1])
    _look_at(host, key, identity)
    return bool(whole(raw[0])) and generation is not None and identity in host.servers(generation, key)


def flush(host: Host) -> Operation[None]:
    """Report adds that are done.  `renew` does the same on its way; this is for hosts without a lease."""
    while host.finished:
        done = tuple(host.finished[:MAX_KEYS])
        yield from ask(host, LogDone(host.epoch, encode(Done(done), epoch_mark(host.epoch)), done))
        host.finished = [one for one in host.finished if one not in done]
