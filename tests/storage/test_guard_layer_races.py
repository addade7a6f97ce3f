"""Threads and processes that put, delete, read and make new bases through guards of one engine with layers.

The numbers that say what a key's owner has last done to it are those of ``test_layer_races.py``.
"""

import multiprocessing
import os
import random
import sys
import threading
import time
import traceback
from contextlib import closing

import lmdb

from dlbf.kernels.locks import Held
from dlbf.storage import Guard, layers
from dlbf.storage.engines import LmdbEngine

context = multiprocessing.get_context("fork")

# What a number says, modulo four; those between are changes under way.
GONE, THERE = 0, 2
N_PROCESSES = 2
CHANGES = 600
BETWEEN = 50
KEYS = [b"key %d" % i for i in range(48)]
KEPT = [b"kept %d" % i for i in range(300)]
NEVER = [b"never %d" % i for i in range(60)]


class SlowEngine(LmdbEngine):
    """Others get their turn between what is read and what is made of it, and before and after what is written."""

    def get(self, key):
        found = super().get(key)
        if random.random() < 0.2:
            time.sleep(0.0003)
        return found

    def get_many(self, keys):
        found = super().get_many(keys)
        time.sleep(0.0003)
        return found

    def put_many(self, items):
        time.sleep(0.0005)
        super().put_many(items)
        time.sleep(0.0002)

    def delete_many(self, keys):
        time.sleep(0.0003)
        super().delete_many(keys)
        time.sleep(0.0005)


class Race:
    """The keys that are changed, and what has happened to each of them."""

    def __init__(self, folder):
        self.folder = folder
        self.words = context.RawArray("Q", [THERE] * 16 + [GONE] * 32)
        self.done = context.RawArray("Q", N_PROCESSES)
        self.remembered = context.RawArray("Q", N_PROCESSES)
        self.failed = context.RawValue("Q", 0)

    def opened(self):
        environment = lmdb.open(str(self.folder / "data"), map_size=1 << 24, sync=False)
        return environment, Guard(SlowEngine(environment), self.folder / "guard", sync="none", fpr=0.3)

    def is_over(self):
        return self.failed.value or min(self.done) == CHANGES

    def write(self, guard, number):
        """Change the keys of one owner: one by one, and many at once."""
        rng = random.Random(number)
        own = range(number, len(KEYS), N_PROCESSES)
        for i in range(CHANGES):
            if self.failed.value:
                break
            part = rng.sample(own, rng.choice([1, 1, 1, 7]))
            for k in part:
                self.words[k] += 1
            gone = [k for k in part if self.words[k] % 4 == GONE + 1]
            there = [k for k in part if k not in gone]
            if len(part) == 1:
                for k in gone:
                    guard[KEYS[k]] = b"v"
                for k in there:
                    assert guard.delete(KEYS[k])
            else:
                guard.update((KEYS[k], b"v") for k in gone)
                assert guard.delete_many([KEYS[k] for k in there]) == len(there)
            for k in part:
                self.words[k] += 1
            self.check(guard, part[0])
            self.done[number] = i + 1
            time.sleep(0.0005)

    def check(self, guard, k):
        """One key, if nobody has changed it meanwhile."""
        key, before = KEYS[k], self.words[k]
        found = (guard.get(key), key in guard, guard.get_many([key])[0])
        if self.words[k] == before and before % 2 == 0:
            expected = b"v" if before % 4 == THERE else None
            assert found == (expected, expected is not None, expected), (key, before)

    def check_many(self, guard, part):
        before = [self.words[k] for k in part]
        found = guard.get_many([KEYS[k] for k in part])
        for k, word, value in zip(part, before, found, strict=True):
            if word % 2 == 0 and self.words[k] == word:
                assert value == (b"v" if word % 4 == THERE else None), (KEYS[k], word)

    def read(self, guard, number):
        rng = random.Random(100 + number)
        everything = range(len(KEYS))
        while not self.is_over():
            for _ in range(10):
                self.check_many(guard, rng.sample(everything, len(everything) // 2))
                self.check(guard, rng.choice(everything))
            assert guard.get_many(KEPT) == [b"v"] * len(KEPT)
            assert guard.get_many(NEVER) == [None] * len(NEVER)

    def make_bases(self, guard, number):
        rng = random.Random(200 + number)
        begun = 0
        while not self.is_over():
            if self.done[number % N_PROCESSES] < begun + BETWEEN:
                time.sleep(0.001)
                continue
            begun = self.done[number % N_PROCESSES]
            what = rng.random()
            if what < 0.3:
                guard.checkpoint()
            elif what < 0.6:
                with Held(guard.ledger.lock):
                    guard.ledger.drop()  # the next one loads it: a jump
            else:
                guard.rebuild(design="layers", model=None)

    def run(self, number):
        """One process: a writer, two readers, one that makes bases."""
        sys.setswitchinterval(1e-5)
        errors = []

        def guarded(work, *arguments):
            try:
                work(*arguments)
            except BaseException:
                errors.append(traceback.format_exc())
                self.failed.value = 1  # nobody waits for this one

        environment, guard = self.opened()
        with environment, closing(guard):
            work = [self.write, self.read, self.read, self.make_bases]
            threads = [
                threading.Thread(target=guarded, args=(each, guard, number + N_PROCESSES * i))
                for i, each in enumerate(work)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not errors:
                guarded(self.check_all, guard)
            self.remembered[number] = guard.stats().remembered
        if errors:
            print(*errors, sep="\n", file=sys.stderr, flush=True)
        os._exit(bool(errors))

    def check_all(self, guard):
        for k in range(len(KEYS)):
            self.check(guard, k)


def test_no_interleaving_denies_a_key_or_shows_one_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "LEAST_KEYS", 8)
    monkeypatch.setattr(layers, "THREAD_KEYS", 100)
    monkeypatch.setattr(layers, "BREAK_EVEN", 1e9)
    race = Race(tmp_path)
    environment, guard = race.opened()
    with environment, closing(guard):
        guard.update((key, b"v") for key in KEYS[:16] + KEPT)
        guard.rebuild(design="layers", model=None)
    processes = [context.Process(target=race.run, args=(number,)) for number in range(N_PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        race.failed.value |= process.exitcode != 0  # one that has died says nothing
    assert [process.exitcode for process in processes] == [0] * N_PROCESSES
    assert min(race.remembered) > 100
    environment, guard = race.opened()
    with environment, closing(guard):
        race.check_all(guard)
        guard.rebuild(design="layers", model=None)
        race.check_all(guard)
        assert guard.verify().ok
