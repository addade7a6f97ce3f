"""Learning a store's filter from its keys and its misses, while it is in use."""

import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from support import peek
from support.learned_common import small_model
from support.learnt_urls import ABSENT, FRESH, KEYS, N_KEYS
from support.samples import SECRET

from dlbf import models
from dlbf.cli import build as build_cli
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.errors import FilterFullError, StoreError
from dlbf.filters.kinds import BASES
from dlbf.kernels.environment import Writing
from dlbf.kernels.journal import OperationLog, apply_record
from dlbf.learned.regions import region_counts, region_rooms
from dlbf.storage import Store, build, drift, generations, layout, ledger, misses, observing, rebuild, samples, steps
from dlbf.storage.traffic import Traffic
from dlbf.theory import DESIGNS

context = multiprocessing.get_context("fork")


def open_store(path, **options):
    return Store(path, **{"sync": "none", **options})


def fill(store, keys=KEYS):
    store.update((key, b"v") for key in keys)


def learn(store, **options):
    """A rebuild that does not spend its time on training; with tables (layers are in test_store_layers.py)."""
    options = {"design": "tables", **options}
    return store.rebuild(options.pop("negatives", ABSENT), model=small_model(), **options)


def rate(store, keys=FRESH):
    return float(store.ledger.filter.contains_many(keys).mean())


def check(store, keys):
    """Everything that must hold whatever the filter."""
    keys = set(keys)
    assert set(store) == keys
    assert store.get_many(list(keys)) == [b"v"] * len(keys)
    assert all(store.ledger.ask(key) != 0 for key in keys)
    verification = store.verify()
    assert verification.ok, verification


# --- a learned generation


def test_rebuild_with_negatives_learns_and_loses_nothing(path):
    with open_store(path) as store:
        fill(store)
        before = store.stats()
        report = learn(store, design="auto")
        stats = store.stats()
        assert report.done
        assert (stats.design, stats.model) == ("layers", "ngram")
        assert stats.model_bytes == small_model().nbytes
        assert stats.bits_per_key < 0.85 * before.bits_per_key
        assert report.before.nbytes == before.filter_bytes
        assert report.after.nbytes == stats.filter_bytes + stats.model_bytes
        assert report.bits_per_key == pytest.approx(stats.bits_per_key)
        check(store, KEYS)
        # 20,000 fresh negatives at 1 %: a standard deviation is 7 % of it.
        assert rate(store) <= 0.01 * 1.21
        assert report.after.fpr_measured <= 0.01 * 1.3
        store.checkpoint()
        first = store.ledger.filter.to_bytes()
    with open_store(path) as store:
        assert store.state == "filtering"
        assert store.ledger.filter.to_bytes() == first
        check(store, KEYS)


def test_learned_filter_is_followed_by_every_process(path):
    here, there = context.Pipe()

    def follower():
        with open_store(path) as store:
            there.send("ready")
            while (command := there.recv()) is not None:
                store.get(command)
                there.send((store.state, store.ledger.filter.to_bytes()))
        os._exit(0)

    open_store(path).close()
    process = context.Process(target=follower)
    process.start()
    assert here.recv() == "ready"
    rng = random.Random(5)
    with open_store(path) as store:
        fill(store)
        for round in range(4):
            learn(store, fpr=0.02 if round % 2 else 0.01)
            for _ in range(8):
                with store.write() as txn:
                    for key in rng.sample(KEYS, 40):
                        txn.delete(key)
                    for key in rng.sample(KEYS, 40):
                        txn.put(key, b"v")
                here.send(b"any")
                state, found = here.recv()
                assert state == "filtering"
                # The same operations on the same bytes give the same bytes, wherever they are applied.
                assert found == store.ledger.filter.to_bytes()
        here.send(None)
        process.join(60)
        check(store, list(store))


@pytest.mark.parametrize("design", [name for name, row in DESIGNS.items() if row.deletable and name != "auto"])
def test_every_deletable_design_can_be_a_generation(path, design):
    allowed = DESIGNS[design].false_negatives
    with open_store(path, secret=SECRET) as store:  # the same entries in every run: a full counter of d-left stays full
        fill(store, KEYS[:3000])
        if allowed:
            with pytest.raises(StoreError, match="allow_false_negatives"):
                learn(store, design=design)
            assert store.stats().design == "cuckoo"
        report = learn(store, design=design, fpr=0.02, allow_false_negatives=allowed)
        assert report.design == design
        assert store.stats().design == design
        model = set(KEYS[:3000])
        rng = random.Random(1)
        for _ in range(12):
            with store.write() as txn:
                for key in rng.sample(KEYS[:4000], 50):
                    if rng.random() < 0.6:
                        txn.delete(key)
                        model.discard(key)
                    else:
                        txn.put(key, b"v")
                        model.add(key)
        if not allowed:
            check(store, model)
        assert set(store) == model


@pytest.mark.parametrize("design", [name for name, row in DESIGNS.items() if not row.deletable])
def test_design_that_cannot_forget_is_refused(path, design):
    with open_store(path) as store:
        fill(store, KEYS[:100])
        with pytest.raises(StoreError, match="cannot forget"):
            store.rebuild(ABSENT, design)
        with pytest.raises(StoreError, match="unknown design"):
            store.rebuild(ABSENT, "no such thing")


def test_growth_keeps_model_and_rate(path):
    with open_store(path) as store:
        fill(store)
        learn(store)
        before = store.stats()
        more = list(listed_urls(9000, seed=21))
        for first in range(0, len(more), 50):
            fill(store, more[first : first + 50])
            assert len(store.ledger.filter) <= store.ledger.sizes.capacity
        stats = store.stats()
        assert stats.generation > before.generation
        assert stats.model == "ngram"
        assert stats.bits_per_key < 1.35 * before.bits_per_key
        check(store, KEYS + more)
        assert rate(store) <= 0.01 * 1.21
        with peek.reading(store) as txn:
            kept = layout.opened(txn.get(layout.COMPILED_KEY, db=peek.dbs(store).model), 0, "compiled")
        assert models.from_bytes(kept) == small_model()


def test_growth_of_one_region_makes_room_before_its_rate_suffers(path):
    """Keys of another kind than those learnt all fall into regions that were planned for few."""
    with open_store(path) as store:
        fill(store)
        learn(store)
        odd = list(ordinary_urls(5000, seed=40))
        for first in range(0, len(odd), 20):
            fill(store, odd[first : first + 20])
            assert store.state == "filtering"
        check(store, KEYS + odd)
        assert rate(store) <= 0.01 * 1.21
        filter = store.ledger.filter
        rooms, counts = region_rooms(filter), region_counts(filter)
        parts = {part.region for part, _, _ in peek.layout(filter)}
        assert all(counts[r] <= rooms[r] for r in parts), (counts, rooms)


def test_one_transaction_with_more_keys_than_there_is_room_for(path):
    with open_store(path) as store:
        fill(store)
        learn(store)
        odd = list(ordinary_urls(30_000, seed=41))
        fill(store, odd)
        assert store.stats().model == "ngram"
        check(store, KEYS + odd)
        assert rate(store) <= 0.01 * 1.21


def test_full_region_is_outgrown_by_the_commit_that_filled_it(path, monkeypatch):
    monkeypatch.setattr(ledger.Ledger, "needs_successor", lambda self: False)
    with open_store(path) as store:
        fill(store)
        learn(store)
        odd = list(ordinary_urls(3000, seed=42))
        filters = {store.stats().generation}
        for first in range(0, len(odd), 10):
            fill(store, odd[first : first + 10])
            assert store.state == "filtering"
            filters.add(store.stats().generation)
            assert all(store.get(key) == b"v" for key in odd[first : first + 10])
        assert len(filters) > 1, "the test is about full regions"
        assert store.stats().model == "ngram"
        check(store, [*KEYS, *odd])


def test_shrinking_keeps_the_model_while_it_pays(path):
    with open_store(path) as store:
        fill(store)
        before = learn(store).after
        for first in range(0, N_KEYS - 1000, 200):
            with store.write() as txn:
                for key in KEYS[first : first + 200]:
                    txn.delete(key)
        stats = store.stats()
        assert stats.model == "ngram"
        assert stats.filter_bytes < before.filter_bytes / 3
        check(store, KEYS[first + 200 :])
        filter = store.ledger.filter
        small = generations.successor(filter, 100, 0.01, peek.secret(store))
        assert generations.design_of(small) == "cuckoo"
        # One that was asked for by name stays.
        learn(store, design="plbf-cbf")
        assert generations.successor(store.ledger.filter, 100, 0.01, peek.secret(store)).design == "plbf-cbf"
        store.rebuild(design="cuckoo")
        with peek.reading(store) as txn:
            assert txn.stat(peek.dbs(store).model)["entries"] == 0


def test_apply_record_makes_room_for_deleted_keys(path):
    """pddbf keeps deleted keys in a set that grows while a record is applied."""
    from support.learned_common import with_exact_set

    found, keys = with_exact_set()
    filter = found.copy()
    record = OperationLog()
    gone = keys[: len(keys) * 2 // 3]
    for key in gone:
        record.removed(key)
    assert apply_record(filter, record.record(1, 1, 0)) == len(gone)
    assert not filter.contains_many(list(gone)).any()
    assert len(filter) == len(found) - len(gone)


def test_apply_record_says_full_for_a_key_that_cannot_come_back():
    from support.learned_common import KEYS as OTHER
    from support.learned_common import fitted

    filter = fitted("lbf-3sbf").copy()
    record = OperationLog()
    record.removed(OTHER[0])
    record.added(OTHER[0])
    with pytest.raises(FilterFullError, match="forgotten"):
        apply_record(filter, record.record(1, 1, 0))


# --- the model


def test_model_and_pickle_are_kept_and_the_pickle_is_never_opened(path, monkeypatch):
    with open_store(path) as store:
        fill(store)
        learn(store)
        secret = peek.secret(store)
        with peek.reading(store) as txn:
            found = {bytes(key): bytes(value) for key, value in txn.cursor(peek.dbs(store).model)}
    assert set(found) == {layout.COMPILED_KEY, layout.ESTIMATOR_KEY}
    assert models.from_bytes(layout.opened(found[layout.COMPILED_KEY], 0, "compiled")) == small_model()
    sealed = layout.opened(found[layout.ESTIMATOR_KEY], 0, "estimator")
    assert type(models.open_pickle(sealed, secret)) is type(small_model().estimator)

    import pickle

    def refuse(*arguments, **options):
        raise AssertionError("a pickle was opened")

    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(models.pickles._ListedUnpickler, "load", refuse)
    with open_store(path) as store:
        check(store, KEYS)
        store.stats(), store.drift(), store.checkpoint()


def test_opening_a_learned_store_imports_no_scikit_learn(path):
    with open_store(path) as store:
        fill(store)
        learn(store)
    program = (
        "import sys; from dlbf.storage import Store\n"
        "s = Store(sys.argv[1]); assert s.get(b'absent') is None and s.state == 'filtering'\n"
        "assert s.stats().model == 'ngram' and s.verify().ok\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('sklearn', 'scipy')]\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def test_store_without_a_secret_keeps_no_pickle(path):
    with open_store(path, keyed=False) as store:
        fill(store)
        learn(store)
        with peek.reading(store) as txn:
            assert [bytes(key) for key, _ in txn.cursor(peek.dbs(store).model)] == [layout.COMPILED_KEY]
        check(store, KEYS)


# --- misses


def through_snapshot(store, keys):
    with store.snapshot() as view:
        return [view.get(key) for key in keys]


def test_misses_are_drawn_uniformly_whichever_way_they_are_asked_for(path, monkeypatch):
    """Each way of asking gets its share of the sample, each key of the traffic its own."""
    monkeypatch.setattr(misses, "LEAST_EVERY", 4.0)
    monkeypatch.setattr(misses, "BUFFER_KEYS", 40_000)  # a full one may be thinned
    ways = {
        b"get": lambda store, keys: [store.get(key) for key in keys],
        b"in": lambda store, keys: [key in store for key in keys],
        b"str": lambda store, keys: [store.get(key.decode()) for key in keys],
        b"many": lambda store, keys: store.get_many(keys),
        b"view": through_snapshot,
    }
    n = 8000
    with open_store(path, fpr=0.3) as store:  # many false positives, which are absent keys as well
        fill(store, KEYS[:1000])
        for start in range(0, n, 500):
            for way, ask in ways.items():
                ask(store, [b"%s %d" % (way, i) for i in range(start, start + 500)])
            store.get_many(KEYS[:50])
            store.get(KEYS[start % 1000])
        assert store.traffic.n_false_positives > 1000
        peek.commits(store).flush()
        with peek.reading(store) as txn:
            found = [key.split() for key in misses.read_misses(txn, peek.dbs(store))]
    counts = Counter(way for way, _ in found)
    # Binomial with p = 1/4: 2,000 of 8,000 with a standard deviation of 39; five of them.
    assert all(abs(counts[way] - n / 4) < 200 for way in ways), counts
    places = np.array([int(number) for _, number in found])
    assert np.histogram(places, 8, (0, n))[0].std() < 5 * math.sqrt(5000 / 4)
    assert not {way for way, _ in found} - set(ways), "a present key is no miss"


def test_misses_are_bounded_and_stay_uniform(path, monkeypatch):
    """A small limit, several processes' worth of flushes: old and new lookups are equally likely to be kept."""
    monkeypatch.setattr(misses, "LEAST_EVERY", 2.0)
    monkeypatch.setattr(misses, "BUFFER_KEYS", 300)
    n = 40_000
    ages = []
    with open_store(path, sample_misses=1000) as store:
        for i in range(n):
            store.get(b"%d" % i)
            if i % 7000 == 6999:
                peek.commits(store).flush()
        peek.commits(store).flush()
        with peek.reading(store) as txn:
            ages = [int(key) for key in misses.read_misses(txn, peek.dbs(store))]
        assert store.traffic.sample_every > 20
        assert store.stats().misses == 1000
    assert len(ages) == 1000
    # Quarters of the traffic: 250 each, standard deviation 14; thinning in between adds its own.
    assert all(abs(count - 250) < 90 for count in np.histogram(ages, 4, (0, n))[0]), np.histogram(ages, 4, (0, n))


def test_misses_before_a_rebuild_make_room_for_those_after(path, monkeypatch):
    monkeypatch.setattr(misses, "LEAST_EVERY", 2.0)
    with open_store(path, sample_misses=500) as store:
        fill(store, KEYS[:100])
        for i in range(40_000):
            store.get(b"old %d" % i)
            if i % 4000 == 0:
                peek.commits(store).flush()
        store.rebuild()
        assert store.stats().misses == 500
        peek.commits(store).flush()
        assert store.traffic.sample_every < 3
        for i in range(2000):
            store.get(b"new %d" % i)
        peek.commits(store).flush()
        with peek.reading(store) as txn:
            counts = Counter(key.split()[0] for key in misses.read_misses(txn, peek.dbs(store)))
        # As many lookups as the sample stands for (500 * 2): so about two thirds are new by now.
        assert 250 < counts[b"new"] < 420, counts


def test_sampling_can_be_turned_off_and_checks_its_argument(path):
    with open_store(path, sample_misses=False) as store:
        for i in range(5000):
            store.get(b"%d" % i)
        store.get_many([b"%d" % i for i in range(5000)])
        assert store.traffic.n_samples == 0
    with open_store(path) as store:
        assert store.stats().misses == 0
    for bad in (-1, 1.5, "yes"):
        with pytest.raises(ValueError, match="sample_misses"):
            open_store(path, sample_misses=bad)


def test_reader_processes_contribute_and_readonly_ones_do_not(path):
    with open_store(path) as store:
        fill(store, KEYS[:100])

    def reader(readonly, name):
        with open_store(path, readonly=readonly) as store:
            for i in range(20_000):
                store.get(b"%s %d" % (name, i))
            assert store.traffic.n_unfiltered == 0
        os._exit(0)

    for readonly, name in ((False, b"writer"), (True, b"readonly")):
        process = context.Process(target=reader, args=(readonly, name))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    with open_store(path) as store:
        with peek.reading(store) as txn:
            counts = Counter(key.split()[0] for key in misses.read_misses(txn, peek.dbs(store)))
        assert set(counts) == {b"writer"}
        assert abs(counts[b"writer"] - 20_000 / misses.LEAST_EVERY) < 130  # five standard deviations
        # What they saw of the filter came along.
        assert store.drift().window == 20_000
        check(store, KEYS[:100])


def test_many_misses_are_written_aside_not_by_the_reader(path, monkeypatch):
    monkeypatch.setattr(misses, "BUFFER_KEYS", 200)
    monkeypatch.setattr("dlbf.storage.traffic.FLUSH_SECONDS", 0.0)
    with open_store(path) as store:
        writers = set()
        real = store.traffic.report

        def report(txn, *arguments):
            import threading

            writers.add(threading.current_thread().name)
            real(txn, *arguments)

        store.traffic.report = report
        # How often the thread comes to write decides how much of the sample it must thin: ask until there is enough.
        asked = itertools.count()
        end = time.monotonic() + 60
        while store.stats().misses < 100 and time.monotonic() < end:
            for i in itertools.islice(asked, 1000):
                store.get(b"%d" % i)
        assert store.stats().misses >= 100
        assert writers == {"dlbf-misses"}
        assert store.verify().ok


def test_misses_that_cannot_be_written_are_thinned_not_tried_at_once_again(path, monkeypatch):
    monkeypatch.setattr(misses, "BUFFER_KEYS", 64)
    tried = []
    flush_aside = Traffic._flush_aside

    def count(self):
        tried.append(1)
        flush_aside(self)

    monkeypatch.setattr(Traffic, "_flush_aside", count)
    view = open_store(path).snapshot()  # nobody is left who could write them
    monkeypatch.setattr(view._traffic, "_flushed_at", -1e9)
    for i in range(64 * 64):
        view._traffic.draw_many([b"%d" % i] * 64, ())  # one in 32 is drawn, so one of these at least
        assert view._traffic.end_flushing(60)
    assert len(tried) == 1
    assert view._traffic.n_samples < 2 * 64
    view.close()


def test_damaged_misses_are_left_out(path):
    with open_store(path) as store:
        fill(store, KEYS[:100])
        with Writing(peek.writes(store)) as txn:
            misses.write_misses(txn, peek.dbs(store), [b"one", b"two"], 16.0, 100, 1.0)
            txn.put(b"\0" * 12, b"forged", db=peek.dbs(store).misses)
            txn.put(b"short", b"forged", db=peek.dbs(store).misses)
            peek.commits(store).commit(txn, OperationLog())
        with peek.reading(store) as txn:
            assert set(misses.read_misses(txn, peek.dbs(store))) == {b"one", b"two"}
        assert any("misses" in problem for problem in store.verify().problems)
        store.rebuild()
        assert store.verify().ok


# --- rebuild


def test_rebuild_learns_from_its_own_traffic(path):
    """Nothing is given: keys from the data, negatives from the misses; those that became keys are left out."""
    with open_store(path, sample_misses=True) as store:
        fill(store)
        store.traffic.sample(1.0, 1 << 20, 1)  # none is written before the rebuild
        for key in ABSENT:
            store.get(key)
        stored_later = ABSENT[:500]
        fill(store, stored_later)
        phases = []
        report = store.rebuild(model="naive-bayes", progress=lambda *step: phases.append(step))
        assert report.done
        assert report.negatives_from == "traffic"
        assert report.negatives == len(ABSENT) - len(stored_later)
        assert report.model == "naive-bayes"
        assert report.bits_per_key < 9.6
        assert [name for name, _ in report.phases] == ["negatives", "scan", "train", "build", "measure", "switch"]
        assert {name for name, _, _ in phases} == {name for name, _ in report.phases}
        assert all(0 <= done <= total for _, done, total in phases)
        check(store, KEYS + stored_later)
        assert rate(store) < 0.013
        assert "from traffic" not in str(report)
        assert "(traffic)" in str(report)
        assert "bits per key" in str(report)
        json.dumps(report.asdict(), allow_nan=False)


def test_rebuild_without_negatives_says_so(path):
    with open_store(path) as store:
        fill(store)
        report = store.rebuild()
        assert (report.design, report.model, report.negatives_from) == ("layers", "none", "none")
        assert any("too few to learn from" in note for note in report.notes)
        with pytest.raises(StoreError, match="learns"):
            store.rebuild(design="lbf-2cbf")
        check(store, KEYS)


def test_rebuild_of_keys_without_structure_takes_no_model(path):
    rng = random.Random(2)
    keys = [rng.randbytes(16) for _ in range(4000)]
    with open_store(path) as store:
        fill(store, keys)
        report = store.rebuild([rng.randbytes(16) for _ in range(4000)], model="naive-bayes")
        assert (report.design, report.model) == ("cuckoo", "none")
        assert any("does not pay" in note for note in report.notes)
        check(store, keys)
        # It was tried: not due again before there is more to learn from.
        assert not store.drift().would_learn


def test_dry_run_changes_nothing(path):
    with open_store(path) as store:
        fill(store)
        store.rebuild(design="cuckoo")
        before = store.stats()
        report = learn(store, dry_run=True)
        assert not report.done
        assert report.reason == "dry run"
        assert report.after.model == "ngram"
        assert report.after.nbytes < report.before.nbytes
        assert store.stats().last_txn == before.last_txn
        planned = report.after
        done = learn(store)
        assert done.after.nbytes == planned.nbytes


def test_interrupted_rebuild_changes_nothing(path):
    with open_store(path) as store:
        fill(store)
        for phase in ("negatives", "scan", "train", "build", "measure", "switch"):
            last = store.stats().last_txn

            def interrupt(name, done, total, phase=phase):
                if name == phase:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                learn(store, progress=interrupt)
            if phase != "switch":
                assert store.stats().last_txn == last
        fill(store, [b"afterwards"])
        check(store, [*KEYS, b"afterwards"])


def test_rebuild_of_a_larger_sample_than_it_keeps(path, monkeypatch):
    """Region sizes come from a sample then; nothing may be lost and the rate must hold."""
    monkeypatch.setattr(rebuild, "MAX_KEYS", 1500)
    monkeypatch.setattr(samples, "SCAN_KEYS_PER_STEP", 700)
    monkeypatch.setattr(rebuild, "MAX_NEGATIVES", 8000)
    with open_store(path) as store:
        fill(store)
        report = learn(store, negatives=iter(ABSENT))
        assert abs(report.sampled_keys - 1500) < 20
        assert report.negatives == 8000
        assert report.after.capacity >= N_KEYS
        check(store, KEYS)
        assert rate(store) <= 0.01 * 1.25


def test_store_that_outgrows_the_new_filter_is_built_larger(path, monkeypatch):
    with open_store(path) as store:
        fill(store)
        more = list(listed_urls(4000, seed=77))
        real = build.Builder.step
        done = []

        def step(self, txn, n_keys):
            if not done:
                done.append(1)
                fill(store, more)
            return real(self, txn, 1000)

        monkeypatch.setattr(build.Builder, "step", step)
        report = learn(store)
        assert report.done
        assert store.stats().model == "ngram"
        monkeypatch.undo()
        check(store, KEYS + more)


def test_two_rebuilds_at_once_leave_one_whole_filter(path):
    with open_store(path) as store:
        fill(store)

    def other():
        with open_store(path) as store:
            for _ in range(3):
                learn(store)
        os._exit(0)

    process = context.Process(target=other)
    process.start()
    with open_store(path) as store:
        for _ in range(3):
            learn(store)
        process.join(60)
        assert process.exitcode == 0
        check(store, KEYS)


def churn(path, command):
    """A writer at 2,000 operations per second and two readers while ``command`` runs, and until 500 operations and 100
    rounds of each reader are done; nothing may be missed."""
    stop, ready = context.Event(), context.Event()
    longest, operations = context.Value("d", 0.0), context.Value("q", 0)
    alive, gone = context.Value("q", 0), context.Value("q", 0)
    rounds = context.Array("q", 2)
    batch = 20

    def writer():
        n = removed = 0
        with open_store(path) as store:
            while not stop.is_set():
                before = time.monotonic()
                with store.write() as txn:
                    for _ in range(batch // 2):
                        txn.put(b"made.example/%d/index" % n, b"v")
                        n += 1
                    alive.value, gone.value = n - batch // 2, max(0, n - 2000)
                    while removed < n - 2000:
                        txn.delete(b"made.example/%d/index" % removed)
                        removed += 1
                longest.value = max(longest.value, time.monotonic() - before)
                alive.value = n
                operations.value += batch
                ready.set()
                # 2,000 per second; late is late, no catching up in a burst.
                time.sleep(max(0.0, batch / 2000 - (time.monotonic() - before)))
        os._exit(0)

    def reader(number):
        rng = random.Random(number)
        with open_store(path, readonly=number == 1) as store:
            while not stop.is_set():
                last, first = alive.value, gone.value
                wanted = [b"made.example/%d/index" % i for i in range(max(first, last - 30), last)]
                wanted += rng.sample(KEYS, 20)
                found = store.get_many(wanted) if rng.random() < 0.5 else [store.get(key) for key in wanted]
                for key, value in zip(wanted, found, strict=True):
                    if value is None and not (key.startswith(b"made") and int(key.split(b"/")[1]) < gone.value):
                        os._exit(3)
                assert store.get(b"absent %d" % rng.randrange(10**9)) is None
                rounds[number] += 1
        os._exit(0)

    processes = [context.Process(target=writer), *(context.Process(target=reader, args=(n,)) for n in range(2))]
    for process in processes:
        process.start()
    try:
        assert ready.wait(60)
        command()
        while (operations.value < 500 or min(rounds) < 100) and all(process.is_alive() for process in processes):
            time.sleep(0.01)
    finally:
        stop.set()
        for process in processes:
            process.join(60)
            process.kill()
    assert all(process.exitcode == 0 for process in processes), "a key was missed"
    return longest.value, operations.value


def test_rebuild_beside_a_writer_and_readers_misses_nothing(path):
    with open_store(path) as store:
        fill(store)
    reached, written = [], []

    def command():
        steps.set_hook(reached.append)
        try:
            with open_store(path) as store:
                begin = peek.writes(store).begin_locked
                peek.writes(store).begin_locked = lambda: (written.append(1), begin())[1]
                for _ in range(4):
                    assert learn(store).done
                del peek.writes(store).begin_locked
        finally:
            steps.set_hook(None)

    churn(path, command)
    # A rebuild has the writers' lock from the beginning of the switch to its end, and for a moment to write what was
    # sampled of the misses.  A switch begins again where the map or the filter was too small.
    n_began, n_switches = reached.count("switch-began"), reached.count("switch-done")
    assert n_switches == 4
    assert n_began <= len(written) <= n_began + n_switches
    with open_store(path) as store:
        assert store.stats().design == "auto"
        check(store, list(store))


def test_keys_of_one_region_that_come_between_build_and_switch_find_room(path):
    """Many times what the region has room for."""
    odd = list(ordinary_urls(4000, seed=43))
    with open_store(path) as store:
        fill(store)

        def hook(name):
            if name == "rebuild-switch":
                steps.set_hook(None)
                fill(store, odd)

        steps.set_hook(hook)
        try:
            assert learn(store).done
        finally:
            steps.set_hook(None)
        check(store, [*KEYS, *odd])


@pytest.mark.slow
@pytest.mark.timing
def test_rebuild_of_many_keys_blocks_the_writer_for_one_switch(path, capsys):
    """300,000 keys: reading them takes long enough that a writer who had to wait for it would show."""
    many = list(listed_urls(300_000, seed=90))
    with open_store(path) as store:
        fill(store, [*KEYS, *many])
    spans = []

    def command():
        began = []

        def hook(name):
            if name == "switch-began":
                began.append(time.monotonic())
            elif name == "switch-done":
                spans.append(time.monotonic() - began[-1])

        steps.set_hook(hook)
        try:
            with open_store(path) as store:
                reports.append(learn(store))
        finally:
            steps.set_hook(None)

    reports = []
    before, _ = churn(path, lambda: time.sleep(5.0))
    longest, operations = churn(path, command)
    with capsys.disabled():
        print(f"\nwriter's longest wait {longest * 1e3:.0f} ms ({before * 1e3:.0f} ms without a rebuild), ", end="")
        print(f"switch {max(spans) * 1e3:.0f} ms, {operations} operations in {reports[0].seconds:.1f} s")
    # Reading all keys again in a write transaction would take longer than this second, which a busy machine may need.
    assert longest < max(spans) + before + 1.0
    with open_store(path) as store:
        check(store, list(store))


def kill_rebuilds(path, n_kills, n_switches):
    """SIGKILL ``dlbf rebuild`` at random moments, most of them before its end; the store must be whole each time.

    At least ``n_kills`` times, and until some of them, ``n_switches``, have got as far as the switch.
    """
    with open_store(path) as store:
        fill(store)

    def child(pipe):
        with open_store(path) as store:
            os.write(pipe, b"x")
            while True:
                store.rebuild(ABSENT, model=small_model())

    def run(delay):
        receiving, sending = os.pipe()
        process = context.Process(target=child, args=(sending,))
        process.start()
        os.read(receiving, 1)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        os.close(receiving)
        os.close(sending)

    small_model()
    rng = random.Random(8)
    began = time.perf_counter()
    with open_store(path) as store:
        learn(store)
    usual = time.perf_counter() - began
    generations_seen = set()
    i = 0
    while i < n_kills or len(generations_seen) <= n_switches:
        # Later and later, if the machine has become so slow that none gets as far.
        run(rng.random() * 2 * usual * max(1.0, i / n_kills))
        with open_store(path) as store:
            assert store.state == "filtering"
            generations_seen.add(store.stats().generation)
            extra = b"key %d" % i
            store[extra] = b"v"
            assert store.get(extra) == b"v"
            if i % 5 == 0:
                assert store.verify().ok, store.verify()
            del store[extra]
        i += 1
    with open_store(path) as store:
        check(store, KEYS)


def test_killed_rebuilds_leave_the_old_filter_serving(path):
    kill_rebuilds(path, 20, 1)


@pytest.mark.slow
def test_two_hundred_killed_rebuilds_leave_the_old_filter_serving(path):
    kill_rebuilds(path, 200, 10)


# --- drift


def test_noise_is_no_drift_and_a_bad_rate_is():
    target = 0.01
    rng = np.random.default_rng(3)
    due = 0
    for _ in range(300):
        traffic = layout.TrafficRecord(1)
        for _ in range(20):
            n = 500
            traffic = observing.observe(traffic, 1, n, int(rng.binomial(n, target)))
            due += observing.observed_rate(traffic)[1] > drift.TOLERATED * target
    assert due <= 6  # 6,000 looks at one part in a thousand, and the tolerance besides
    bad = observing.observe(layout.TrafficRecord(1), 1, 20_000, 300)
    assert observing.observed_rate(bad)[1] > drift.TOLERATED * target
    window = observing.observe(layout.TrafficRecord(1), 1, 5_000_000, 50_000)
    assert window.absent <= observing.WINDOW
    assert observing.observed_rate(window)[0] == pytest.approx(target, rel=0.01)
    assert observing.observe(window, 2, 10, 1) == layout.TrafficRecord(2, 10, 1)


def test_drift_sees_false_positives_of_all_processes(path):
    with open_store(path, fpr=0.01, remember_bytes=0) as store:
        fill(store)
        assert not store.rebuild().after.fpr_predicted > 0.01
        assert not store.drift().due
        # A filter that lets everything through that this traffic asks for.
        passing = [b"%d" % i for i in range(200_000) if store.ledger.ask(b"%d" % i) == 1]
        assert len(passing) > 1000
        for key in passing * 2:
            store.get(key)
        found = store.drift()
        assert found.due
        assert found.reasons[0].startswith("false positives")
        assert found.observed_low > 0.5
    with open_store(path, readonly=True) as store:
        assert store.drift().due
        assert store.drift().window == found.window
    with open_store(path) as store:
        report = store.rebuild(if_needed=True)
        assert report.done
        assert "false positives" in report.reason
        assert not store.drift().due
        assert store.rebuild(if_needed=True).reason == "not needed"


def test_drift_counts_changes_since_the_rebuild(path):
    with open_store(path) as store:
        fill(store)
        learn(store)
        for i in range(0, 1000, 100):
            with store.write() as txn:
                for key in KEYS[i : i + 100]:
                    txn.delete(key)
        fill(store, KEYS[:500])
        found = store.drift()
        assert (found.added, found.deleted, found.keys_at_build) == (500, 1000, N_KEYS)
        assert not found.due
    with open_store(path) as store:
        store.ledger.refresh()
        assert (store.drift().added, store.drift().deleted) == (500, 1000)
        store.checkpoint()
        for _ in range(4):
            with store.write() as txn:
                for key in KEYS[2000:4000]:
                    txn.delete(key)
            fill(store, KEYS[2000:4000])
        assert any("churn" in reason for reason in store.drift().reasons)
        learn(store)
        assert (store.drift().added, store.drift().deleted) == (0, 0)


@pytest.mark.parametrize(("deletability", "costs", "limit"), [(0.9, "room", 0.5), (0.0, "rate", 0.15)])
def test_drift_asks_for_a_rebuild_sooner_where_churn_costs_rate(path, deletability, costs, limit):
    with open_store(path) as store:
        fill(store, KEYS[:5000])
        assert (store.drift(estimate=False).churn_costs, store.drift(estimate=False).turnover) == ("", 0.0)
        learn(store, deletability=deletability, adversarial_fpr=1 - deletability)
        for share in (0.8 * limit, 1.1 * limit):
            n = int(share * 5000)
            with store.write() as txn:
                for key in KEYS[:n]:
                    txn.delete(key)
                for key in KEYS[5000 : 5000 + n]:
                    txn.put(key, b"v")
            found = store.drift(estimate=False)
            assert (found.churn_costs, found.churn_limit) == (costs, limit)
            assert found.turnover == pytest.approx(share, abs=0.01)
            assert any(f"costs {costs}" in reason for reason in found.reasons) == (share > limit)
        json.dumps(found.asdict(), allow_nan=False)


def test_drift_estimates_what_a_model_would_save(path):
    with open_store(path) as store:
        fill(store)
        store.rebuild()
        assert not store.drift().due
        store.traffic.sample(2.0, misses.BUFFER_KEYS, 1)
        for key in ABSENT:
            store.get(key)
        quick = store.drift(estimate=False)
        assert not quick.would_learn
        found = store.drift()
        assert found.would_learn
        assert found.saving_bytes > 1000
        report = store.rebuild(model=small_model())
        # An estimate from little: a third off at most.
        assert found.estimated_bits_per_key == pytest.approx(report.bits_per_key, rel=0.33)
        json.dumps(found.asdict(), allow_nan=False)


def test_drift_sees_that_a_store_emptied_and_filled_again_has_no_model_any_more(path):
    with open_store(path) as store:
        fill(store)
        store.traffic.sample(2.0, misses.BUFFER_KEYS, 1)
        for key in ABSENT:
            store.get(key)
        assert store.rebuild(model=small_model(), design="tables").model != "none"
        assert not store.drift().due
        with store.write() as txn:
            for key in KEYS[30:]:
                txn.delete(key)
        for key in KEYS[:30]:  # small commits, in which the next, smaller filter is built
            store[key] = b"v"
            del store[key]
            store[key] = b"v"
        with store.write() as txn:
            for key in KEYS[30:]:
                txn.put(key, b"v")
        for key in KEYS[:100]:
            store[key] = b"v"
        assert not store.stats().model_bytes
        assert any("memory" in reason for reason in store.drift().reasons)
        check(store, KEYS)


@pytest.mark.parametrize("n_keys", [1000, 3000, 30_000])
def test_room_left_by_growth_is_no_drift_and_a_shrunk_store_is(path, n_keys):
    keys = list(listed_urls(n_keys, seed=79))
    with open_store(path) as store:
        for first in range(0, n_keys, 10_000):  # as ``dlbf load`` does
            fill(store, keys[first : first + 10_000])
        assert store.drift().reasons == ()
        for _ in range(2):  # a rebuild leaves little room: the next keys make the filter grow, and that is no reason
            store.rebuild()
            assert store.drift().reasons == ()
            more = [b"more %d" % i for i in range(len(store), int(1.1 * len(store)) + 100)]
            for first in range(0, len(more), 50):
                fill(store, more[first : first + 50])
            assert store.drift().reasons == ()
        if n_keys < 30_000:
            return  # too small for anything to be saved
        doomed = list(store)[::2]
        with store.write() as txn:
            for key in doomed:
                txn.delete(key)
        # With layers the next base has been made already.
        assert store.drift().reasons == ()
        assert store.stats().layers.base_keys == len(store)
        store.rebuild(design="tables")
        with store.write() as txn:
            for key in list(store)[::2]:
                txn.delete(key)
        assert any("memory" in reason for reason in store.drift().reasons)


# --- the command line


def run(*arguments):
    result = CliRunner().invoke(build_cli(), [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_sizes_per_key_are_shown_where_they_mean_something(path):
    with open_store(path) as store:
        store[b"one"] = b"v"
        report = store.rebuild()
    assert re.search(r"^bits per key +- +-$", str(report), re.MULTILINE)
    out = run("info", path)[1]
    assert "bits per key" not in out
    assert "saving" not in out
    keys = list(listed_urls(30_000, seed=79))
    path = path.with_name("larger")
    with open_store(path) as store:
        for first in range(0, len(keys), 10_000):
            fill(store, keys[first : first + 10_000])
        stats = store.stats()
        assert stats.capacity > 1.2 * stats.keys  # it has just grown
    code, out = run("info", path, "--check")
    assert code == 0
    assert "rebuild     not due\n" in out
    full = 8 * stats.filter_bytes / stats.capacity
    assert f"{stats.bits_per_key:.2f} bits per key, {full:.2f} when full\n" in out
    assert "of them gone; 0 of" in out
    assert "each process remembers up to 64.0 KiB of absent keys" in out


def test_commands_rebuild_info_and_verify(path, tmp_path):
    negatives = tmp_path / "absent.txt"
    negatives.write_bytes(b"\n".join(ABSENT))
    with open_store(path) as store:
        gone = list(listed_urls(2 * N_KEYS, seed=78))
        fill(store, KEYS + gone)
        store.rebuild(design="tables")  # with layers the next base would be made at once
        with store.write() as txn:
            for key in gone:
                txn.delete(key)
    code, out = run("info", path, "--check", "--json")
    assert code == 1
    assert json.loads(out)["status"] == "rebuild due"
    arguments = ("rebuild", path, "--negatives", negatives, "--model", "naive-bayes")
    code, out = run(*arguments, "--dry-run", "--json")
    planned = json.loads(out)
    assert (code, planned["done"], planned["after"]["model"]) == (0, False, "naive-bayes")
    code, out = run(*arguments)
    assert code == 0
    assert out.startswith("done")
    assert f"{planned['after']['bits_per_key']:.2f}" in out
    code, out = run("info", path, "--check")
    assert code == 0
    assert "not due" in out
    assert "naive-bayes model" in out
    assert len(out.splitlines()) < 24
    code, out = run("rebuild", path, "--if-needed", "--json")
    assert (code, json.loads(out)["reason"]) == (0, "not needed")
    assert run("verify", path) == (0, f"{path}: {N_KEYS:,} keys, ok\n")
    code, out = run("verify", path, "--json")
    assert (code, json.loads(out)["missing"]) == (0, 0)
    code, out = run("rebuild", path, "--design", "lbf-3cbf", "--negatives", negatives)
    assert code == 2
    assert "allow_false_negatives" in out
    code, out = run("rebuild", tmp_path / "nowhere")
    assert code == 2


def test_commands_tell_a_damaged_store(path, caplog):
    caplog.set_level(logging.CRITICAL, "dlbf.storage")
    with open_store(path) as store:
        fill(store)
    with open_store(path) as store, Writing(peek.writes(store)) as txn:
        txn.drop(peek.dbs(store).filter, delete=False)
        peek.commits(store).commit(txn, OperationLog())
    code, out = run("info", path, "--check")
    assert code == 3
    assert "NEEDED" in out
    code, out = run("verify", path)
    assert code == 1
    assert "NOT ok" in out
    code, out = run("rebuild", path, "--if-needed", "--quiet")
    assert (code, out[:4]) == (0, "done")
    assert run("info", path, "--check", "--fast")[0] == 0
    assert run("verify", path)[0] == 0


def test_verify_and_info_of_a_filter_file(tmp_path):
    from support.learned_common import fitted

    file = tmp_path / "filter.dlbf"
    fitted("auto").save(file)
    assert run("verify", file)[0] == 0
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)
    code, out = run("verify", file)
    assert code == 1
    assert "checksum" in out
    assert run("info", file, "--check")[0] == 3


def test_ctrl_c_is_clean(path, tmp_path):
    """The real command, really interrupted: exit code 130, one line, and nothing has changed."""
    negatives = tmp_path / "absent.txt"
    negatives.write_bytes(b"\n".join(ABSENT))
    with open_store(path) as store:
        fill(store)
        last = store.stats().last_txn
    program = """
import os, signal
from dlbf.cli import main, rebuild
phases = []
def shower(bar):
    def show(phase, done, total):
        phases.append(phase)
        if len(set(phases)) == 2:
            os.kill(os.getpid(), signal.SIGINT)
    return show
rebuild._shower = shower
main()
"""
    command = [sys.executable, "-c", program, "rebuild", str(path), "--negatives", str(negatives)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 130
    assert process.stderr == "interrupted: nothing was changed, the old filter goes on serving\n"
    with open_store(path) as store:
        assert store.stats().last_txn <= last + 1  # opening may write
        check(store, KEYS)


def test_secret_kept_elsewhere_is_asked_for(path, tmp_path):
    with open_store(path, secret=SECRET) as store:
        fill(store)
    code, out = run("rebuild", path)
    assert code == 2
    assert "secret=" in out
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    assert run("rebuild", path, "--secret-file", secret)[0] == 0
    assert run("verify", path, "--secret-file", secret)[0] == 0


def test_generations_names_are_those_of_the_designs():
    for row in BASES.values():
        if row.deletable and row.design is not None:
            assert generations.design_of(row.cls(100)) == row.design.name
            assert DESIGNS[row.design.name].member == (row.name,)


def test_one_absent_key_asked_for_again_and_again_is_one_to_learn_from(path):
    """A model learnt from it alone would let one in ten of all others through, and measure nothing of that."""
    with open_store(path) as store:
        fill(store)
        for _ in range(60_000):
            store.get(b"polled")
        report = store.rebuild()
        assert report.negatives == 1
        assert store.stats().model == "none"
        assert rate(store) < 0.015
        assert not store.drift().would_learn
        report = store.rebuild([b"polled/%d" % (i % 10) for i in range(20_000)])
        assert report.negatives == 10
        assert rate(store) < 0.015
