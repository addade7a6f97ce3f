"""The examples run as they stand."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from support.places import ROOT

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Store

EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
needs_command = pytest.mark.skipif(not (BIN / "dlbf").exists(), reason="needs an installed dlbf command")
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


def run(*arguments, **more):
    return subprocess.run([str(each) for each in arguments], capture_output=True, text=True, timeout=300, **more)


@pytest.fixture
def path(tmp_path):
    """A store with traffic that has lost two thirds of its keys, so that its filter is too large by far."""
    with Store(tmp_path / "urls", sync="none") as store:
        store.update((key, b"") for key in listed_urls(24_000))
        store.rebuild(design="tables", model=None)  # layers follow a store that shrinks by themselves
        with store.write() as txn:
            for key in islice(listed_urls(24_000), 8000, None):
                txn.delete(key)
        store.get_many(ordinary_urls(2000))
    return tmp_path / "urls"


def test_embedding_example_is_short_and_runs(tmp_path):
    text = (EXAMPLES / "embed.py").read_text()
    assert text.count("\n") < 40
    for _ in range(2):  # the second time from the store
        done = run(sys.executable, EXAMPLES / "embed.py", tmp_path / "cache", input="one two one")
        assert (done.returncode, done.stdout) == (0, "ONE\nTWO\nONE\n"), done.stderr
        assert done.stderr.endswith("filtering\n")
    with Store(tmp_path / "cache", readonly=True) as store:
        assert dict(store.items()) == {b"one": b"ONE", b"two": b"TWO"}


def test_embedding_example_without_a_path_tells_its_usage():
    for arguments in ((), ("one", "two")):
        done = run(sys.executable, EXAMPLES / "embed.py", *arguments, stdin=subprocess.DEVNULL)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")
        assert "Traceback" not in done.stderr


def test_embedding_example_computes_once_and_forgets(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import embed

    calls = []
    cache = embed.Cache(tmp_path / "cache", lambda key: calls.append(key) or b"v")
    assert cache.get(b"k") == cache.get(b"k") == b"v"
    assert cache.forget(b"k")
    assert not cache.forget(b"k")
    assert cache.get(b"k") == b"v"
    assert calls == [b"k", b"k"]
    assert isinstance(cache.tidy(), str)
    cache.store.close()


def test_offline_rebuild_backs_up_rebuilds_and_verifies(path, tmp_path):
    backups = tmp_path / "backups"
    command = [sys.executable, EXAMPLES / "offline_rebuild.py", path, "--backups", backups, "--keep", "1"]
    with Store(path, readonly=True) as service:  # in use all the time
        before = service.stats().filter_bytes
        first = run(*command)
        assert first.returncode == 0, first.stdout + first.stderr
        told = json.loads(first.stdout)
        assert told["ok"]
        assert told["rebuilt"]
        assert told["keys"] == 8000
        after = service.stats()
        assert after.filter_bytes + after.model_bytes < before
        assert all(key in service for key in listed_urls(8000))
    again = json.loads(run(*command).stdout)
    assert (again["ok"], again["rebuilt"]) == (True, False)
    (kept,) = backups.iterdir()
    assert str(kept) == again["backup"]
    with Store(kept, readonly=True) as store:
        assert store.verify().ok
        assert len(store) == 8000


def test_offline_rebuild_tells_what_needs_a_human(path, tmp_path):
    done = run(sys.executable, EXAMPLES / "offline_rebuild.py", tmp_path / "none", path, "--keep", "0")
    assert done.returncode == 2
    done = run(sys.executable, EXAMPLES / "offline_rebuild.py", tmp_path / "none", path)
    assert done.returncode == 1
    bad, good = map(json.loads, done.stdout.splitlines())
    assert "there is no store" in bad["problems"][0]
    assert good["ok"]
    assert not (tmp_path / "none").exists()


def unit(name):
    """The sections of a unit file; a name that is given several times has the last value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string((EXAMPLES / name).read_text())
    return parser


@needs_command
def test_systemd_service_commands_run(path):
    service = unit("dlbf-rebuild.service")["Service"]
    assert service["Type"] == "oneshot"
    name, _, example = service["Environment"].partition("=")
    assert example.startswith(service["ReadWritePaths"])
    for line in ("ExecStart", "ExecStartPost"):
        words = service[line].replace(f"${{{name}}}", str(path)).split()
        assert words[0] == "/usr/local/bin/dlbf"
        done = run(BIN / "dlbf", *words[1:])
        assert done.returncode == 0, done.stderr
    with Store(path, readonly=True) as store:
        assert store.drift().built > 0


@needs_systemd
def test_systemd_units_are_accepted(tmp_path):
    for name in ("dlbf-rebuild.service", "dlbf-rebuild.timer"):
        text = (EXAMPLES / name).read_text()
        # This machine has neither the user nor the command where the example has them.
        text = text.replace("User=dlbf", "User=root").replace("/usr/local/bin/dlbf", "/bin/true")
        (tmp_path / name).write_text(text)
    for name in ("dlbf-rebuild.service", "dlbf-rebuild.timer"):
        done = run("systemd-analyze", "verify", tmp_path / name)
        problems = [line for line in done.stderr.splitlines() if "dlbf-rebuild" in line]
        assert (done.returncode, problems) == (0, []), done.stderr
    calendar = unit("dlbf-rebuild.timer")["Timer"]["OnCalendar"]
    assert run("systemd-analyze", "calendar", calendar).returncode == 0


def cron_lines():
    """The environment and the commands of the crontab."""
    settings, commands = {}, []
    for line in (EXAMPLES / "crontab").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if found := re.fullmatch(r"([A-Z]+)=(.*)", line):
            settings[found[1]] = found[2]
            continue
        *times, command = line.split(None, 5)
        for field, largest in zip(times, (59, 23, 31, 12, 7), strict=True):
            assert re.fullmatch(r"\*(/\d+)?|\d+", field), line
            assert all(int(number) <= largest for number in re.findall(r"\d+", field)), line
        assert "%" not in command  # cron would take it for an end of line
        commands.append(command)
    return settings, commands


@needs_command
def test_cron_commands_are_silent_when_all_is_well_and_speak_when_not(path):
    settings, commands = cron_lines()
    assert len(commands) == 3
    environment = os.environ | settings | {"STORE": str(path), "PATH": f"{BIN}:{settings['PATH']}"}
    # The rebuild reports what it did; from then on all is well.
    assert run("sh", "-c", commands[0], env=environment).stdout.startswith("done")
    for command in commands:
        done = run("sh", "-c", command, env=environment)
        assert (done.stdout, done.stderr) == ("", ""), command
    (path / "secret.key").unlink()
    spoken = run("sh", "-c", commands[2], env=environment)
    assert "without its filter" in spoken.stdout
    assert "failed" in run("sh", "-c", commands[1], env=environment).stdout
