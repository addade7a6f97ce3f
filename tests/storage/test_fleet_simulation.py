"""Many hosts in virtual time: no seed may break the promise, and every seed replays exactly."""

import os
import subprocess
import sys

import pytest
from support.fleet_mutations import MUTATIONS, mutated
from support.fleet_oracle import Violation
from support.fleet_sim import simulate
from support.places import TESTS


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_seed_breaks_the_promise_or_an_invariant(first):
    for seed in range(first, first + 60):
        simulate(seed)


# Wrong versions of the protocol, and the first seed that catches each.
CAUGHT = {
    "head not heard from renewals": 0,
    "validity from receiving": 6,
    "head read before the lease": 33,
    "probe, then check": 454,
    "remove retried by the client": 158,
    "remove before DEL": 9,
    "remove without DEL's word": 49,
    "no open list": 0,
    "SET retried by the client": 1417,
    "untagged remove": 1020,
    "SET before add": 0,
    "sweeper that logs expiry": 9,
    "EXISTS, then SET": 241,
    "no identity with DEL": 773,
    "no identity with XX": 1430,
    "no epoch": 17,
    "no grace": 16,
    "grace of one lease only": 601,
    "no fence": 460,
    "no wait for readers": 0,
    "waits for the wrong position": 0,
    "too much taken back": 0,
    "lease longer than the clocks allow": 6,
    "lapse counted from sending": 166,
    "lapse too early": 3,
    "lapse though the counter moved": 53,
    "answers though not as far as the head": 0,
    "loads without what was logged since": 0,
    "keeps its copy in a new epoch": 4,
    "adds since the beginning left out": 6,
}


@pytest.mark.parametrize("name", CAUGHT)
def test_wrong_version_is_caught(name):
    with mutated(name), pytest.raises(Violation, match=f"seed {CAUGHT[name]}: "):
        simulate(CAUGHT[name])


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_can_be_made_and_taken_back(name):
    before = simulate(3)
    with mutated(name):
        pass
    assert simulate(3) == before


def test_seed_replays_exactly_in_another_process():
    command = [sys.executable, "-m", "support.fleet_sim", "--seed", "7", "--trace"]
    runs = [
        subprocess.run(
            command, cwd=TESTS, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=True
        ).stdout
        for salt in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_no_seed_of_many_breaks_the_promise_or_an_invariant(first):
    for seed in range(first, first + 1000):
        simulate(seed)
