"""Feeds of filters: what is published denies no key, whatever happens to the files on the way."""

# ruff: noqa: SIM117

import dataclasses
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import guard_engines

import dlbf
from dlbf.errors import DlbfError, FormatError, StoreError
from dlbf.kernels.hashing import checksum64
from dlbf.storage import Guard, Store, publish, steps, subscribe
from dlbf.storage.distribution import Folder, ServerKeys, places
from dlbf.storage.distribution.deltas import apply_delta, content_of, make_delta
from dlbf.storage.distribution.feed import Head, is_ours

SECRET = bytes(range(16))


def keys_of(start, stop):
    return [b"https://example.org/page/%d" % i for i in range(start, stop)]


class Clocked(Folder):
    """A folder whose clock can be set."""

    ahead_ns = 0

    def now_ns(self):
        return super().now_ns() + self.ahead_ns


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store", sync="none", secret=SECRET) as store:
        store.update((key, b"") for key in keys_of(0, 5000))
        yield store


# --- deltas


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_delta_leads_from_one_content_to_the_other(old, new):
    delta = make_delta(content_of(old), content_of(new))
    assert bytes(apply_delta(content_of(old), checksum64(old), delta)) == new


def test_delta_of_a_long_content_is_short_and_exact():
    old = np.random.default_rng(1).integers(0, 256, (1 << 22) + 12345, dtype=np.uint8)
    new = old.copy()
    new[[0, 77, (1 << 22) - 1, 1 << 22, len(old) - 1]] ^= 9
    delta = make_delta(old, new)
    assert len(delta) < 200
    assert (apply_delta(old, checksum64(old), delta) == new).all()


def test_delta_that_was_cut_or_changed_gives_nothing():
    old, new = b"some old content" * 3, b"a newer content!" * 4
    delta = make_delta(content_of(old), content_of(new))
    damaged = [delta[:n] for n in range(len(delta))]
    damaged += [
        bytes([*delta[:i], delta[i] ^ 1 << bit, *delta[i + 1 :]]) for i in range(len(delta)) for bit in range(8)
    ]
    n_taken = 0
    for each in [*damaged, delta + b"more"]:
        try:
            result = apply_delta(content_of(old), checksum64(old), each)
        except FormatError:
            continue
        n_taken += 1
        assert bytes(result) == new
    assert n_taken < len(damaged) / 50  # some bits of what is compressed mean nothing, or the same
    with pytest.raises(FormatError, match="another version"):
        apply_delta(content_of(new), checksum64(new), delta)


def test_delta_is_laid_out_as_documented():
    old, new = b"abc", b"abXd"
    numbers = (3, checksum64(old), 4, checksum64(new), 2)
    head = bytes.fromhex("89444c4246440d0a0100000000000000") + b"".join(n.to_bytes(8, "little") for n in numbers)
    body = bytes([2, 1]) + bytes(14) + bytes([ord("c") ^ ord("X"), ord("d")])
    delta = head + zlib.compress(body)  # compressors differ in how they say the same: only what they say counts
    assert bytes(apply_delta(content_of(old), checksum64(old), delta)) == new
    made = make_delta(content_of(old), content_of(new))
    assert (made[:56], zlib.decompress(made[56:])) == (head, body)


def test_delta_that_claims_to_be_huge_allocates_nothing():
    delta = bytearray(make_delta(content_of(b"old"), content_of(b"new")))
    for place in (32, 48):  # length of the result, number of changes
        forged = bytearray(delta)
        forged[place : place + 8] = (1 << 60).to_bytes(8, "little")
        with pytest.raises(FormatError):
            apply_delta(content_of(b"old"), checksum64(b"old"), bytes(forged))


# --- the promise


class Oracle:
    """A store, its feed, a subscriber, and the keys of every version."""

    def __init__(self, folder):
        self.store = Store(folder / "store", sync="none", secret=SECRET)
        self.feed = folder / "feed"
        self.place = Clocked(self.feed)
        self.publisher = publish(self.store, self.place, interval=None)
        self.subscription = subscribe(Clocked(self.feed), interval=None, max_age=1000, secret=SECRET)
        self.keys = set()
        self.versions = {}
        self.publish()

    def add(self, keys):
        self.store.update((key, b"") for key in keys)
        self.keys |= keys

    def remove(self, keys):
        with self.store.write() as txn:
            for key in keys:
                txn.delete(key)
        self.keys -= keys

    def publish(self, full=False):
        done = self.publisher.publish(full)
        self.newest = done.feed, done.version
        self.versions[self.newest] = set(self.keys)

    def restart(self):
        self.publisher.close()
        self.publisher = publish(self.store, self.place, interval=None)
        self.publish()

    def damage(self, number, how):
        files = sorted(path for path in self.feed.iterdir() if not path.name.startswith("."))
        path = files[number % len(files)]
        data = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[: len(data) // 2])
        else:
            data[number % len(data)] ^= 16
            path.write_bytes(data)

    def refresh(self):
        try:
            self.subscription.refresh()
        except DlbfError:
            pass

    def check(self):
        told = self.subscription.freshness()
        version = told.feed, told.version
        for key in self.versions.get(version, ()):
            assert key in self.subscription, (key, version)
        assert self.subscription.contains_many(sorted(self.versions.get(version, ()))).all()

    def close(self):
        self.subscription.close()
        self.publisher.close()
        self.store.close()


few = st.sets(st.integers(0, 400).map(lambda i: b"key %d" % i), min_size=1, max_size=60)
operations = st.one_of(
    st.tuples(st.just("add"), few), st.tuples(st.just("remove"), few), st.tuples(st.just("publish")),
    st.tuples(st.just("publish"), st.just(True)), st.tuples(st.just("refresh")), st.tuples(st.just("restart")),
    st.tuples(st.just("damage"), st.integers(0, 10**6), st.sampled_from(["gone", "cut", "flipped"])),
)  # fmt: skip


@settings(max_examples=20)
@given(st.lists(operations, max_size=20))
def test_subscriber_has_every_key_of_its_version_whatever_happens_to_the_files(tmp_path_factory, steps):
    oracle = Oracle(tmp_path_factory.mktemp("oracle"))
    try:
        for name, *arguments in steps:
            try:
                getattr(oracle, name)(*arguments)
            except StoreError as error:  # the head was damaged: whose feed it is cannot be told
                if "somebody else" not in str(error):
                    raise
                oracle.restart()
            oracle.check()
        oracle.restart()
        oracle.refresh()
        oracle.check()
        assert oracle.subscription.freshness().state == "filtering"
        told = oracle.subscription.freshness()
        assert (told.feed, told.version) == oracle.newest
        assert all(key in oracle.subscription for key in oracle.keys)
    finally:
        oracle.close()


def test_hosts_far_behind_and_hosts_a_little_behind_come_to_the_newest_version(store, tmp_path):
    late = subscribe(tmp_path / "feed", interval=None, secret=SECRET)  # before anything is there
    assert late.freshness().state == "pass-through"
    assert b"nobody" in late
    with publish(store, tmp_path / "feed", interval=None) as publisher:
        near = subscribe(tmp_path / "feed", interval=None, secret=SECRET)
        how = []
        for turn in range(50):
            store.update((key, b"") for key in keys_of(10_000 + 20 * turn, 10_020 + 20 * turn))
            how.append(publisher.publish().how)
            if turn % 7 == 0:
                assert near.refresh().how in ("delta", "full")
                assert all(key in near for key in keys_of(10_000, 10_020 + 20 * turn))
        assert 3 <= how.count("full") <= 5  # every sixteenth, and when the base is made anew
        assert late.refresh().how == "full"
        for each in (near, late):
            each.refresh()
            assert all(key in each for key in [*keys_of(0, 5000), *keys_of(10_000, 11_000)])
            assert each.freshness().position == store.stats().last_txn
            denied = sum(key not in each for key in keys_of(50_000, 52_000))
            assert denied > 1900
            each.close()


def test_position_is_read_after_the_clock(store, tmp_path):
    """A key that was stored before the moment that a version names is in it."""

    class Slow(Folder):
        def now_ns(self):
            store[b"stored just before the clock was read"] = b""
            return super().now_ns()

    with publish(store, Slow(tmp_path / "feed"), interval=None):
        with subscribe(tmp_path / "feed", interval=None, secret=SECRET) as fruit:
            assert b"stored just before the clock was read" in fruit
            assert b"never stored" not in fruit


def test_old_filter_denies_nothing_and_is_believed_again_when_renewed(store, tmp_path):
    place = Clocked(tmp_path / "feed")
    with publish(store, place, interval=None) as publisher:
        seen = Clocked(tmp_path / "feed")
        with subscribe(seen, interval=None, max_age=30, clock_error=1, secret=SECRET) as fruit:
            assert b"absent" not in fruit
            seen.ahead_ns = 28_000_000_000
            fruit = subscribe(seen, interval=None, max_age=30, clock_error=1, secret=SECRET)
            assert b"absent" not in fruit
            seen.ahead_ns = 29_500_000_000  # the clocks may be a second apart
            fruit = subscribe(seen, interval=None, max_age=30, clock_error=1, secret=SECRET)
            assert b"absent" in fruit
            assert fruit.contains_many([b"absent", b"other"]).all()
            told = fruit.freshness()
            assert (told.state, told.passed) == ("pass-through", 3)
            assert "is the publisher running?" in told.reason
            place.ahead_ns = 29_500_000_000
            assert publisher.publish().how == "same"
            fruit.refresh()
            assert b"absent" not in fruit


def test_filter_from_the_future_is_not_believed(store, tmp_path):
    place = Clocked(tmp_path / "feed")
    place.ahead_ns = 5_000_000_000
    with publish(store, place, interval=None):
        with subscribe(tmp_path / "feed", interval=None, clock_error=1, secret=SECRET) as fruit:
            assert b"absent" in fruit
            assert "set the clocks" in fruit.freshness().reason
        with subscribe(tmp_path / "feed", interval=None, clock_error=6, secret=SECRET) as fruit:
            assert b"absent" not in fruit


def test_older_head_than_one_that_was_seen_changes_nothing(store, tmp_path):
    with publish(store, tmp_path / "feed", interval=None) as publisher:
        old = (tmp_path / "feed/head").read_bytes()
        store[b"new"] = b""
        publisher.publish()
        with subscribe(tmp_path / "feed", interval=None, secret=SECRET) as fruit:
            assert b"new" in fruit
            (tmp_path / "feed/head").write_bytes(old)  # a cache, or a server that lost writes
            fruit.refresh()
            assert b"new" in fruit
            assert fruit.freshness().version == 2


def test_what_was_not_made_with_the_secret_is_not_taken(store, tmp_path, caplog):
    with publish(store, tmp_path / "feed", interval=None):
        for secret in (bytes(16), None):
            with subscribe(tmp_path / "feed", interval=None, secret=secret) as fruit:
                assert b"absent" in fruit
                assert "secret" in fruit.freshness().reason
        head = Head.unpack((tmp_path / "feed/head").read_bytes(), None, "head")
        (tmp_path / "feed/head").write_bytes(head.pack(bytes(16)))
        with pytest.raises(FormatError, match="not made with this secret"):
            subscribe(tmp_path / "feed", interval=None, secret=SECRET).refresh()
    assert "everything is passed through" in caplog.text


def test_filters_by_themselves_are_published_unless_they_may_deny_keys(tmp_path):
    filter = dlbf.CuckooFilter(1000, 0.01)
    with publish(filter, tmp_path / "feed", interval=None) as publisher:
        filter.add(b"one")
        assert publisher.publish().how == "delta"
        assert publisher.publish().how == "same"
        with subscribe(tmp_path / "feed", interval=None) as copy:
            assert (b"one" in copy, b"two" in copy) == (True, False)
    with publish(dlbf.RibbonFilter.build([b"one"], 0.01), tmp_path / "ribbon", interval=None):
        with subscribe(tmp_path / "ribbon", interval=None, max_age=None) as copy:
            assert (b"one" in copy, b"two" in copy) == (True, False)
    with pytest.raises(TypeError, match="found a dict"):
        publish({}, tmp_path / "other")


def test_store_whose_filter_cannot_be_used_publishes_nothing(tmp_path):
    with Store(tmp_path / "store", secret=SECRET) as store:
        store[b"key"] = b""
    with Store(tmp_path / "store", secret=bytes(16)) as store:  # not the secret of its filter
        with pytest.raises(StoreError, match="nothing is published"):
            publish(store, tmp_path / "feed")
    assert not (tmp_path / "feed/head").exists()


def test_second_publisher_is_refused(store, tmp_path):
    with publish(store, tmp_path / "feed", interval=None) as publisher:
        with pytest.raises(StoreError, match="somebody else publishes here"):
            publish(store, tmp_path / "feed")
        publisher.publish()
    publish(store, tmp_path / "feed", interval=None).close()


def test_guard_is_published_also_by_a_process_that_only_reads(tmp_path):
    with Guard({}, tmp_path / "guard", secret=SECRET) as guard:
        guard.update((key, b"") for key in keys_of(0, 200))
        with publish(guard, tmp_path / "feed", interval=None) as publisher:
            with subscribe(tmp_path / "feed", interval=None, secret=SECRET) as copy:
                guard.put(b"new", b"")
                publisher.publish()
                copy.refresh()
                assert all(key in copy for key in [*keys_of(0, 200), b"new"])
                guard.delete(b"new")
                publisher.publish()
                copy.refresh()
                assert b"new" not in copy
        guard.put(b"newer", b"")
        pytest.importorskip("click")
        (tmp_path / "secret").write_bytes(SECRET)
        words = ["publish", "guard", "feed", "--once", "--secret-file", "secret"]
        subprocess.run([sys.executable, "-m", "dlbf", *words], cwd=tmp_path, check=True, capture_output=True)
        with subscribe(tmp_path / "feed", interval=None, secret=SECRET) as copy:
            assert all(key in copy for key in [*keys_of(0, 200), b"newer"])
            assert b"new" not in copy


def test_rebuild_is_followed(store, tmp_path):
    with publish(store, tmp_path / "feed", interval=None) as publisher:
        with subscribe(tmp_path / "feed", interval=None, secret=SECRET) as copy:
            store.rebuild(model=None)
            store[b"after"] = b""
            publisher.publish()
            copy.refresh()
            assert all(key in copy for key in [*keys_of(0, 5000), b"after"])


def test_delta_is_small_beside_the_filter(tmp_path):
    with Store(tmp_path / "store", sync="none") as store:
        store.update((key, b"") for key in keys_of(0, 100_000))
        store.rebuild(model=None)
        with publish(store, tmp_path / "feed", interval=None) as publisher:
            store.update((key, b"") for key in keys_of(200_000, 200_100))
            done = publisher.publish()
    assert done.how == "delta"
    assert done.delta_bytes < 12 * 100  # bytes per key; the keys themselves have 32
    assert done.full_bytes > 80_000


def test_threads_publish_and_follow_by_themselves(store, tmp_path):
    with publish(store, tmp_path / "feed", interval=0.02):
        with subscribe(tmp_path / "feed", interval=0.02, secret=SECRET) as copy:
            store[b"new"] = b""
            end = time.monotonic() + 60
            while b"new" not in copy and time.monotonic() < end:
                time.sleep(0.01)
            assert b"new" in copy
    assert not [thread for thread in threading.enumerate() if thread.name in ("dlbf-publisher", "dlbf-subscription")]


def test_subscription_that_nothing_refers_to_ends_its_thread(store, tmp_path):
    publish(store, tmp_path / "feed", interval=None).close()
    copy = subscribe(tmp_path / "feed", interval=0.01, secret=SECRET)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "dlbf-subscription"]
    del copy
    thread.join(60)
    assert not thread.is_alive()


def test_cache_is_used_after_a_restart_and_only_if_it_fits(store, tmp_path):
    cache = tmp_path / "copy"
    with publish(store, tmp_path / "feed", interval=None) as publisher:
        with subscribe(tmp_path / "feed", interval=None, secret=SECRET, cache=cache) as copy:
            assert b"absent" not in copy
        with subscribe(tmp_path / "feed", interval=None, secret=SECRET, cache=cache) as copy:
            assert b"absent" not in copy
        store[b"new"] = b""
        publisher.publish()
        counted = Counted(tmp_path / "feed")
        with subscribe(counted, interval=None, secret=SECRET, cache=cache) as copy:
            assert b"new" in copy
        assert not any(name.startswith("full") for name in counted.names)
        cache.write_bytes(b"something else")
        counted = Counted(tmp_path / "feed")
        with subscribe(counted, interval=None, secret=SECRET, cache=cache) as copy:
            assert all(key in copy for key in keys_of(0, 5000))
        assert any(name.startswith("full") for name in counted.names)
        cache.unlink()
        unreachable = subscribe(tmp_path / "nowhere", interval=None, secret=SECRET, cache=cache)
        assert b"absent" in unreachable


class Counted(Folder):
    def __init__(self, path):
        super().__init__(path)
        self.names = []

    def read(self, name, n_bytes):
        self.names.append(name)
        return super().read(name, n_bytes)


# --- killed publishers

KILLED = """
import os, signal, sys
from dlbf.storage import Store, publish, steps
folder, step, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(folder + "/store", secret=bytes(range(16)), sync="none") as store:
    publisher = publish(store, folder + "/feed", interval=None)
    def hook(name):
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)
    for turn in range(turns):
        store.update((b"turn %d key %d" % (turn, i), b"") for i in range(200))
        if turn == turns - 1:
            steps.set_hook(hook)
        publisher.publish(full=turn == turns - 1 and step == "publish-full-written")
"""


@pytest.mark.parametrize("step", steps.PUBLISH_STEPS)
def test_publisher_killed_at_any_step_leaves_a_whole_version(tmp_path, step, monkeypatch):
    with Store(tmp_path / "store", secret=SECRET, sync="none") as store:
        store.update((key, b"") for key in keys_of(0, 3000))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), step, "3"], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    turns = 3 if step == "publish-head-written" else 2
    with subscribe(tmp_path / "feed", interval=None, secret=SECRET) as copy:
        assert copy.freshness().version == turns + 1
        stored = [b"turn %d key %d" % (turn, i) for turn in range(turns) for i in range(200)]
        assert all(key in copy for key in [*keys_of(0, 3000), *stored])
        with Store(tmp_path / "store", secret=SECRET) as store:
            with publish(store, tmp_path / "feed", interval=None) as publisher:
                copy.refresh()
                assert all(b"turn 2 key %d" % i in copy for i in range(200))
                # What the dead one left goes when nobody can be reading it any more.
                for path in (tmp_path / "feed").iterdir():
                    os.utime(path, (0, 0))
                store[b"one more"] = b""
                publisher.publish(full=True)
                store[b"and another"] = b""
                publisher.publish(full=True)
                copy.refresh()
                assert b"and another" in copy
                names = {path.name for path in (tmp_path / "feed").iterdir()}
                assert sum(name.startswith("full") for name in names) == 2
                assert sum(name.startswith("manifest") for name in names) == 2


def test_names_of_files_are_told_from_others():
    assert is_ours("full-12-0123456789abcdef.dlbf")
    for name in (
        "head",
        "full-1-../../etc/passwd.dlbf",
        "full-x-0123456789abcdef.dlbf",
        "delta-1-0123.dlbfd",
        "a-1.json",
    ):
        assert not is_ours(name)


# --- over the network


class Handler(http.server.SimpleHTTPRequestHandler):
    """A plain file server that sends an ETag, and one that it can be told to break."""

    asked, broken = [], set()

    def send_head(self):
        path = Path(self.translate_path(self.path))
        name = path.name
        self.asked.append((name, self.headers.get("If-None-Match")))
        if name.split("-")[0] in self.broken:
            self.send_error(500)
            return None
        if path.is_file():
            self.etag = f'"{path.stat().st_mtime_ns:x}"'
            if self.headers.get("If-None-Match") == self.etag:
                self.send_response(304)
                self.end_headers()
                return None
        return super().send_head()

    def end_headers(self):
        if getattr(self, "etag", None):
            self.send_header("ETag", self.etag)
        super().end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path):
    (tmp_path / "feed").mkdir()
    Handler.asked, Handler.broken = [], set()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/feed"
    server.shutdown()
    thread.join()
    server.server_close()


def test_feed_over_http(store, tmp_path, web):
    with subscribe(web, interval=None, secret=SECRET) as early:
        assert early.freshness().reason == "nothing was published there yet"
    with publish(store, tmp_path / "feed", interval=None) as publisher:
        with subscribe(web, interval=None, secret=SECRET) as copy:
            assert all(key in copy for key in keys_of(0, 5000))
            assert b"absent" not in copy
            n_asked = len(Handler.asked)
            assert copy.refresh().how == "same"
            ((name, etag),) = Handler.asked[n_asked:]
            assert (name, etag is not None) == ("head", True)  # and nothing came but 304
            store[b"new"] = b""
            publisher.publish(full=True)
            Handler.broken = {"delta", "full"}
            with pytest.raises(StoreError, match="cannot be read"):
                copy.refresh()
            assert b"absent" not in copy  # the version before, which is fresh enough
            Handler.broken = {"delta"}
            assert copy.refresh().how == "full"
            assert b"new" in copy
            Handler.broken = {"head"}
            with pytest.raises(StoreError):
                copy.refresh()
    with pytest.raises(ValueError, match="the folder that it serves"):
        publish(store, web)


def test_web_server_that_is_not_there_passes_everything(store):
    with subscribe("http://127.0.0.1:9/feed", interval=None) as copy:
        assert b"anything" in copy
        assert "cannot be read" in copy.freshness().reason


@pytest.mark.parametrize("engine", ["redis", "redis-cluster"])
def test_feed_in_keys_of_a_server(store, engine, monkeypatch):
    monkeypatch.setattr(places, "PIECE_BYTES", 1000)
    with guard_engines.running(engine) as folder, guard_engines.opened(engine, folder) as client:
        place = ServerKeys(client, "users")
        assert place.read_head() is None
        with publish(store, place, interval=None) as publisher:
            with subscribe(ServerKeys(client, "users"), interval=None, secret=SECRET) as copy:
                assert all(key in copy for key in keys_of(0, 5000))
                assert b"absent" not in copy
                for number in range(20):
                    store[b"new %d" % number] = b""
                    publisher.publish()
                    assert copy.refresh().how == "delta"
                    assert b"new %d" % number in copy
                other = publish(store, ServerKeys(client, "users"), interval=None)
                with pytest.raises(StoreError, match="somebody else"):
                    publisher.publish()
                other.publish()
            files = {key for key in client.keys("dlbf:feed:*") if client.ttl(key) == -1}
            assert len(files) < 30
            client.delete(*[key for key in client.scan_iter("dlbf:feed:*") if b"full" in key or b"delta" in key])
            assert b"absent" in subscribe(ServerKeys(client, "users"), interval=None, secret=SECRET)


def test_url_of_a_server_names_the_feed(store):
    with guard_engines.running("redis") as folder:
        url = f"valkey://127.0.0.1:{(folder / 'port').read_text()}/1?feed=users"
        with publish(store, url, interval=None), subscribe(url, interval=None, secret=SECRET) as copy:
            assert (b"absent" in copy, keys_of(0, 1)[0] in copy) == (False, True)
    with pytest.raises(ValueError, match="feed=NAME"):
        publish(store, "redis://127.0.0.1:1/0")
    with pytest.raises(ValueError, match="expected a folder"):
        subscribe("ftp://somewhere/feed")


# --- commands


def test_commands_publish_and_subscribe(store, tmp_path, monkeypatch):
    pytest.importorskip("click")
    from click.testing import CliRunner

    from dlbf.cli import build

    monkeypatch.chdir(tmp_path)
    Path("secret").write_bytes(SECRET)
    run = lambda *arguments: CliRunner().invoke(build(), arguments)  # noqa: E731
    store.close()
    done = run("publish", "store", "feed", "--once", "--json", "--secret-file", "secret")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["how"] == "full"
    done = run("subscribe", "feed", "copy", "--once", "--json")  # to copy it nobody needs the secret
    assert (done.exit_code, json.loads(done.output)["how"]) == (0, "full"), done.output
    with Store("store", secret=SECRET) as store:
        store[b"new"] = b""
    done = run("publish", "store", "feed", "--once", "--secret-file", "secret")
    assert "a delta of" in done.output
    done = run("subscribe", "feed", "copy", "--once", "--secret-file", "secret")
    assert "by deltas" in done.output
    with subscribe("feed", interval=None, secret=SECRET, cache="copy") as copy:
        assert b"new" in copy
    old = Head.unpack(Path("feed/head").read_bytes(), None, "head")
    Path("feed/head").write_bytes(dataclasses.replace(old, as_of_ns=1).pack(None))
    assert run("subscribe", "feed", "copy", "--once").exit_code == 1
    assert run("subscribe", "feed", "copy", "--once", "--secret-file", "secret").exit_code == 2
