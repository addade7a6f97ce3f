"""A word that is believed only for a while: a log elsewhere, whose newest position is known for the time of a lease."""

import os
import time

import pytest

from dlbf.kernels.ledger import Word, boottime_ns
from dlbf.storage import Guard

FAR = 10**9 * 3600


class Counting(dict):
    """A mapping that counts what is read."""

    n_reads = 0

    def get(self, key, default=None):
        self.n_reads += 1
        return super().get(key, default)

    def __getitem__(self, key):
        self.n_reads += 1
        return super().__getitem__(key)


@pytest.fixture
def guard(tmp_path):
    data = Counting()
    with Guard(data, tmp_path / "guard") as guard:
        guard[b"key"] = b"value"
        data.n_reads = 0
        yield guard, data


def test_boottime_is_the_clock_that_goes_on_in_sleep():
    before, now, after = (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        boottime_ns(),
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    )
    assert before <= now <= after


def test_word_has_no_end_unless_it_is_told():
    assert Word().until_ns == 0


def test_get_within_a_lease_is_answered_from_the_filter(guard):
    guard, data = guard
    guard.ledger.word.until_ns = boottime_ns() + FAR
    assert guard.get(b"absent") is None
    assert b"absent" not in guard
    assert guard.get_many([b"absent", b"none"]) == [None, None]
    assert data.n_reads == 0
    assert guard.get(b"key") == b"value"


def test_get_after_a_lease_reads_the_data(guard):
    guard, data = guard
    guard.ledger.word.until_ns = 1
    assert guard.get(b"absent") is None
    assert data.n_reads == 1
    assert guard.get_many([b"absent", b"key"]) == [None, b"value"]
    assert data.n_reads == 3
    assert not guard.ledger.is_current()
    guard.ledger.word.until_ns = boottime_ns() + FAR
    assert guard.get(b"absent") is None
    assert data.n_reads == 3


def test_lease_ends_by_itself(guard):
    guard, data = guard
    guard.ledger.word.until_ns = until = boottime_ns() + 20_000_000
    while boottime_ns() < until:
        pass
    assert guard.get(b"absent") is None
    assert data.n_reads == 1


def test_views_of_the_past_are_not_answered_with_a_lease(guard):
    guard, _ = guard
    ledger = guard.ledger
    position = ledger.complete_for()
    assert ledger.ask_at(b"absent", position) != 2
    ledger.word.until_ns = boottime_ns() + FAR
    assert ledger.ask_at(b"absent", position) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_has_no_lease(guard):
    guard, _ = guard
    guard.ledger.word.until_ns = boottime_ns() + FAR
    assert guard.ledger.is_current()
    child = os.fork()
    if not child:
        os._exit(int(guard.ledger.is_current() or guard.ledger.ask(b"absent") != 2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
