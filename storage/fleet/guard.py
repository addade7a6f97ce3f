"""The mapping of a host among many: reads like those of every guard, writes by the protocol of many hosts."""

import logging
import math
import os
import socket
import time
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from dlbf.errors import StoreError
from dlbf.filters.base import Filter
from dlbf.kernels.keys import read_keys
from dlbf.kernels.ledger import ABSENT, UNKNOWN
from dlbf.kernels.lookup import LookupCore, SourceCore
from dlbf.kernels.methods import own_methods
from dlbf.storage import generations
from dlbf.storage.engines import Adapter, engine_for
from dlbf.storage.engines.base import checked_ttl, keys_of
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.fleet import protocol
from dlbf.storage.fleet.data import RESERVED, Data, data_for
from dlbf.storage.fleet.figures import FleetStats
from dlbf.storage.fleet.fitness import refuse_unfit
from dlbf.storage.fleet.host import SECOND, Settings
from dlbf.storage.fleet.keeper import Keeper
from dlbf.storage.fleet.records import MAX_KEYS
from dlbf.storage.fleet.replica import Builds, FilterReplicas
from dlbf.storage.fleet.servers import LogServer
from dlbf.storage.fleet.valkeylog import ValkeyLog
from dlbf.storage.keys import MISSING, Items, Key, Value, as_items, as_key, as_value
from dlbf.storage.layout import GUARD_LOG_FILE, SECRET_FILE
from dlbf.storage.report import RebuildReport, Verification
from dlbf.storage.secret import SECRET_BYTES, make_secret, read_secret
from dlbf.storage.traffic import Traffic

__all__ = ["FleetGuard"]

T = TypeVar("T")
log = logging.getLogger("dlbf.storage")
DEFAULT_FPR = 0.01
CONSISTENCIES = ("strict", "bounded")
# More than clocks of two machines drift apart during a lease, as a share of it.
MARGIN = 0.1
LEAST_LEASE_SECONDS = 0.05
OPEN_SECONDS = 10.0  # how long opening waits for a filter that another host makes
MOST_EXAMPLES = 5


def folder_of(path: str | os.PathLike[str]) -> Path:
    """The directory of a host, made if it does not exist; refused if it is a guard's of one host."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: expected a directory for the guard, found a file; give it another path")
    if (folder / GUARD_LOG_FILE).exists():
        raise StoreError(
            f"{folder}: expected a directory without {GUARD_LOG_FILE}, found a guard's of one host; give the guard "
            "that shares a log a directory of its own"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def secret_for(folder: Path, secret: bytes | None, keyed: bool, server: LogServer, name: str) -> bytes | None:
    """The secret that all hosts share: the caller's, the directory's, or for a log without a filter a new one."""
    if secret is not None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"expected a secret of {SECRET_BYTES} bytes, found {len(secret)}")
        return secret
    if not keyed:
        return None
    found = read_secret(folder)
    if found is None and server.has_generation():
        raise StoreError(
            f"{folder}: the log {name!r} has a filter already, but this directory has no {SECRET_FILE}; copy that file "
            "from a host that has it, or give every host the same secret="
        )
    return found or make_secret(folder)


def settings_of(log: ValkeyLog, server: LogServer, data: Data, strict: bool, lease_seconds: float) -> Settings:
    """What the protocol has to know."""
    ttl = int(lease_seconds * SECOND)
    return Settings(
        ttl=ttl,
        margin=int(ttl * MARGIN),
        old_primary=log.old_primary_ns(server),
        strict=strict,
        durable=log.durable,
        fenced=data.fenced,
        replaces=data.replaces,
        tells=data.tells,
    )


class EngineReads(SourceCore):
    """Where the data are."""

    def __init__(self, engine: Adapter) -> None:
        self.engine = engine
        self.direct = engine.get

    def fetch(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self.engine.get(key)


@own_methods("get")
class FleetGuard(LookupCore, MutableMapping[bytes, bytes]):
    """A mapping of bytes to bytes in an engine that guards of many hosts read and write; see ``dlbf.storage.Guard``.

    Parameters
    ----------
    engine : object
        As for every guard; all hosts have the same.
    path : path
        A directory for the secret, which all hosts must share; nothing else is in it.
    fpr : float, optional
        Target false-positive rate of filters that this host makes, 0.01 by default.
    log : ValkeyLog
        The log; hosts that give it the same name share a filter.
    consistency : {"strict", "bounded"}
        Whether a put of a new key waits until every host knows of it.
    lease_seconds : float
        For how long a host answers without a word of the log; the same on every host.
    attach : bool
        Wait until the filter answers.
    readonly : bool
        Write nothing, and make no filter.
    secret : bytes, optional
        16 bytes, instead of those in the directory.
    keyed : bool
        False for filters that anybody can compute.
    label : str
        What operators see of this host; by default its machine and process.
    watch_foreign_writes : bool
        Have the servers of a `RedisEngine` tell of every change, and pass reads through when a key is there that no
        guard has announced, until a new filter is made.  A trip-wire, no guarantee: the key is denied before that.

    Notes
    -----
    *Guarantee*, "strict": a ``get`` on any host that begins after ``put`` of a key has returned never says that it is
    absent, unless a delete of it began.  "bounded": the same from one lease after ``put`` has returned.

    *Price*: a put of a new key waits until every host knows of it; a host that is stopped delays it by one lease at
    most.  Overwrites and reads wait for nobody.  A host that hears nothing from the log reads the engine.
    """

    def __init__(
        self,
        engine: object,
        path: str | os.PathLike[str],
        fpr: float | None = None,
        *,
        log: ValkeyLog,
        consistency: str = "strict",
        lease_seconds: float = 1.0,
        attach: bool = True,
        readonly: bool = False,
        secret: bytes | None = None,
        keyed: bool = True,
        label: str = "",
        watch_foreign_writes: bool = False,
    ) -> None:
        if consistency not in CONSISTENCIES:
            raise ValueError(f"consistency must be one of {', '.join(CONSISTENCIES)}, found {consistency!r}")
        if not lease_seconds >= LEAST_LEASE_SECONDS:
            raise ValueError(f"expected lease_seconds of at least {LEAST_LEASE_SECONDS}, found {lease_seconds!r}")
        generations.check_fpr(fpr)
        self.engine = engine_for(engine)
        if watch_foreign_writes and not isinstance(self.engine, RedisEngine):
            raise StoreError(
                f"watch_foreign_writes needs a RedisEngine, whose servers tell of changes, found a "
                f"{type(self.engine).__name__}; leave it out"
            )
        self.path = folder_of(path)
        self.readonly = readonly
        self._fpr = DEFAULT_FPR if fpr is None else fpr
        server = log.server(lease_seconds)
        data = data_for(self.engine, log.name)
        refuse_unfit(server, data)
        secret = secret_for(self.path, secret, keyed, server, log.name)
        settings = settings_of(log, server, data, consistency == "strict", lease_seconds)
        if isinstance(self.engine, RedisEngine):
            self.engine.claim(b"fleet:" + log.name.encode(), f"hosts that share the log {log.name}", not readonly)
        where = f"{self.path} (log {log.name})"
        self._pid = os.getpid()
        self._closed = False
        label = label or f"{socket.gethostname()}:{self._pid}"
        builds = Builds(self._fpr, secret)
        self._keeper = Keeper(server, data, settings, FilterReplicas(secret, where), builds, label, where, readonly)
        traffic = self._keeper.traffic = Traffic(0, lambda: None, lambda: False)
        self._wire(self._keeper.ledger, traffic, EngineReads(self.engine))
        self._finalizer = weakref.finalize(self, self._keeper.stop)
        self._keeper.start()
        try:
            if watch_foreign_writes:
                self._keeper.trust.watch(OPEN_SECONDS)
            if attach:
                self._keeper.wait_until_answering(settings.grace / 1e9 + OPEN_SECONDS)
        except BaseException:
            self.close()
            raise

    # --- reading

    def _check(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the guard is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.path}: opened before fork() and used in the child, which has no lease; open it after the fork "
                "in both, or start the child with spawn"
            )

    def _check_write(self) -> None:
        self._check()
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; open it again to write")

    def _look_up_slowly(self, key: Key, default: T) -> bytes | T:
        """Every lookup that is not the common one: see ``dlbf.kernels.lookup.LookupCore``."""
        self._check()
        wanted = as_key(key)
        traffic = self.traffic
        traffic.count(lookups=1)
        answer = self.ledger.ask(wanted)
        if answer == ABSENT:
            traffic.count(filtered=1)
            return default
        value = self.engine.get(wanted)
        if answer == UNKNOWN:
            traffic.count(unfiltered=1)
        elif value is None:
            traffic.count(false_positives=1)
        return default if value is None else value

    def _maybe(self, keys: list[bytes]) -> npt.NDArray[np.bool_] | None:
        """What the filter says about many keys; None if it may not be asked."""
        ledger = self.ledger
        if not ledger.is_current():
            return None
        epoch, filter = ledger.epoch, self._filter()
        answers = None if filter is None else filter.contains_many(keys)
        # It may have changed while it was asked.
        return answers if ledger.epoch == epoch else None

    @overload
    def get_many(self, keys: Iterable[Key]) -> list[bytes | None]: ...
    @overload
    def get_many(self, keys: Iterable[Key], default: T) -> list[bytes | T]: ...
    def get_many(self, keys: Iterable[Key], default: object = None) -> list[bytes | T] | list[bytes | None]:
        """The values of many keys, ``default`` for those that are not there."""
        wanted, asked, filtered = self._passed(keys)
        out: list[bytes | T] = [default] * len(wanted)  # type: ignore[list-item]
        values = self.engine.get_many([wanted[i] for i in asked]) if asked else []
        if filtered:
            self.traffic.count(false_positives=sum(value is None for value in values))
        for i, value in zip(asked, values, strict=True):
            if value is not None:
                out[i] = value
        return out

    def contains_many(self, keys: Iterable[Key]) -> npt.NDArray[np.bool_]:
        """Which of many keys are there; certain, unlike a filter's answers."""
        wanted, asked, filtered = self._passed(keys)
        out = np.zeros(len(wanted), dtype=np.bool_)
        if asked:
            out[asked] = self.engine.has_many([wanted[i] for i in asked])
        if filtered:
            self.traffic.count(false_positives=len(asked) - int(out.sum()))
        return out

    def _passed(self, keys: Iterable[Key]) -> tuple[list[bytes], list[int], bool]:
        """Keys, the places of those that the engine has to be asked for, and whether the filter was asked."""
        self._check()
        wanted = read_keys(keys)
        answers = self._maybe(wanted)
        asked = list(range(len(wanted))) if answers is None else answers.nonzero()[0].tolist()
        if answers is None:
            self.traffic.count(lookups=len(wanted), unfiltered=len(wanted))
        else:
            self.traffic.count(lookups=len(wanted), filtered=len(wanted) - len(asked))
        return wanted, asked, answers is not None

    def __iter__(self) -> Iterator[bytes]:
        self._check()
        prefix = self.engine.prefix if isinstance(self.engine, RedisEngine) else None
        seen: set[bytes] = set()
        for key in keys_of(self.engine, b""):
            if (prefix is None or not (prefix + key).startswith(RESERVED)) and key not in seen:
                if self.engine.repeats:
                    seen.add(key)
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    __hash__ = object.__hash__

    # --- writing

    def put(self, key: Key, value: Value, new: bool = False, ttl: float | None = None) -> None:
        """Store a value; when this returns every host knows of the key, or has no lease ("strict").

        Parameters
        ----------
        key : key
        value : buffer
        new : bool
            Makes no difference here.
        ttl : float, optional
            Seconds after which the engine deletes the key by itself.

        Raises
        ------
        FleetError
            If the log or the data server did not answer: the value may be stored, or may be later.
        """
        self._check_write()
        px = 0 if ttl is None else math.ceil(checked_ttl(self.engine, ttl) * 1000)
        self._keeper.run(protocol.put_many(self._keeper.host, [(self._own(as_key(key)), as_value(value))], px))

    def _own(self, key: bytes) -> bytes:
        if isinstance(self.engine, RedisEngine) and (self.engine.prefix + key).startswith(RESERVED):
            raise StoreError(f"keys that begin with {RESERVED!r} are reserved; use another key, or another prefix")
        return key

    def __setitem__(self, key: Key, value: Value) -> None:
        self.put(key, value)

    def update(self, other: Items = (), /, **more: bytes) -> None:
        """Store many items: up to 8,192 keys are announced together, and stored together."""
        self._check_write()
        for items in (iter(as_items(other)), iter(more.items())):
            # Taken before the protocol runs: whoever makes the items may write through this guard, too.
            while part := [(self._own(as_key(key)), as_value(value)) for key, value in islice(items, MAX_KEYS)]:
                self._keeper.run(protocol.put_many(self._keeper.host, part))

    def delete(self, key: Key) -> bool:
        """Delete a key; True if it was there."""
        return self.delete_many([key]) == 1

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Delete many keys; how many were there."""
        self._check_write()
        return self._keeper.run(protocol.delete_many(self._keeper.host, [self._own(key) for key in read_keys(keys)]))

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def pop(self, key: Key, default: object = MISSING) -> object:  # type: ignore[override]
        """Delete a key and return its value.  Another host may change it in between."""
        value = self.get(key)
        if value is not None and self.delete(key):
            return value
        if default is MISSING:
            raise KeyError(key)
        return default

    def clear(self) -> None:
        """Delete everything, in batches."""
        self.delete_many(list(self))

    # --- care

    def rebuild(self) -> RebuildReport:
        """Read all keys of the engine and make a filter for all hosts; reads and writes go on meanwhile.

        Raises
        ------
        FleetError
            If the log or the data servers changed at every attempt.
        """
        self._check_write()
        begun = time.monotonic()
        made = self._keeper.make("asked for", force=True)
        if made is None:
            raise StoreError(f"{self.path}: the guard is being closed")
        build = made[1]
        return RebuildReport(
            done=True,
            reason="asked for",
            before=None,
            after=build.figures,
            fpr_target=self._fpr,
            keys=build.n_keys,
            phases=(("rebuild", time.monotonic() - begun),),
            notes=("all hosts of the log load this filter",),
        )

    attach = rebuild

    def checkpoint(self) -> bool:
        """Store the filter on the log's server as it is now, so that new hosts have less to replay."""
        self._check_write()
        return self._keeper.checkpoint()

    def verify(self) -> Verification:
        """Ask the filter for every key of the engine; ``missing`` keys were put there behind the guards.

        Keys that other hosts store or delete meanwhile, or had just stored when the filter was made, may be counted as
        extra.
        """
        self._check()
        n_keys, n_missing, examples = 0, 0, list[bytes]()
        for key in self:
            n_keys += 1
            if self.ledger.ask(key) == ABSENT and self.engine.has(key):
                n_missing += 1
                examples = [*examples, key][:MOST_EXAMPLES]
        filter = self._filter()
        n_entries = len(filter) if filter is not None else n_keys
        problems = () if filter is not None else ("no filter answers at this moment",)
        extra = max(0, n_entries - n_keys)
        return Verification(n_keys, n_missing, extra, problems, tuple(examples))

    def snapshot(self) -> NoReturn:
        """Not for guards: only the engine could keep a moment."""
        raise StoreError("a guard has no snapshots: the data are in the engine; use the engine's own, if it has them")

    def write(self) -> NoReturn:
        """Not for guards: engine and filter share no transaction."""
        raise StoreError("a guard has no transactions: the data are in the engine; use update() and delete_many()")

    def _filter(self) -> Filter | None:
        filter: Filter | None = self.ledger.answering()  # type: ignore[assignment]
        return filter

    @property
    def state(self) -> str:
        """ "filtering", "pass-through" or "closed".  One that filters may for a moment have to follow the log first."""
        if self._closed:
            return "closed"
        return "filtering" if self._keeper.has_lease() else "pass-through"

    def stats(self) -> FleetStats:
        """Figures for operators; ``fleet`` has those of a host among many.  Who holds leases the log is asked."""
        self._check()
        figures, traffic, filter = self._keeper.figures(), self.traffic, self._filter()
        return FleetStats(
            keys=len(filter) if filter is not None else 0,
            filter_bytes=filter.nbytes if filter is not None else 0,
            lookups=traffic.n_lookups,
            filtered=traffic.n_filtered,
            false_positives=traffic.n_false_positives,
            unfiltered=traffic.n_unfiltered,
            fpr_target=self._fpr,
            state=self.state,
            reason=figures.reason,
            capacity=generations.capacity_of(filter) if filter is not None else 0,
            generation=figures.generation,
            last_txn=figures.head,
            design=generations.design_of(filter) if filter is not None else "none",
            fleet=figures,
        )

    def close(self) -> None:
        """Give the lease back and let go of the log, not of the engine.  Twice is allowed."""
        self._closed = True
        if os.getpid() == self._pid:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Guard {str(self.path)!r} of a {type(self.engine).__name__} on many hosts: {self.state}>"
