"""Threads and processes that add, delete, read and make new bases of one layered store, learned and not.

Every key has one owner, and a number that all processes see: it says what the owner has last done to the key, and rises
by one before that and after it.  Whoever reads the number, then the key, and finds the number unchanged knows what the
store had to answer, whatever else has happened meanwhile.
"""

import multiprocessing
import os
import random
import sys
import threading
import time
import traceback
from contextlib import closing

import pytest
from support import peek
from support.learned_common import small_model
from support.learnt_urls import ABSENT, FRESH, KEYS

from dlbf.kernels.locks import Held
from dlbf.storage import Store, layers

context = multiprocessing.get_context("fork")

# What a number says, modulo four; those between are changes under way.
GONE, THERE = 0, 2
N_PROCESSES = 2
CHANGES = 1500
# Changes of a process between two new bases, checkpoints or jumps: each of them forgets what is known to be absent.
BETWEEN = 50
# So many of the keys there are when it begins, as many others that are like them, and as many that are not: few, so
# that those who look at some and those who change some meet.
N_OWN = 16


class Race:
    """The keys that are changed, and what has happened to each of them."""

    def __init__(self, path, stored, others):
        self.path = path
        self.keys = stored + others
        self.words = context.RawArray("Q", [THERE] * len(stored) + [GONE] * len(others))
        self.done = context.RawArray("Q", N_PROCESSES)  # changes of each writer
        self.failed = context.RawValue("Q", 0)

    def is_over(self):
        return self.failed.value or min(self.done) == CHANGES

    # --- those that change

    def write(self, store, number):
        """Change the keys of one owner: quickly one by one, in transactions, in transactions that are given up."""
        rng = random.Random(number)
        own = range(number, len(self.keys), N_PROCESSES)
        for i in range(CHANGES):
            if self.failed.value:
                break
            part = rng.sample(own, rng.choice([1, 1, 1, 7]))
            for k in part:
                self.words[k] += 1
            if len(part) > 1:
                self.transact(store, part, rng.random() < 0.8)
            else:
                self.change(store, part[0])
            for k in part:
                self.words[k] += 1
            self.check(store, part[0])
            self.done[number] = i + 1

    def change(self, store, k):
        if self.words[k] % 4 == GONE + 1:
            store[self.keys[k]] = b"v"
        else:
            assert store.delete(self.keys[k])

    def transact(self, store, part, commits):
        txn = store.write()
        for k in part:
            if self.words[k] % 4 == GONE + 1:
                txn.put(self.keys[k], b"v")
            else:
                assert txn.delete(self.keys[k])
        if commits:
            txn.commit()
            return
        txn.abort()
        for k in part:
            self.words[k] += 2

    # --- those that look

    def check(self, store, k):
        """One key, if nobody has changed it meanwhile."""
        key, before = self.keys[k], self.words[k]
        found = (store.get(key), key in store, store.get_many([key])[0])
        if self.words[k] == before and before % 2 == 0:
            expected = b"v" if before % 4 == THERE else None
            assert found == (expected, expected is not None, expected), (key, before)

    def check_many(self, store, part):
        before = [self.words[k] for k in part]
        found = store.get_many([self.keys[k] for k in part])
        for k, word, value in zip(part, before, found, strict=True):
            if word % 2 == 0 and self.words[k] == word:
                assert value == (b"v" if word % 4 == THERE else None), (self.keys[k], word)

    def check_past(self, store, part, meanwhile):
        """What a snapshot has stays, whatever is changed and asked for besides."""
        before = [self.words[k] for k in part]
        with store.snapshot() as view:
            held = [(k, word) for k, word in zip(part, before, strict=True) if word % 2 == 0 and self.words[k] == word]
            meanwhile()
            for k, word in held:
                assert view.get(self.keys[k]) == (b"v" if word % 4 == THERE else None), (self.keys[k], word)

    def read(self, store, number):
        rng = random.Random(100 + number)
        everything = range(len(self.keys))
        while not self.is_over():
            for _ in range(10):
                self.check_many(store, rng.sample(everything, len(everything) // 2))
                self.check(store, rng.choice(everything))
            part = rng.sample(everything, 5)
            self.check_past(store, part, lambda part=part: [self.check(store, k) for k in part])
            assert store.get_many(KEPT) == [b"v"] * len(KEPT)
            assert store.get_many(NEVER) == [None] * len(NEVER)

    # --- those that make filters

    def make_bases(self, store, number):
        rng = random.Random(200 + number)
        begun = 0
        while not self.is_over():
            if self.done[number % N_PROCESSES] < begun + BETWEEN:
                time.sleep(0.001)
                continue
            begun = self.done[number % N_PROCESSES]
            if rng.random() < 0.3:
                store.checkpoint()
            elif rng.random() < 0.5:
                with Held(store.ledger.lock):
                    store.ledger.drop()  # the next one loads it: a jump
            else:
                remake(store)

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

        with closing(Store(self.path, sync="none")) as store:
            store.source.fetch_places = slowly(store.source.fetch_places)
            work = [self.write, self.read, self.read, self.make_bases]
            threads = [
                threading.Thread(target=guarded, args=(each, store, number + N_PROCESSES * i))
                for i, each in enumerate(work)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not errors:
                guarded(self.check_all, store)
        if errors:
            print(*errors, sep="\n", file=sys.stderr, flush=True)
        os._exit(bool(errors))

    def check_all(self, store):
        for k in range(len(self.keys)):
            self.check(store, k)


def slowly(fetch_places):
    """Others get their turn between what is read and what is made of it."""

    def fetch(*arguments):
        found = fetch_places(*arguments)
        time.sleep(0.0005)
        return found

    return fetch


def remake(store):
    """Make a base of all keys beside writers, with the model there is, as growth and a rebuild do."""
    before = store.ledger.answering()
    if before is None:
        return
    commits = peek.commits(store)
    gathering = layers.next_gathering(before, len(store), store.ledger.settings.info.fpr, peek.secret(store))
    builder = commits.new_builder(gathering)
    commits.build(builder, len(store), lambda done, total: None)
    commits.switch(builder)


KEPT = KEYS[4 * N_OWN : 4 * N_OWN + 100]
NEVER = FRESH[2 * N_OWN : 2 * N_OWN + 100]


@pytest.mark.parametrize("learned", [False, True])
def test_no_interleaving_denies_a_key_or_shows_one_that_is_gone(path, monkeypatch, learned):
    monkeypatch.setattr(layers, "LEAST_KEYS", 8)
    stored, others = KEYS[:N_OWN], KEYS[N_OWN : 2 * N_OWN] + FRESH[:N_OWN]
    # With so few keys a model pays only where little may pass; without one, more of what is gone should.
    with Store(path, sync="none", fpr=0.01 if learned else 0.2) as store:
        store.update((key, b"v") for key in stored + KEYS[4 * N_OWN : 15_000 if learned else 3000])
        report = store.rebuild(ABSENT if learned else None, "layers", model=small_model() if learned else None)
    assert (report.design, report.model) == ("layers", "ngram" if learned else "none")
    race = Race(path, stored, others)
    processes = [context.Process(target=race.run, args=(number,)) for number in range(N_PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        race.failed.value |= process.exitcode != 0  # one that has died says nothing
    assert [process.exitcode for process in processes] == [0] * N_PROCESSES
    with Store(path, sync="none") as store:
        race.check_all(store)
        # Whether or not there is a filter that can be used at this moment, another can be made.
        store.rebuild(design="layers", model=None)
        race.check_all(store)
        assert store.stats().design == "layers"
        assert store.verify().ok
