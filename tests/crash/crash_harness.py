"""A store under a process that dies: workload, killing, and what must hold afterwards.

The workload is determined by a seed and the number of the transaction, so whoever checks can work out what every
transaction did.  A child announces each commit before it begins and after it is done; after its death the store must
be as after
the last commit that was done, or as after the one that was under way, and nothing else.
"""

import functools
import os
import random
import signal
import struct
import time
from pathlib import Path

from dlbf import models
from dlbf.filters.layered import LayeredFilter
from dlbf.learned import layouts
from dlbf.storage import Store, generations, layers, ledger, rebuild, sharing, steps

N_KEYS = 1500
BEFORE, AFTER = b"B", b"A"
# A child that is to die at a step ends after so many without reaching it; 150 reach every step at least once.
MOST_COMMITS = 200
# What is asked for and absent: some of it like the keys, so that a model has something to weigh.
NEGATIVES = [b"key %d" % (10**5 + 7 * i) for i in range(300)] + [b"another %d" % i for i in range(500)]


@functools.cache
def small_model():
    """One for all: training would take the time."""
    keys = [b"key %d" % i for i in range(0, N_KEYS, 3)]
    return models.train(keys, NEGATIVES, kind="ngram", max_bytes=64, epochs=2, progress=False)


def learn(store):
    """Rebuild with a model."""
    store.rebuild(NEGATIVES, "plbf-cbf", model=small_model(), fpr=0.05)


def learn_layers(store):
    """Rebuild with layers, and a model in the base."""
    store.rebuild(NEGATIVES, "layers", model=small_model(), fpr=0.05)
    assert store.stats().model == "ngram" or not len(store)


def make_everything_happen_often(patch=setattr):
    """Small filters and journals: growth, shrinking and checkpoints every few transactions; models for few keys."""
    patch(generations, "MIN_CAPACITY", 64)
    patch(ledger, "MIN_LOG_BYTES", 3000)
    patch(ledger, "LOG_SHARE", 1)
    patch(rebuild, "LEAST_KEYS", 1)
    patch(generations, "pays", lambda learned, plain: True)
    # Layers however few keys there are and however many are deleted; some bases in threads of their own.
    patch(layers, "LEAST_KEYS", 100)
    patch(layers, "THREAD_KEYS", 400)
    patch(layers, "BREAK_EVEN", 1e9)
    patch(layers.Plan, "base_bytes", lambda plan, n_keys: n_keys if plan.pattern is None else n_keys // 2)
    patch(layouts, "MIN_SAVING", -1e9)
    patch(sharing, "LEAST_BYTES", 1)
    small_model()


def changes(seed, number):
    """What transaction ``number`` of a workload does: (key, value or None) pairs, or the name of a chore."""
    rng = random.Random(f"{seed} {number}")
    if rng.random() < 0.08:
        return rng.choice(["checkpoint", "rebuild", "learn", "layers", "learn layers"])
    out = []
    # Phases of mostly inserting and mostly deleting, so that the filter grows and shrinks.
    put_share = 0.8 if (seed // 7 + number // 40) % 2 == 0 else 0.25
    for _ in range(rng.choice([1, 1, 1, 5, 60, 200])):
        i = rng.randrange(N_KEYS)
        key = b"key %d" % i
        if i % 50 == 0:
            key *= 120
        out.append((key, b"%d" % rng.randrange(10**6) * rng.choice([1, 1, 50]) if rng.random() < put_share else None))
    return out


def apply_to(model, what):
    """The model after a transaction."""
    if isinstance(what, str):
        return model
    model = dict(model)
    for key, value in what:
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value
    return model


def run(store, seed, first, last, announce):
    """Transactions ``first`` .. ``last - 1`` of a workload."""
    for number in range(first, last):
        what = changes(seed, number)
        announce(BEFORE, number)
        if what == "learn":
            learn(store)
        elif what == "layers":
            store.rebuild(design="layers")
        elif what == "learn layers":
            learn_layers(store)
        elif isinstance(what, str):
            getattr(store, what)()
        else:
            with store.write() as txn:
                for key, value in what:
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value)
        announce(AFTER, number)


def child(path, seed, pipe, step, hit, options):
    """Run the workload until killed, by the parent or, at the ``hit``-th time a step is reached, by itself."""
    left = [hit]

    def hook(name):
        if name == step:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        steps.set_hook(hook if step else None)
        store = Store(path, **options)
        # A step that this workload does not reach is as good as a random moment.
        stop = MOST_COMMITS if step else 10**9
        run(store, seed, 0, stop, lambda kind, number: os.write(pipe, kind + struct.pack("<q", number)))
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(77)  # not reached but by a bug


def announced(pipe):
    """The last commit begun and the last one done, from what a dead child wrote."""
    data = b""
    while part := os.read(pipe, 1 << 16):
        data += part
    begun = done = -1
    for kind, number in struct.iter_unpack("<cq", data):
        if kind == BEFORE:
            begun = number
        else:
            done = number
    return begun, done


def kill_once(path, seed, model, step=None, hit=1, delay=0.0, options=None):
    """Start a child on the store, kill it, and return the two models that the store may be like now."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receiving)
        child(path, seed, sending, step, hit, options or {"sync": "none"})
    os.close(sending)
    try:
        if step is None:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == -signal.SIGKILL, f"the child ended by itself with {status}"
        begun, done = announced(receiving)
    finally:
        os.close(receiving)
    for number in range(done + 1):
        model = apply_to(model, changes(seed, number))
    return model, apply_to(model, changes(seed, begun)) if begun > done else model


def check(path, allowed, options=None):
    """The store holds one of the allowed models, its filter is the one of its data; returns which."""
    with Store(path, **(options or {"sync": "none"})) as store:
        found = dict(store.items())
        assert found in allowed, difference(found, allowed)
        assert store.state == "filtering", store.stats().reason
        # Every key through the filter, and some that are absent.
        wanted = [*found, *(b"absent %d" % i for i in range(50))]
        assert store.get_many(wanted) == [found.get(key) for key in wanted]
        verification = store.verify()
        assert verification.ok, verification
        assert verification.keys == len(found) == len(store)
        # The recovered filter, compared with one built afresh from the data.
        assert same_filter(store), "the filter is not the one of the data"
    return found


def same_filter(store):
    """Whether the replica answers exactly like a filter of the same geometry built from the data."""
    live = store.ledger.filter
    if isinstance(live, LayeredFilter):
        # What a base lets pass besides depends on when it was made; what it must, and how many there are, does not.
        keys = list(store)
        return live.contains_many(keys).all() and len(live) == len(keys) and live.n_added <= len(keys)
    fresh = live.copy()
    fresh.clear()
    fresh.update(list(store))
    probes = [b"probe %d" % i for i in range(2000)]
    exact = [
        part.base in ("cuckoo", "d-left") for part, _, _ in getattr(live, "_layout", ())
    ]  # cells are only estimated
    return (
        len(live) == len(fresh)
        and (not all(exact) or live.approximate_count() == len(live))
        and (live.contains_many(probes) == fresh.contains_many(probes)).all()
    )


def difference(found, allowed):
    """A short description of how a store differs from each model it may be like."""
    return [
        f"{len(model.keys() - found.keys())} missing, {len(found.keys() - model.keys())} extra, "
        f"{sum(found[k] != model[k] for k in found.keys() & model.keys())} different"
        for model in allowed
    ]


# --- power loss: images of the file as a disk may hold them


def read_log(path):
    """The events that the shim recorded."""
    data = Path(path).read_bytes()
    events = []
    at = 0
    while at < len(data):
        kind = data[at : at + 1]
        offset, length = struct.unpack_from("=QI", data, at + 1)
        at += 13
        events.append((kind, offset, data[at : at + length]))
        at += length
    return events


class Disk:
    """A file with a volatile cache: what was not synced may be there, or not, or in parts."""

    SECTOR = 512

    def __init__(self):
        self.stable = bytearray()
        self.pending = []
        self.acknowledged = -1

    @staticmethod
    def put(image, offset, data):
        if len(image) < offset + len(data):
            image.extend(bytes(offset + len(data) - len(image)))
        image[offset : offset + len(data)] = data

    def feed(self, event):
        kind, offset, data = event
        if kind == b"A":
            self.acknowledged = offset
        elif kind == b"S":
            for place, part in self.pending:
                self.put(self.stable, place, part)
            self.pending = []
        elif kind == b"D":
            # Durable when the call returns; what came before it is not thereby.
            self.put(self.stable, offset, data)
        elif kind == b"W":
            self.pending.append((offset, data))
        elif kind == b"T":
            self.put(self.stable, offset, b"")

    def image(self, rng):
        """The file after a power failure now: a random part of the unsynced writes, some of them torn."""
        image = bytearray(self.stable)
        keep = rng.random()
        for offset, data in self.pending:
            for start in range(0, len(data), self.SECTOR):
                if rng.random() < keep:
                    self.put(image, offset + start, data[start : start + self.SECTOR])
        return bytes(image)
