"""Wrong versions of the protocol, each a change of a few words of the real code, that the simulator must catch.

``python -m support.fleet_mutations NAME...`` (in ``tests/``) looks for the first seed that catches each.
"""

import contextlib
import inspect
import os
import sys
import textwrap
from dataclasses import dataclass

from dlbf.storage.fleet import asking, building, host, reading, writing
from support import fleet_cluster, fleet_hosts, fleet_oracle, fleet_servers
from support.fleet_oracle import Violation
from support.fleet_sim import simulate

MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        asking,
        building,
        host,
        reading,
        writing,
        fleet_cluster,
        fleet_hosts,
        fleet_oracle,
        fleet_servers,
    )
}


@dataclass(frozen=True)
class Edit:
    """Put other words into a function; ``old`` must be there exactly once."""

    where: str  # module.function or module.Class.method
    old: str
    new: str


def _changed(function, where, edits):
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise LookupError(f"{where} has {edit.old!r} {source.count(edit.old)} times, not once; mend the mutation")
        source = source.replace(edit.old, edit.new)
    place = {}
    exec(compile(source, f"<{where}>", "exec"), sys.modules[function.__module__].__dict__, place)
    return place[function.__name__]


@contextlib.contextmanager
def mutated(name):
    """The code with one mutation."""
    undo = []
    try:
        for where in dict.fromkeys(edit.where for edit in MUTATIONS[name]):
            edits = [edit for edit in MUTATIONS[name] if edit.where == where]
            module, *path = where.split(".")
            if len(path) == 2:
                owner = getattr(MODULES[module], path[0])
                before = inspect.getattr_static(owner, path[1])
                undo.append((owner, path[1], before))
                setattr(owner, path[1], _changed(getattr(before, "fget", before), where, edits))
            else:
                before = getattr(MODULES[module], path[0])
                after = _changed(before, where, edits) if inspect.isfunction(before) else eval(edits[0].new)
                for other in MODULES.values():
                    for attribute, value in list(vars(other).items()):
                        if value is before:
                            undo.append((other, attribute, before))
                            setattr(other, attribute, after)
        yield
    finally:
        for owner, attribute, before in reversed(undo):
            setattr(owner, attribute, before)


COUNT_DOWN = "if key not in self.base:\n                counts[key] = counts.get(key, 0) - 1"
GRACE = "return self.ttl + self.margin + self.old_primary"
FENCED = 'if found != stamp + b"@" + self.identity:'

MUTATIONS = {
    # --- wrong versions with known counterexamples
    "head not heard from renewals": [Edit("host.Host._take", "self.head = max(self.head, reply.head)", "pass")],
    "head read before the lease": [
        Edit(
            "reading.hello",
            "reply = yield from ask(host, command)\n",
            "reply = yield from ask(host, LogLook(copy.epoch, copy.position, LOOK_LIMIT))\n"
            "    host.follow(pairs(reply.rest[6]))\n"
            "    reply = LogReply((yield command))\n"
            "    if not reply.rest:\n        return\n",
        ),
        Edit("reading.hello", "_granted(host, reply)", "host.granted(reply)"),
    ],
    "validity from receiving": [Edit("host.Host.granted", "reply.sent +", "reply.received +")],
    "probe, then check": [
        Edit(
            "fleet_hosts.SimHost.probe",
            "if valid and copy is not None and not copy.replica.maybe(key):",
            "if early and self.core.answers(self.clock()):",
        ),
        Edit(
            "fleet_hosts.SimHost.get",
            "self.at(world.now + gap, self.probe, key, owed, valid, early)",
            "self.at(world.now + gap, self.probe, key, owed, valid,"
            " self.core.copy is not None and not self.core.copy.replica.maybe(key))",
        ),
    ],
    "EXISTS, then SET": [
        Edit(
            "fleet_servers.DataModel.do_replace",
            "if key not in self.values or self.identity not in identities:",
            "if not identities:\n        return [int(key in self.values), self.identity]\n"
            "    if self.identity not in identities:",
        ),
        Edit(
            "writing._replace",
            "    answer = yield Batch(",
            "    looked = yield Batch(tuple(DataReplace(key, b'', 0, ()) for key in keys))\n"
            "    keys = [key for key, one in zip(keys, looked.batch) if not isinstance(one, Lost) and one.raw[0]]\n"
            "    if not keys:\n        return set()\n"
            "    answer = yield Batch(",
        ),
    ],
    "SET retried by the client": [Edit("fleet_hosts.ONCE", "", "('remove',)")],
    "remove retried by the client": [Edit("fleet_hosts.ONCE", "", "('put',)")],
    "remove before DEL": [
        Edit(
            "writing.delete_many",
            "answer = yield Batch(",
            "yield from _take_back(host, epoch, generation, part)\n        answer = yield Batch(",
        ),
        Edit("writing.delete_many", "yield from _take_back(host, epoch, generation, gone)", "pass"),
    ],
    "remove without DEL's word": [Edit("writing._counted", "bool(whole(raw[0])) and ", "")],
    "SET before add": [
        Edit(
            "writing._put_part",
            "announced = yield from _announce(host, tuple(todo))\n"
            "            stored, overwrote = yield from _store(host, announced, todo, px)",
            "yield from settle(host)\n"
            "            early = Announced(host.epoch, 0, None, 0)\n"
            "            stored, overwrote = yield from _store(host, early, todo, px)\n"
            "            yield from _announce(host, tuple(todo))",
        ),
    ],
    "sweeper that logs expiry": [
        Edit(
            "fleet_servers.DataModel.do_replace",
            "if key not in self.values or self.identity not in identities:",
            "if not identities:\n        return [int(key in self.values), self.identity]\n"
            "    if key not in self.values or self.identity not in identities:",
        ),
        Edit(
            "writing.delete_many",
            "answer = yield Batch(",
            "looked = yield Batch(tuple(DataReplace(key, b'', 0, ()) for key in part))\n"
            "        swept = [\n"
            "            key\n"
            "            for key, one in zip(part, looked.batch)\n"
            "            if not isinstance(one, Lost) and not one.raw[0] and host.maybe(key)\n"
            "        ]\n"
            "        yield from _take_back(host, epoch, generation, swept)\n"
            "        answer = yield Batch(",
        ),
    ],
    "no open list": [Edit("fleet_servers.LogModel.do_begin", "adds = self.adds()", "adds = []")],
    "untagged remove": [
        Edit(
            "host.Copy._effect", "case Remove(generation, _) if generation == self.generation.number:", "case Remove():"
        ),
        Edit("fleet_servers.LogModel.do_remove", "generation != self.state.generation or not generation", "False"),
    ],
    "no identity with DEL": [Edit("writing._counted", " and identity in host.servers(generation, key)", "")],
    "no identity with XX": [
        Edit("fleet_servers.DataModel.do_replace", " or self.identity not in identities", ""),
    ],
    "no epoch": [
        Edit(
            "fleet_servers.LogModel.call",
            "if state.number == 0 or state.identity != self.identity or state.torn:",
            "if state.number == 0:",
        ),
    ],
    "no grace": [
        Edit("host.Settings.grace", GRACE, "return 0"),
    ],
    "grace of one lease only": [
        Edit("host.Settings.grace", GRACE, "return self.ttl"),
    ],
    "no fence": [
        Edit("fleet_servers.DataModel.do_put", FENCED, "if False:"),
    ],
    "a slot that moved to a server of the generation counts": [
        Edit("host.Host.servers", "if self.owner is None:", "if True:"),
    ],
    # --- rules of puts
    "no wait for readers": [Edit("writing._announce", "if host.settings.strict:", "if False:")],
    "waits for the wrong position": [Edit("writing._acknowledged", "row.acked < position", "row.acked < position - 1")],
    "wake of another epoch believed": [Edit("writing._acknowledged", "if answer.raw == epoch:", "if answer.raw:")],
    "done after a SET without answer": [Edit("writing._store", "certain = False", "certain = True")],
    "too much taken back": [
        Edit("writing._store", "if whole(existed) and generation is not None", "if generation is not None")
    ],
    "taken back from the newest generation": [
        Edit(
            "writing._store",
            "yield from _take_back(host, epoch, generation,",
            "yield from _take_back(host, epoch, host.known,",
        ),
    ],
    "XX before every lease knows the generation": [
        Edit("host.Host._take", " and reply.floor >= reply.end_position", ""),
    ],
    "put of an engine without fences may take for ever": [
        Edit("writing._store", "if not host.settings.exact and one.received", "if False and one.received"),
    ],
    # --- rules of deletes
    "generation noted after DEL": [
        Edit("writing.delete_many", "gone = []", "gone = []\n        generation = host.removable()"),
    ],
    # --- rules of readers
    "lease longer than the clocks allow": [
        Edit("host.Host.granted", "- self.settings.margin", "+ 3 * self.settings.margin")
    ],
    "lapse counted from sending": [
        Edit(
            "writing._acknowledged", "(row.name, row.counter), reply.received)", "(row.name, row.counter), reply.sent)"
        )
    ],
    "lapse too early": [Edit("writing._lapse", "row.ttl_ns + host.settings.margin", "row.ttl_ns // 2")],
    "lapse though the counter moved": [
        Edit(
            "writing._acknowledged",
            "since = {(row.name, row.counter): since.get((row.name, row.counter), reply.received) for row in waiting}",
            "old = {name: when for (name, _), when in since.items()}\n"
            "        since = {(row.name, row.counter): old.get(row.name, reply.received) for row in waiting}",
        ),
    ],
    "revoked without comparing": [
        Edit("fleet_servers.LogModel.do_revoke", "if found is None or found.counter != counter:", "if found is None:"),
    ],
    "late copy of a registration accepted": [
        Edit(
            "fleet_servers.LogModel.do_hello",
            "late = any(number_of(name) > number_of(lease) for name in mine)",
            "late = False",
        ),
    ],
    "a record passed over": [
        Edit("host.Copy.follow", "position != self.position + 1 or ", ""),
        Edit(
            "fleet_servers.LogModel.do_trim",
            "last = min(position, state.checkpoint.position, state.head)",
            "last = state.head",
        ),
    ],
    "answers though not as far as the head": [Edit("host.Host.answers", "copy.position >= self.head", "True")],
    "loads without what was logged since": [
        Edit(
            "reading.load",
            "while copy.position < max(reply.head, host.copy.position if host.copy else 0):",
            "while False:",
        ),
        Edit("host.Host.answers", "copy.position >= self.head", "True"),
    ],
    "keeps its copy in a new epoch": [
        Edit("host.Host.enter", "self.copy = None", "pass"),
        Edit("host.Host.answers", " and copy.epoch == self.epoch", ""),
    ],
    # --- rules of rebuilds
    "adds since the beginning left out": [Edit("building._catch_up", "build.added(_keys(data))", "pass")],
    "scan not void though servers changed": [Edit("building.rebuild", "if again.raw != servers.raw:", "if False:")],
    "no fences raised before the scan": [
        Edit("building.rebuild", "if host.settings.fenced:", "if False:"),
        Edit(
            "fleet_servers.DataModel.do_put",
            'found != stamp + b"@" + self.identity',
            'found and found != stamp + b"@" + self.identity',
        ),
    ],
    "rebuild waits for no put without a fence": [
        Edit("building.rebuild", "if not host.settings.exact:", "if False:"),
    ],
    "end though the log was trimmed": [Edit("fleet_servers.LogModel.do_end", " or position < state.trimmed", "")],
    "older generation kept over a data fail-over": [
        Edit("host.Copy.outdated", "return self.newest.identities != self.generation.identities", "return False"),
    ],
    # --- rules of fences and epochs
    "fence without its server": [
        Edit("fleet_servers.DataModel.do_put", FENCED, 'if found.rpartition(b"@")[0] != stamp:'),
    ],
    "fence may be lowered": [
        Edit("fleet_servers.DataModel.do_raise_fence", ' or not (older or found.rpartition(b"@")[0] == stamp)', ""),
    ],
    "fence raised on a server that was replaced": [
        Edit("fleet_servers.DataModel.do_raise_fence", "self.identity != identity or ", ""),
    ],
    "fence mended without asking the log": [
        Edit("writing._mend", "yield from ask(host, LogLeases(epoch))", "pass"),
    ],
    "log not asked again after the grace": [
        Edit("asking.settle", "yield from ask(host, LogSettle(epoch))", "host.settled = True"),
        Edit("building.rebuild", "if not reply.granted:\n        raise", "if False:\n        raise"),
        Edit("fleet_servers.LogModel.do_begin", "if not self.state.settled:", "if False:"),
    ],
    # --- rules of the set of absent keys
    "absent though an add is open": [
        Edit("host.Host.note", "copy is None or any(key in keys for keys in copy.open.values())", "copy is None"),
    ],
    "absent though records were applied since": [
        Edit("host.Host.may_enter", " and note.position == note.copy.position", ""),
    ],
    "open list not loaded": [Edit("reading.load", "copy.open[where] = add.keys", "pass")],
    "absent by a remove record": [
        Edit("fleet_oracle.SimReplica.apply", COUNT_DOWN, "self.absent.add(key)\n            " + COUNT_DOWN),
    ],
    "absent not struck by an add": [Edit("fleet_oracle.SimReplica.apply", "self.absent.discard(key)", "pass")],
    "absent kept over a jump": [
        Edit(
            "host.Host.adopt",
            "self.learn(copy.newest)",
            "self.learn(copy.newest)\n    copy.replica.absent = (self.copy or copy).replica.absent",
        ),
    ],
    "remove of a key that the base lets pass": [
        Edit("fleet_oracle.SimReplica.apply", COUNT_DOWN, COUNT_DOWN.replace("key not in self.base", "True")),
    ],
}


def first_catch(name, seeds):
    """The first seed that finds a violation, with its text; None if none does."""
    with mutated(name):
        for seed in seeds:
            try:
                simulate(seed)
            except Violation as error:
                return seed, str(error)
    return None


def _search(name):
    try:
        found = first_catch(name, range(LIMIT))
    except Exception as error:
        return name, (-1, f"{type(error).__name__}: {error}")
    return name, found


LIMIT = int(os.environ.get("LIMIT", 5000))


def main(argv):
    import multiprocessing

    names = argv or list(MUTATIONS)
    with multiprocessing.Pool(2) as pool:
        for name, found in pool.imap_unordered(_search, names):
            print(f"{name}: {found and found[0]}  {found and found[1][:140]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
