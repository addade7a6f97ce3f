"""What goes on beside reads and writes of a host: its lease is renewed, the log followed, a generation made if due."""

import logging
import os
import threading
import time
from collections.abc import Callable

from dlbf.errors import DlbfError
from dlbf.kernels.ledger import LedgerCore, Word, boottime_ns
from dlbf.kernels.traffic import TrafficCore
from dlbf.storage.fleet import protocol
from dlbf.storage.fleet.asking import LOOK_LIMIT
from dlbf.storage.fleet.commands import LogLeases, LogRevoke
from dlbf.storage.fleet.data import Data
from dlbf.storage.fleet.figures import FleetFigures
from dlbf.storage.fleet.following import Follower
from dlbf.storage.fleet.foreign import Trust
from dlbf.storage.fleet.host import EpochChanged, Gap, Generation, Host, Settings
from dlbf.storage.fleet.messages import FleetError, Lost, Operation, lease_rows
from dlbf.storage.fleet.records import may_be_awaited
from dlbf.storage.fleet.replica import FilterBuild, FilterReplica, FilterReplicas, Full
from dlbf.storage.fleet.servers import Driver, LogServer
from dlbf.storage.fleet.watching import Report, forget, tell
from dlbf.storage.layout import SECRET_FILE

__all__ = ["Keeper"]

log = logging.getLogger("dlbf.storage")

# Renewals in the time of a lease: two may be lost.
RENEWALS = 3
# Before something that failed is tried again.
RETRY_SECONDS = 0.1
# A rebuild is left to another host that began one, for so long.
BUILDER_MS = 15_000
BUILD_TRIES = 20
# A filter that is being replaced is not there for a moment; one that is not there so often was lost.
GAPS = 5
# Records after which a checkpoint spares new hosts their replay.
CHECKPOINT_RECORDS = 20_000
CLOSE_SECONDS = 10.0
# How often a host tells its figures, for operators.
REPORT_SECONDS = 1.0
LAPSED = "the lease has lapsed: the log has not answered in time, or this process was stopped"


class Keeper:
    """See the module.

    Parameters
    ----------
    log : LogServer
        The log's server.
    data : Data
        The servers that have the data.
    settings
        Of the protocol.
    replicas
        Makes filters of what travelled.
    new_build : callable
        Begins a filter.
    label : str
        What operators see of this host.
    where : str
        For messages.
    readonly : bool
        Make no generation.
    """

    def __init__(
        self,
        log: LogServer,
        data: Data,
        settings: Settings,
        replicas: FilterReplicas,
        new_build: Callable[[], FilterBuild],
        label: str,
        where: str,
        readonly: bool,
    ) -> None:
        self.host = Host(os.urandom(8).hex().encode(), settings, replicas, label.encode(), data.owner)
        self.driver = Driver(log, data, self._publish)
        self.ledger = LedgerCore()
        self.where = where
        self.problem = "the filter has not been loaded yet"
        self.refusal: DlbfError | None = None  # what no waiting will mend
        self.building = False
        self._head = bytearray(8)
        self._word = Word()
        self._word.until_ns = 1
        self._word.attach(self._head, 0, 0)
        self.ledger.watch(self._word)
        self._shown: FilterReplica | None = None
        self._new_build = new_build
        self._readonly = readonly
        self._reported = 0.0  # when, by time.monotonic()
        self.traffic: TrafficCore | None = None  # whose counters are told
        self._closing = threading.Event()
        self._wanted = threading.Event()  # look at once whether there is something to do
        self._answered = False  # whether it did when somebody last looked
        self._leases = 0  # that it had had then
        self._gaps = 0  # how often in a row the filter or records after it were not there
        self.trust = Trust(self.host, self.driver, self._distrust, where)
        self._follower = Follower(log, LOOK_LIMIT)
        self._thread = threading.Thread(target=self._keep, name="dlbf-fleet", daemon=True)
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    # --- what answers

    def _publish(self) -> None:
        """Show readers what the host knows; the driver's lock is held."""
        host = self.host
        copy = host.copy
        if copy is None or copy.epoch != host.epoch or not self.trust.has(copy):
            self._word.until_ns = 1
            if self._shown is not None:
                self._shown.core = LedgerCore()
                self._shown = None
                self.ledger.drop()
            return
        replica = copy.replica
        assert isinstance(replica, FilterReplica)
        if replica is not self._shown:
            if self._shown is not None:
                self._shown.core = LedgerCore()
            replica.hand_over(self.ledger)
            self._shown = replica
        # The head first: nothing is answered before the filter is as far.
        self._head[:] = host.head.to_bytes(8, "little")
        if self.ledger.complete_for() != copy.position:
            self.ledger.offer()
        self._word.until_ns = max(1, host.until)

    def is_answering(self) -> bool:
        """Whether "absent" may be said right now."""
        return bool(self.ledger.is_current())

    def has_lease(self) -> bool:
        """Whether there is a filter and a lease; it may be some records behind at this moment."""
        copy = self.host.copy
        return copy is not None and boottime_ns() < self.host.until and self.trust.has(copy)

    def wait_until_answering(self, seconds: float) -> bool:
        """Wait until that is so, for so long and while this host is making a generation.

        Raises
        ------
        DlbfError
            If no waiting helps.
        """
        end = time.monotonic() + seconds
        while not self.is_answering():
            if self.refusal is not None:
                raise self.refusal
            if time.monotonic() > end and not self.building:
                return False
            time.sleep(0.005)
        return True

    # --- the thread

    def _keep(self) -> None:
        seconds = self.host.settings.ttl / 1e9 / RENEWALS
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                self._renew()
                self._tell()
                self._report()
                self._follow_until(begun + seconds)
            except (EpochChanged, Gap, Lost) as error:
                self.problem = str(error)
                self._tell()
                self._gaps += isinstance(error, Gap)
                if isinstance(error, Full) or self._gaps > GAPS:
                    self._make_if_due(self.problem)
                elif self.host.rebuild_due:
                    self._make_if_due(self.host.rebuild_due)
                self._closing.wait(RETRY_SECONDS)
            except DlbfError as error:
                self.problem = str(error)
                self.refusal = error
                self._tell()
                self._closing.wait(1.0)
            except ValueError as error:  # another secret
                self.problem = f"{error}; give every host the same secret, or the same file {SECRET_FILE}"
                self.refusal = FleetError(self.problem)
                self._tell()
                self._closing.wait(1.0)
            except Exception:
                if not self._closing.is_set():
                    log.exception("%s: the shared log cannot be followed", self.where)
                    self._closing.wait(1.0)

    def _renew(self) -> None:
        """Load what is newer, hold the lease, follow to the head."""
        host, run = self.host, self.driver.run
        if host.wants_load and not run(protocol.load(host)) and host.copy is None:
            self.problem = "there is no filter yet"
            self._make_if_due("there is no filter yet")
            self._closing.wait(RETRY_SECONDS)
            return
        run(protocol.renew(host))
        self.refusal = None
        self._gaps = 0
        replica = host.copy.replica if host.copy is not None else None
        if host.rebuild_due:
            self._make_if_due(host.rebuild_due)
        elif isinstance(replica, FilterReplica):
            if replica.is_nearly_full:
                self._make_if_due("the filter is nearly full")
            elif self.ledger.applied - replica.began > CHECKPOINT_RECORDS:
                replica.began = self.ledger.applied
                self._aside(self._checkpoint)

    def _follow_until(self, end: float) -> None:
        """Follow the log as it grows until it is time to renew."""
        host, driver = self.host, self.driver
        while not self._closing.is_set() and not self._wanted.is_set():
            copy = host.copy
            left = end - time.monotonic()
            if left <= 0 or copy is None or host.wants_load:
                break
            if not host.settings.strict:
                self._wanted.wait(left)
                break
            found = self._follower.wait(copy, left)
            if not found:
                break
            with driver.lock:
                if host.copy is copy:
                    host.head = max(host.head, found[-1][0])
                    host.follow(found)
                self._publish()
            # What is done is reported when it is time to renew.
            if any(may_be_awaited(record) for _, record in found):
                driver.run(protocol.renew(host, report=False))
        self._wanted.clear()

    def _tell(self) -> None:
        """One line when reads begin to pass through or the lease was lost, and one when the filter answers again."""
        answers = self.has_lease()
        lapsed = self.host.leases > max(1, self._leases)
        self._leases = self.host.leases
        if self._closing.is_set():
            return
        if answers != self._answered:
            if not answers:
                self.problem = self.problem or LAPSED
                log.warning("%s: reads pass through: %s", self.where, self.problem)
            else:
                log.info("%s: answering from the shared filter", self.where)
        elif lapsed and answers:
            log.warning("%s: %s; it was registered again", self.where, LAPSED)
        if answers:
            self.problem = ""
        self._answered = answers

    def _report(self) -> None:
        """Leave this host's figures on the log's server, for operators."""
        now = time.monotonic()
        if now - self._reported < REPORT_SECONDS:
            return
        self._reported = now
        host, copy, traffic = self.host, self.host.copy, self.traffic
        answers = self.has_lease()
        causes: dict[str, float] = {}
        for lease, ns in list(host.waited.items()):
            owner = lease.rpartition(b".")[0].decode()
            causes[owner] = causes.get(owner, 0.0) + ns / 1e9
        report = Report(
            label=host.label.decode(errors="replace"),
            state="filtering" if answers else "pass-through",
            reason="" if answers else self.problem or LAPSED,
            consistency="strict" if host.settings.strict else "bounded",
            position=copy.position if copy is not None else 0,
            lookups=traffic.n_lookups if traffic is not None else 0,
            filtered=traffic.n_filtered if traffic is not None else 0,
            unfiltered=traffic.n_unfiltered if traffic is not None else 0,
            waits=self.driver.waits,
            waited_seconds=self.driver.waited_ns / 1e9,
            waited_for=causes,
            at=time.time(),
        )
        tell(self.driver.log, host.name.decode(), report)

    # --- generations

    def _make_if_due(self, reason: str) -> None:
        if not self._readonly:
            self._aside(lambda: self.make(reason))

    def _aside(self, act: Callable[[], object]) -> None:
        """Do something long in a thread of its own, if nothing else is done there."""
        if self.building:
            return
        self.building = True

        def work() -> None:
            try:
                act()
            except DlbfError as error:
                self.problem = self.problem or str(error)
                log.warning("%s: no new generation: %s", self.where, error)
            except Exception:
                if not self._closing.is_set():
                    log.exception("%s: no new generation", self.where)
            finally:
                self.building = False
                self._wanted.set()

        threading.Thread(target=work, name="dlbf-generation", daemon=True).start()

    def _distrust(self, problem: str, is_new: bool) -> None:
        """Nothing is denied before a scan that begins now is a filter."""
        self.problem = problem
        if is_new:
            with self.driver.lock:
                self._publish()
        self._make_if_due(problem)

    def make(self, reason: str, force: bool = False) -> tuple[Generation, FilterBuild] | None:
        """Make a generation, unless another host does so; all hosts load it."""
        host, server = self.host, self.driver.log
        trouble: FleetError = FleetError(reason)
        for _ in range(BUILD_TRIES):
            if self._closing.is_set() or not (server.try_to_be_builder(host.name, BUILDER_MS) or force):
                return None
            build = self._new_build()
            try:
                # What is done is in the scan; what is open is taken in besides, and would be counted twice.
                self.driver.run(protocol.flush(host))
                made = self.driver.run(protocol.rebuild(host, build))
                if made is not None:
                    log.info("%s: made generation %d (%s)", self.where, made.number, reason)
                    return made, build
                trouble = FleetError("the data servers changed during the scan")
            except (EpochChanged, Gap, Lost) as error:
                trouble = error
            finally:
                self._end_building()
            self._closing.wait(RETRY_SECONDS)
        raise trouble

    def _end_building(self) -> None:
        try:
            self.driver.log.end_building(self.host.name)
        except FleetError:
            log.debug("%s: other hosts wait until this one's turn to build is over", self.where)

    def _checkpoint(self) -> None:
        server = self.driver.log
        if self.ledger.applied - server.checkpoint_position() > CHECKPOINT_RECORDS:
            self.checkpoint()
        if self._shown is not None:
            self._shown.began = server.checkpoint_position()

    def checkpoint(self) -> bool:
        """Store this host's filter on the log's server, for hosts that come; False if there is none, or a newer one."""
        # The copy must not follow while it is saved: the first step saves it, with the lock held.
        return self.driver.run(protocol.checkpoint(self.host))

    # --- writes

    def run(self, operation: Operation[int]) -> int:
        """A write; the next renewal reports what was announced."""
        return self.driver.run(operation)

    # --- the end

    def figures(self) -> FleetFigures:
        """What operators see."""
        host, copy = self.host, self.host.copy
        answers = self.is_answering()
        try:
            hosts = tuple(self.driver.log.hosts())
        except FleetError:
            hosts = ()
        labels = {row.name: row.label for row in hosts}

        def named(lease: bytes) -> str:
            name = lease.decode()
            return f"{labels[name]} ({name})" if name in labels else name

        return FleetFigures(
            host=host.name.decode(),
            consistency="strict" if host.settings.strict else "bounded",
            lease_left_seconds=max(0.0, (host.until - boottime_ns()) / 1e9) if answers else 0.0,
            epoch=int(host.epoch.partition(b":")[0] or 0),
            head=host.head,
            position=copy.position if copy is not None else 0,
            generation=copy.generation.number if copy is not None else 0,
            hosts=hosts,
            waits=self.driver.waits,
            waited_seconds=self.driver.waited_ns / 1e9,
            waited_for={named(lease): ns / 1e9 for lease, ns in list(host.waited.items())},
            lapsed={named(lease): n for lease, n in list(self.driver.revoked.items())},
            foreign=self.trust.foreign,
            reason="" if self.has_lease() else self.problem or LAPSED,
        )

    def stop(self) -> None:
        """Answer nothing any more, and end the thread; twice is allowed."""
        self._word.until_ns = 1
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        self._wanted.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
        if self.has_lease() or self.host.owes:  # else nobody waits for this host, and the log may be gone
            try:
                forget(self.driver.log, self.host.name.decode())
                self.driver.run(self._leave())
            except (DlbfError, OSError):
                log.debug("%s: the lease was not given back", self.where)
        self.ledger.drop()
        self.trust.stop()
        self._follower.close()
        self.driver.close()

    def _leave(self) -> Operation[None]:
        """Report what is done and give the lease back, so that nobody waits for it."""
        host = self.host
        host.until = 0
        host.copy = None
        if not host.epoch:
            return
        yield from protocol.flush(host)
        if host.lease:
            reply = yield from protocol.ask(host, LogLeases(host.epoch))
            for row in lease_rows(reply.rest[1]):
                if row.name == host.lease:
                    yield from protocol.ask(host, LogRevoke(host.epoch, row.name, row.counter))
