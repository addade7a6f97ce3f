"""What operators see of all hosts: each leaves a few figures on the log's server, beside its lease.

The hash ``dlbf:fleet:{NAME}:told`` has one field for each host, JSON.  It decides nothing: it may be lost at any time.
"""

import json
import time
from dataclasses import asdict, dataclass, field

from dlbf.storage.fleet.messages import array, text, whole
from dlbf.storage.fleet.servers import LogServer

__all__ = ["FleetView", "HostView", "Report", "forget", "tell", "view"]

# A host that has not told anything for so long is gone.
FORGET_SECONDS = 3600.0
MOST_CAUSES = 20


@dataclass(frozen=True)
class Report:
    """What a host tells of itself.

    Attributes
    ----------
    label : str
        What it calls itself.
    state, reason : str
        "filtering", or "pass-through" and why.
    consistency : str
        "strict" or "bounded".
    position : int
        The last record of the log that its filter has.
    lookups, filtered, unfiltered : int
        Keys that it was asked for, reads that its filter saved, and reads without asking the filter.
    waits : int
        How often its puts waited for other hosts.
    waited_seconds : float
        How long in all.
    waited_for : dict
        Seconds by the host that was waited for.
    at : float
        When it told so, by its own clock.
    """

    label: str = ""
    state: str = "unknown"
    reason: str = ""
    consistency: str = ""
    position: int = 0
    lookups: int = 0
    filtered: int = 0
    unfiltered: int = 0
    waits: int = 0
    waited_seconds: float = 0.0
    waited_for: dict[str, float] = field(default_factory=dict)
    at: float = 0.0


@dataclass(frozen=True)
class HostView:
    """One host, as the log's server has it.

    Attributes
    ----------
    name, label : str
        Its name in the log, and what it calls itself.
    leases : tuple of str
        That it holds; none: it reads without the filter, or is gone.
    position, behind : int
        The last record that it has acknowledged, and how many there are after it.
    caused_seconds : float
        How long puts of all hosts have waited for it.
    age_seconds : float
        Since it told its figures; NaN if it never did.
    report : Report
    """

    name: str
    label: str
    leases: tuple[str, ...]
    position: int
    behind: int
    caused_seconds: float
    age_seconds: float
    report: Report


@dataclass(frozen=True)
class FleetView:
    """The log and all hosts.

    Attributes
    ----------
    epoch : int
        Rises when the log's server is replaced; 0: nobody has ever opened this log there.
    head : int
        The newest record.
    generation : int
        Of the filter that all hosts load; 0: there is none.
    hosts : tuple of HostView
    """

    name: str
    epoch: int
    head: int
    generation: int
    hosts: tuple[HostView, ...]

    def asdict(self) -> dict[str, object]:
        """All figures, for a machine."""
        return asdict(self)


def tell(server: LogServer, host: str, report: Report) -> None:
    """Leave a host's figures on the server."""
    causes = sorted(report.waited_for.items(), key=lambda one: -one[1])[:MOST_CAUSES]
    facts = asdict(report) | {"waited_for": dict(causes)}
    server.ask("HSET", server.state + b":told", host, json.dumps(facts))


def forget(server: LogServer, host: str) -> None:
    """Take a host's figures away, and those of hosts that are long gone."""
    gone = [name for name, report in _told(server).items() if time.time() - report.at > FORGET_SECONDS]
    server.ask("HDEL", server.state + b":told", host, *gone)


def _told(server: LogServer) -> dict[str, Report]:
    words = [text(one) for one in array(server.ask("HGETALL", server.state + b":told") or [])]
    known = Report.__dataclass_fields__
    reports = {}
    for name, data in zip(words[::2], words[1::2], strict=True):
        try:
            facts = json.loads(data)
            reports[name.decode()] = Report(**{key: value for key, value in facts.items() if key in known})
        except (ValueError, TypeError, AttributeError):
            continue  # of another version
    return reports


def view(server: LogServer, name: str) -> FleetView:
    """What the log's server has of all hosts.

    Raises
    ------
    FleetError
        If the server does not answer.
    """
    told = _told(server)
    epoch, head, generation = (server.ask("HGET", server.state, part) for part in ("number", "head", "generation"))
    newest = whole(head or 0)
    caused: dict[str, float] = {}
    for report in told.values():
        for cause, seconds in report.waited_for.items():
            caused[cause] = caused.get(cause, 0.0) + seconds
    leases: dict[str, list[str]] = {owner: [] for owner in told}
    labels = {owner: report.label for owner, report in told.items()}
    positions: dict[str, int] = {}
    for row in server.hosts():
        owner = row.name.rpartition(".")[0]
        leases.setdefault(owner, []).append(row.name)
        labels.setdefault(owner, row.label)
        positions[owner] = row.position
    now = time.time()
    hosts = []
    for owner, held in leases.items():
        report = told.get(owner, Report())
        position = positions.get(owner, report.position)
        age = max(0.0, now - report.at) if owner in told else float("nan")
        behind = max(0, newest - position)
        hosts.append(HostView(owner, labels[owner], tuple(held), position, behind, caused.get(owner, 0.0), age, report))
    hosts.sort(key=lambda one: (one.label, one.name))
    return FleetView(name, whole(epoch or 0), newest, whole(generation or 0), tuple(hosts))
