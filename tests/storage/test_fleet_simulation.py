"""Many hosts in virtual time: no seed may break the promise, and every seed replays exactly."""

import os
import subprocess
import sys

import pytest
from support.fleet_sim import simulate
from support.places import TESTS


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_seed_breaks_the_promise_or_an_invariant(first):
    for seed in range(first, first + 60):
        simulate(seed)


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
