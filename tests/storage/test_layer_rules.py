"""The rules by which layers never deny a key, as a model whose every interleaving is tried; and each rule broken.

The model is small on purpose: two keys that look alike in the tables (one counter), a base that may let either pass by
chance, one process that applies the log in small steps, one reader that enters what it did not find, one that asks.
What the real classes do is tested beside this, in ``test_layered.py`` and ``test_store_layers.py``.
"""

from itertools import chain, combinations
from typing import NamedTuple

import pytest

KEYS = "xy"
CHANGES = 2


class Filter(NamedTuple):
    """base, delta and absent; ``delta`` is the number of entries, which look alike."""

    base: frozenset = frozenset()
    delta: int = 0
    absent: frozenset = frozenset()

    def passes(self, key):
        return key in self.base or self.delta > 0

    def says_absent(self, key):
        return not self.passes(key) or key in self.absent


class Asking(NamedTuple):
    key: str
    checked: bool = False
    loaded: Filter | None = None
    was_absent: bool = False  # at some moment since it was asked: then "absent" is no lie


class Reading(NamedTuple):
    key: str
    noted: int | None = None
    found: bool | None = None


class Walk(NamedTuple):
    """A base that is being made: keys passed, those taken, what has happened to them since, the log followed so far."""

    n_passed: int
    taken: frozenset
    pending: tuple
    followed: int


class State(NamedTuple):
    data: frozenset
    log: tuple = ()  # of records: tuples of (adds, key)
    filter: Filter = Filter()
    begun: int = 0
    published: int = 0
    steps: tuple = ()  # what is left to do of the record that is being applied
    asking: Asking | None = None
    reading: Reading | None = None
    walk: Walk | None = None
    changes: int = CHANGES
    bases: int = 1  # that may still be made or loaded


def supersets(keys):
    """What a base of these keys may let pass."""
    others = [key for key in KEYS if key not in keys]
    return [keys | set(more) for more in chain.from_iterable(combinations(others, n) for n in range(len(others) + 1))]


def added(filter, key):
    filter = filter._replace(absent=filter.absent - {key})
    return filter if key in filter.base else filter._replace(delta=filter.delta + 1)


def removed(filter, key, broken=()):
    if key not in filter.base or "decrement although the base says maybe" in broken:
        filter = filter._replace(delta=max(0, filter.delta - 1))
    return filter._replace(absent=filter.absent | {key}) if filter.passes(key) else filter


class Model:
    """What can happen next, besides commits that are applied and keys that are asked for; ``broken`` names the rules
    that are not kept."""

    def __init__(self, more, *broken):
        self.actors = [self.commits, self.applies, self.asks, *(getattr(self, name) for name in more.split())]
        self.broken = broken

    def next_states(self, s):
        return chain.from_iterable(actor(s) for actor in self.actors)

    def commits(self, s):
        if not s.changes:
            return
        for key in KEYS:
            adds = key not in s.data
            yield self.committed(s, s.data ^ {key}, ((adds, key),))
            if not adds:
                # Deleted and put back in one transaction: for everybody else it was never away.
                both = "both changes of a transaction are logged" in self.broken
                yield self.committed(s, s.data, ((False, key), (True, key)) if both else ())

    def committed(self, s, data, record):
        asking = s.asking
        if asking is not None and asking.key not in data:
            asking = asking._replace(was_absent=True)
        return s._replace(data=data, log=(*s.log, record), asking=asking, changes=s.changes - 1)

    def applies(self, s):
        if not s.steps:
            if s.published == len(s.log):
                return
            steps = []
            for adds, key in s.log[s.published]:
                steps += [("strike", key), ("insert", key)] if adds else [("take out", key)]
            if "publish before the change" in self.broken:
                yield s._replace(begun=s.begun + 1, published=s.published + 1, steps=(*steps, ("rest", "")))
            else:
                yield s._replace(begun=s.begun + 1, steps=(*steps, ("publish", "")))
            return
        (what, key), *rest = s.steps
        s, f = s._replace(steps=tuple(rest)), s.filter
        if what == "publish":
            yield s._replace(published=s.begun)
        elif what == "strike":
            yield s._replace(filter=f._replace(absent=f.absent - {key}))
        elif what == "insert":
            yield s._replace(filter=f if key in f.base else f._replace(delta=f.delta + 1))
        elif what == "take out":
            yield s._replace(filter=removed(f, key, self.broken))
        else:
            yield s

    def reads(self, s):
        reading = s.reading
        if reading is None:
            for key in KEYS:
                yield s._replace(reading=Reading(key))
            return
        old_view = "what was read may be older than what was noted" in self.broken
        if reading.noted is None and (reading.found is None or old_view):
            yield s._replace(reading=reading._replace(noted=s.published))
        if reading.found is None and (reading.noted is not None or old_view):
            yield s._replace(reading=reading._replace(found=reading.key in s.data))
        if reading.noted is None or reading.found is None:
            return
        unchanged = s.published == reading.noted
        if "nobody looks whether a change has begun" not in self.broken:
            unchanged = unchanged and s.begun == s.published
        f, key = s.filter, reading.key
        if unchanged and not reading.found and f.passes(key):
            f = f._replace(absent=f.absent | {key})
        yield s._replace(filter=f, reading=None)

    def asks(self, s):
        asking = s.asking
        if asking is None:
            early = "the filter is loaded before the position is checked" in self.broken
            for key in KEYS:
                loaded = s.filter if early else None
                yield s._replace(asking=Asking(key, loaded=loaded, was_absent=key not in s.data))
        elif not asking.checked:
            current = s.begun == s.published == len(s.log)
            if "publish before the change" in self.broken:
                current = s.published == len(s.log)
            # If it is not, the data are read.
            yield s._replace(asking=asking._replace(checked=True) if current else None)
        else:
            if (asking.loaded or s.filter).says_absent(asking.key) and not asking.was_absent:
                raise Denied(s)
            yield s._replace(asking=None)

    def loads(self, s):
        """A jump: another process has made a base of all keys, and this one loads it."""
        if s.bases and not s.steps and s.walk is None:
            absent = s.filter.absent if "absent is kept over a jump" in self.broken else frozenset()
            for base in supersets(s.data):
                loaded = Filter(base, 0, absent)
                yield s._replace(filter=loaded, begun=len(s.log), published=len(s.log), bases=s.bases - 1)

    def walks(self, s):
        """A base made beside writers: keys are passed in order, operations on those passed are kept, and follow."""
        if s.walk is None:
            if s.bases:
                yield s._replace(walk=Walk(0, frozenset(), (), len(s.log)), bases=s.bases - 1)
            return
        walk = self.caught_up(s)
        if walk.n_passed < len(KEYS):
            key = KEYS[walk.n_passed]
            taken = walk.taken | {key} if key in s.data else walk.taken
            yield s._replace(walk=walk._replace(n_passed=walk.n_passed + 1, taken=taken))
        elif not s.steps:
            for base in supersets(walk.taken):
                made = Filter(base)
                for adds, key in walk.pending:
                    made = added(made, key) if adds else removed(made, key)
                yield s._replace(filter=made, walk=None, begun=len(s.log), published=len(s.log))

    def caught_up(self, s):
        everything = "all of the log is replayed over the walk" in self.broken
        passed = KEYS if everything else KEYS[: s.walk.n_passed]
        new = [change for record in s.log[s.walk.followed :] for change in record if change[1] in passed]
        return s.walk._replace(pending=(*s.walk.pending, *new), followed=len(s.log))


class Denied(Exception):
    """A key that was there all along was called absent."""


def explored(model, changes=CHANGES):
    """Every state that can be reached; raises Denied where a stored key is denied."""
    seen = {
        State(frozenset(data), filter=Filter(frozenset(base)), changes=changes)
        for data in ("", "x", "y", "xy")
        for base in supersets(frozenset(data))
    }
    left = list(seen)
    while left:
        for state in model.next_states(left.pop()):
            if state not in seen:
                seen.add(state)
                left.append(state)
    return seen


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ("", "decrement although the base says maybe"),
        ("", "both changes of a transaction are logged"),
        ("", "publish before the change"),
        ("reads", "what was read may be older than what was noted"),
        ("reads", "nobody looks whether a change has begun"),
        ("loads", "the filter is loaded before the position is checked"),
        ("reads loads", "absent is kept over a jump"),
        ("walks", "all of the log is replayed over the walk"),
    ],
)
def test_model_finds_the_key_that_is_denied_without_the_rule(more, rule):
    with pytest.raises(Denied):
        explored(Model(more, rule))


@pytest.mark.parametrize(("more", "changes"), [("reads", 1), ("loads", 2), ("walks", 2), ("reads loads walks", 0)])
def test_no_interleaving_denies_a_key_where_all_rules_are_kept(more, changes):
    assert len(explored(Model(more), changes)) > 50


@pytest.mark.slow
@pytest.mark.parametrize(("more", "changes"), [("walks", 3), ("reads", 3), ("reads loads walks", 2)])
def test_no_interleaving_of_more_changes_denies_a_key(more, changes):
    assert len(explored(Model(more), changes)) > 100_000
