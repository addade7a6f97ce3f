"""``dlbf get``, ``put``, ``delete``, ``scan``, ``load``, ``export``: in process, or as processes where it matters."""

import base64
import fcntl
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support import peek

import dlbf
from dlbf.cli import build
from dlbf.cli.records import RecordError, read_records, record_writer
from dlbf.cli.text import CODECS, escape, unescape
from dlbf.errors import StoreError
from dlbf.kernels.filelog import ADDING
from dlbf.storage import Guard, Store
from dlbf.storage.engines import MappingEngine

# Everything that text formats get wrong: separators, line ends, escapes, invalid UTF-8, empty, long.
AWKWARD = {
    b"": b"the empty key",
    b"\xef\xbb\xbfmark": b"\xef\xbb\xbf",
    b"plain": b"",
    b"tab\there": b"line\nend",
    b"cr\r": b"\r\n",
    b"back\\slash": b"\\t",
    b"\xff\x00": bytes(range(256)),
    "grün".encode(): "\u2028\ud7ff".encode(),
    b"k" * 600: b"v" * 100_000,
    b'"quoted"': b"{}",
}


def run(*arguments, code=0, **more):
    done = CliRunner().invoke(build(), [each if isinstance(each, bytes) else str(each) for each in arguments], **more)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def dlbf_process(*arguments, **more):
    """The real thing, in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "dlbf", *map(str, arguments)], **more)


@pytest.fixture
def path(tmp_path):
    with Store(tmp_path / "store") as store:
        store.update(AWKWARD)
    return tmp_path / "store"


def contents(path):
    with Store(path, readonly=True) as store:
        assert store.verify().ok
        return dict(store.items())


# --- bytes as text


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_every_codec_gives_any_bytes_back_from_one_line(data):
    for codec in CODECS.values():
        assert codec.decode(codec.encode(data)) == data
    assert not set(escape(data)) & set(b"\t\n\r\0")
    escape(data).decode()  # UTF-8, so that a terminal can show it


@pytest.mark.parametrize("bad", [b"\\", b"\\q", b"\\x4", b"\\xzz", b"a\\x"])
def test_unescape_of_an_unknown_escape_is_an_error(bad):
    with pytest.raises(ValueError, match="write a backslash as"):
        unescape(bad)


@given(st.dictionaries(st.binary(max_size=30), st.binary(max_size=30), max_size=8))
def test_lossless_formats_give_any_records_back(records):
    for name, codec in [("tsv", None), ("tsv", "hex"), ("tsv", "base64"), ("jsonl", None)]:
        line = record_writer(name, codec)
        written = b"".join(line(key, value) for key, value in records.items())
        read = read_records(written.splitlines(keepends=True) if name == "tsv" else written.split(b"\n"), name, codec)
        assert {record.key: record.value for record in read} == records


@given(st.binary(max_size=12))
def test_keys_and_plain_tsv_give_back_what_they_do_not_refuse(key):
    for name, codec in [("keys", None), ("keys", "escape"), ("tsv", "text")]:
        try:
            written = record_writer(name, codec)(key, b"")
        except RecordError:
            assert not key or set(key) & set(b"\r\n\t")
            continue
        assert [record.key for record in read_records([written], name, codec)] == [key]


# --- get, put, delete


def test_get_writes_the_value_and_exits_with_1_for_an_absent_key(path):
    assert run("get", path, "tab\there").stdout_bytes == b"line\nend\n"
    assert run("get", path, "tab\there", "--raw").stdout_bytes == b"line\nend"
    assert run("get", path, "--escape", r"tab\there").stdout_bytes == b"line\\nend\n"
    assert run("get", path, "--hex", "ff00", "--raw").stdout_bytes == bytes(range(256))
    assert run("get", path, "--hex", "ff00").stdout_bytes == bytes(range(256)).hex().encode() + b"\n"
    assert base64.b64decode(run("get", path, "--base64", "/wA=").stdout) == bytes(range(256))
    assert run("get", path, "").stdout_bytes == b"the empty key\n"
    absent = run("get", path, "no such key", code=1)
    assert absent.stdout == ""
    assert "no key 'no such key'" in absent.stderr
    assert run("get", path, "no such key", "--quiet", code=1).stderr == ""


def test_get_of_many_keys_writes_lines_and_names_the_absent_ones(path, tmp_path):
    done = run("get", path, "plain", "nope", "back\\slash", code=1)
    assert done.stdout_bytes == b"plain\t\nback\\\\slash\t\\\\t\n"
    assert done.stderr.count("no key") == 1
    with gzip.open(tmp_path / "asked.gz", "wb") as file:
        file.write(b"plain\r\n\nnope\n")
    lines = run("get", path, "-f", tmp_path / "asked.gz", "--json", code=1).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"key": "plain", "found": True, "value": ""},
        {"key": "nope", "found": False},
    ]
    assert run("get", path, "-f", "-", input=b"plain\n").stdout_bytes == b"plain\t\n"
    assert "no key given" in run("get", path, code=2).stderr


def test_get_takes_argument_bytes_that_are_not_utf8(path):
    with Store(path) as store:
        store[b"\xfe\xff"] = b"odd"
    done = subprocess.run([sys.executable, b"-m", b"dlbf", b"get", os.fsencode(path), b"\xfe\xff"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"odd\n", b"")


def test_put_makes_a_store_and_says_so(tmp_path):
    path = tmp_path / "new"
    first = run("put", path, "k", "v", "--fpr", "0.001")
    assert "made a new store" in first.stderr
    assert "0.001" in first.stderr
    assert run("put", path, "k2", "").stderr == ""
    run("put", path, "k3", "-", input=b"from\0stdin\n")
    (tmp_path / "value").write_bytes(bytes(1000))
    run("put", path, "k4", "--value-file", tmp_path / "value")
    run("put", path, "--hex", "00", "ff")
    assert json.loads(run("put", path, "k", "v2", "--json").stdout) == {
        "key": "k",
        "stored": True,
        "new": False,
        "value_bytes": 2,
    }
    assert "keeps its value" in run("put", path, "k", "v3", "--if-absent", code=1).stderr
    run("put", path, "k5", "v", "--if-absent")
    assert contents(path) == {
        b"k": b"v2", b"k2": b"", b"k3": b"from\0stdin\n", b"k4": bytes(1000), b"\0": b"\xff", b"k5": b"v",
    }  # fmt: skip
    with Store(path, readonly=True) as store:
        assert store.stats().fpr_target == 0.001


def test_delete_takes_keys_out_and_exits_with_1_for_absent_ones(path, tmp_path):
    run("delete", path, "plain", "--text")
    assert run("delete", path, "plain", "grün", code=1).stderr.count("no key") == 1
    (tmp_path / "gone").write_text("back\\\\slash\n\\xff\\x00\nnope\n")
    done = run("delete", path, "--escape", "--keys-file", tmp_path / "gone", "--json", "--quiet", code=1)
    assert json.loads(done.stdout) == {"deleted": 2, "absent": 1, "interrupted": False}
    left = set(AWKWARD) - {b"plain", "grün".encode(), b"back\\slash", b"\xff\x00"}
    assert set(contents(path)) == left


def test_scanned_keys_can_be_deleted(path):
    keys = run("scan", path, "--keys-only").stdout_bytes
    run("delete", path, "--escape", "-f", "-", input=keys)
    assert contents(path) == {b"": b"the empty key"}  # its line is empty, and passed over


# --- scan


def test_scan_chooses_and_orders(tmp_path):
    path = tmp_path / "store"
    items = {b"%03d" % i: b"%d" % i for i in range(300)}
    with Store(path) as store:
        store.update(items)
    assert run("scan", path).stdout_bytes == b"".join(b"%b\t%b\n" % item for item in sorted(items.items()))
    assert run("scan", path, "--prefix", "29", "--keys-only").stdout.split() == [str(i) for i in range(290, 300)]
    assert run("scan", path, "--start", "100", "--stop", "102").stdout_bytes == b"100\t100\n101\t101\n"
    assert run("scan", path, "--reverse", "--limit", "2").stdout_bytes == b"299\t299\n298\t298\n"
    assert run("scan", path, "--limit", "0").stdout == ""
    assert run("scan", path, "--hex", "--prefix", "303031").stdout_bytes == b"303031\t31\n"
    assert run("scan", path, "--count").stdout == "300\n"
    assert run("scan", path, "--count", "--prefix", "1").stdout == "100\n"
    assert json.loads(run("scan", path, "--count", "--limit", "7", "--json").stdout) == {"count": 7}
    assert json.loads(run("scan", path, "--limit", "1", "--json").stdout) == {"key": "000", "value": "0"}
    assert json.loads(run("scan", path, "--limit", "1", "--json", "--keys-only").stdout) == {"key": "000"}


def test_a_reader_that_goes_away_ends_a_scan_quietly(tmp_path):
    with Store(tmp_path / "store") as store:
        store.update((b"%06d" % i, bytes(100)) for i in range(20_000))
    for command in (["scan", tmp_path / "store"], ["export", tmp_path / "store", "--format", "jsonl"]):
        process = dlbf_process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(60) == 141


# --- load and export


@pytest.mark.parametrize("name", ["all.tsv", "all.jsonl", "all.csv", "all.tsv.gz", "all.csv.gz", "all.ndjson.xz"])
def test_export_and_load_give_any_bytes_back(path, tmp_path, name):
    run("export", path, tmp_path / name)
    done = run("load", tmp_path / "copy", tmp_path / name)
    assert f"{len(AWKWARD)} records stored" in done.stderr
    assert contents(tmp_path / "copy") == AWKWARD
    assert "there is such a file" in run("export", path, tmp_path / name, code=2).stderr
    told = json.loads(run("export", path, tmp_path / name, "--force", "--json").stdout)
    assert told["records"] == len(AWKWARD)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("options", [["--hex"], ["--base64"], ["--escape"], []])
def test_export_and_load_through_pipes_and_every_codec(path, tmp_path, options):
    written = run("export", path, "-", *options).stdout_bytes
    run("load", tmp_path / "copy", "-", "--format", "tsv", *options, input=written)
    assert contents(tmp_path / "copy") == AWKWARD


def test_export_of_keys_refuses_what_would_not_come_back(path, tmp_path):
    for key in (b"", b"cr\r"):
        assert "use --format tsv" in run("export", path, tmp_path / "keys.txt", code=2).stderr
        assert not (tmp_path / "keys.txt").exists()
        with Store(path) as store:
            del store[key]
    run("export", path, tmp_path / "keys.txt")
    run("load", tmp_path / "copy", tmp_path / "keys.txt")
    assert set(contents(tmp_path / "copy")) == set(AWKWARD) - {b"", b"cr\r"}
    assert run("export", path, "--format", "keys", "--prefix", "pl").stdout == "plain\n"


def test_load_reads_what_people_have(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfk1\tv1\r\nk2\r\n\r\nk3\tC:\\\\dir")
    run("load", tmp_path / "s", tmp_path / "a.tsv")
    (tmp_path / "b.tsv").write_bytes(b"k4\tC:\\new\n")
    run("load", tmp_path / "s", tmp_path / "b.tsv", "--text")
    (tmp_path / "c.jsonl").write_bytes(b'{"key": "k5", "more": 1}\n\n{"key_base64": "/w==", "value": "\\u00fc"}')
    run("load", tmp_path / "s", tmp_path / "c.jsonl")
    with lzma.open(tmp_path / "d.txt.xz", "wb") as file:
        file.write(b"k6 with spaces \\t\r\n")
    told = json.loads(run("load", tmp_path / "s", tmp_path / "d.txt.xz", "--json").stdout)
    assert (told["records"], told["new"], told["last_line"]) == (1, 1, 1)
    assert contents(tmp_path / "s") == {
        b"k1": b"v1", b"k2": b"", b"k3": b"C:\\dir", b"k4": b"C:\\new", b"k5": b"", b"\xff": "ü".encode(),
        b"k6 with spaces \\t": b"",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("a.tsv", b"a\tb\tc", "3 columns"),
        ("a.tsv", b"a\t\\q", "write a backslash as"),
        ("a.jsonl", b"{", "expected a JSON object"),
        ("a.jsonl", b"[1]", "expected a JSON object"),
        ("a.jsonl", b'{"value": "v"}', "expected the field 'key'"),
        ("a.jsonl", b'{"key": 1}', "expected a string"),
        ("a.jsonl", b'{"key": null}', "expected a string"),
        ("a.jsonl", b'{"key": "a", "key_base64": "YQ=="}', "found both"),
        ("a.jsonl", b'{"key_base64": "?"}', "expected base64"),
        ("a.jsonl", b'{"key": "\\ud800"}', "surrogate"),
        ("a.jsonl", b"[" * 100_000, "line 3"),
        ("a.jsonl", b'{"key": "\xff"}', "line 3"),
    ],
)
def test_load_of_a_bad_line_names_it_and_keeps_what_came_before(tmp_path, name, line, words):
    good = b'{"key": "good%d"}\n' if name.endswith("jsonl") else b"good%d\n"
    (tmp_path / name).write_bytes(good % 1 + b"\n" + line + b"\n" + good % 4)
    path = tmp_path / "s"
    done = run("load", path, tmp_path / name, code=2)
    assert words in done.stderr
    assert "line 3" in done.stderr
    assert "--from-line 2" in done.stderr
    assert contents(path) == {b"good1": b""}
    run("load", path, tmp_path / name, "--skip-bad", "--from-line", "2", code=1)
    assert contents(path) == {b"good1": b"", b"good4": b""}
    done = run("load", tmp_path / "t", tmp_path / name, "--atomic", code=2)
    assert "nothing was stored" in done.stderr
    assert contents(tmp_path / "t") == {}


def test_load_makes_no_store_for_a_file_that_is_bad_from_the_start(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b"nonsense\n")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"abc\n" * 1000)[:-9])
    for file in ("bad.jsonl", "none.tsv"):
        run("load", tmp_path / "s", tmp_path / file, code=2)
        assert not (tmp_path / "s").exists()
    assert "cannot be read" in run("load", tmp_path / "s", tmp_path / "cut.txt.gz", code=2).stderr
    assert "pass --format" in run("load", tmp_path / "s", "-", code=2).stderr


def test_load_in_many_transactions_equals_load_in_one(tmp_path, monkeypatch):
    from dlbf.cli import load

    monkeypatch.setattr(load, "RECORDS_PER_BATCH", 7)
    monkeypatch.setattr(load, "BYTES_PER_BATCH", 500)
    lines = [b"%d\t%b" % (i % 90, b"x" * i) for i in range(120)]
    (tmp_path / "a.tsv").write_bytes(b"\n".join(lines))
    run("load", tmp_path / "s", tmp_path / "a.tsv")
    told = json.loads(run("load", tmp_path / "t", tmp_path / "a.tsv", "--atomic", "--json").stdout)
    assert (told["records"], told["new"], told["last_line"]) == (120, 90, 120)
    want = dict(line.split(b"\t") for line in lines)
    assert contents(tmp_path / "s") == contents(tmp_path / "t") == want


def unread(pipe):
    """How many bytes in a pipe its reader has not taken."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def stored(path):
    """How many keys are in a store; None while it is being made."""
    try:
        with Store(path, readonly=True) as store:
            return len(store)
    except StoreError:
        return None


@pytest.mark.parametrize("atomic", [False, True])
def test_interrupted_load_leaves_a_whole_store_and_says_how_much(tmp_path, atomic):
    path = tmp_path / "s"
    process = dlbf_process(
        "load", path, "-", "--format", "keys", *(["--atomic"] if atomic else []),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    # Two transactions and a half; then the process waits for more, and gets Ctrl-C.
    process.stdin.write(b"".join(b"key %d\n" % i for i in range(25_000)))
    process.stdin.flush()
    wanted = 0 if atomic else 20_000
    while unread(process.stdin) or stored(path) != wanted:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    told = told.decode()
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert "interrupted" in told
    if atomic:
        assert "nothing was stored" in told
    else:
        assert "20,000 records stored" in told
        assert "--from-line 20001" in told
    assert contents(path) == {b"key %d" % i: b"" for i in range(wanted)}


# --- what is wrong with a path


def test_reading_commands_never_make_a_store(tmp_path):
    for command in (["get", "k"], ["scan"], ["export"], ["delete", "k"]):
        done = run(command[0], tmp_path / "none", *command[1:], code=2)
        assert "there is no store" in done.stderr
        assert "dlbf put" in done.stderr
        assert not (tmp_path / "none").exists()


def test_other_things_than_stores_are_told(tmp_path):
    dlbf.CuckooFilter(100, 0.01).save(tmp_path / "f.dlbf")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    full = tmp_path / "full"
    full.mkdir()
    (full / "photo.jpg").write_text("x")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "data.mdb").write_bytes(b"x" * 10_000)
    with Store(tmp_path / "store") as store:
        store[b"k"] = b"v"
    for path, words in [
        ("f.dlbf", "found a CuckooFilter in a file; dlbf info"),
        ("text", "found a file"),
        ("empty", "found an empty directory"),
        ("full", "found photo.jpg"),
        ("broken", "not an LMDB file"),
        ("store/data.mdb", "name its directory"),
    ]:
        assert words in run("get", tmp_path / path, "k", code=2).stderr
    assert "a directory of its own" in run("put", tmp_path / "full", "k", "v", code=2).stderr
    assert "does not exist" in run("put", tmp_path / "no" / "such", "k", "v", code=2).stderr
    assert sorted(each.name for each in full.iterdir()) == ["photo.jpg"]


@pytest.mark.parametrize("arguments", [["info"], ["info", "--check"], ["verify"], ["rebuild"], ["get"], ["report"]])
def test_directory_that_is_no_store_is_bad_usage_and_says_what_it_is(tmp_path, arguments):
    name, *options = arguments
    more = {"get": ["k"], "report": ["-o", tmp_path / "r.html"]}.get(name, [])
    (tmp_path / "empty").mkdir()
    with Guard({b"a": b"1"}, tmp_path / "guarded"):
        pass
    # Not 1, which means "no such key", "a rebuild is due" or "not as it should be", nor 3.
    assert "found an empty directory" in run(name, tmp_path / "empty", *more, *options, code=2).stderr
    if name not in ("info", "verify", "rebuild"):  # these take a guard: test_cli_engines.py
        said = run(name, tmp_path / "guarded", *more, *options, code=2).stderr
        assert (
            "the directory of a guard, not of a store: this needs the keys and values, which are in its engine" in said
        )
        assert f'Guard(engine, "{tmp_path / "guarded"}")' in said
        assert f"dlbf info {tmp_path / 'guarded'}" in said
    assert not list((tmp_path / "empty").iterdir())


class Named(MappingEngine):
    """A dict that says which it is."""

    def identity(self):
        return b"number 7"


def test_info_of_a_guard_tells_what_is_known_without_its_engine(tmp_path):
    path = tmp_path / "guarded"
    with Guard(Named({b"%d" % i: b"1" for i in range(2000)}), path) as guard:
        guard[b"more"] = b"1"
        stats = guard.stats()
        # Beside the program that has it open.
        done = subprocess.run([sys.executable, "-m", "dlbf", "info", "--json", path], capture_output=True, check=True)
        used = json.loads(done.stdout)
    facts = json.loads(run("info", "--json", path).stdout)
    for each in (used, facts):
        assert (each["kind"], each["status"], each["guard"]) == ("guard", "healthy", facts["guard"])
        for name in ("keys", "generation", "bits_per_key", "design", "state"):
            assert each["stats"][name] == getattr(stats, name), name
    said = run("info", "--check", path, code=0).stdout
    rows = {line[:12].strip(): line[12:] for line in said.splitlines()}
    assert rows["guard"].startswith(f"{path}: 2,001 keys known to its filter")
    assert rows["engine"] == "Named number 7 (not opened; the data is there)"
    assert (rows["state"], rows["writer"], rows["rebuild"]) == ("filtering", "nothing under way", "not due")
    assert rows["to open it"].startswith(f'g = Guard(engine, "{path}")')
    assert f"generation {stats.generation}" in said
    assert f"{stats.bits_per_key:.2f} bits per key" in said


def test_info_of_a_guard_that_cannot_filter_says_why(tmp_path):
    path = tmp_path / "guarded"
    Guard({}, path, attach=False).close()
    said = run("info", "--check", path, code=3).stdout
    assert "pass-through: the engine's keys have not been read yet" in said
    assert "NEEDED" in said
    with Guard({b"a": b"1"}, path) as guard:
        peek.guarded(guard).log.intend(ADDING, guard.stats().last_txn, 1)
    assert "adding keys, or died while it did; the next writer settles that" in run("info", path).stdout
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    run("info", path)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before
    log = bytearray(before["guard.log"])
    log[90] ^= 1
    (path / "guard.log").write_bytes(log)
    said = run("info", "--check", path, code=3).stdout
    assert "what a writer noted cannot be read" in said


def test_other_lmdb_environments_are_told(tmp_path):
    import lmdb

    with lmdb.open(str(tmp_path / "other"), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"b")
    assert "not a store" in run("get", tmp_path / "other", "k", code=2).stderr
    assert "another program" in run("put", tmp_path / "other", "k", "v", code=2).stderr


@pytest.fixture
def own_folder():
    """Not one of pytest's, which every session that begins closes to everybody but its user."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_missing_permission_is_told(own_folder):
    with Store(own_folder / "store") as store:
        store[b"k"] = b"v"
    (own_folder / "store" / "data.mdb").chmod(0o400)
    (own_folder / "store" / "lock.mdb").chmod(0o400)
    (own_folder / "store" / "secret.key").chmod(0o400)
    (own_folder / "store").chmod(0o500)
    own_folder.chmod(0o700)
    who = os.getuid()
    # Everything is imported before the change of user, who may not be able to read it.
    code = (
        "import os, sys, click, click.shell_completion, dlbf.storage, dlbf.cli.lazy, dlbf.cli.get, dlbf.cli.put; "
        "os.setuid(int(sys.argv[1])); dlbf.cli.main(sys.argv[2:])"
    )
    if who == 0:
        who = 65534
        for folder in (own_folder / "store", *(own_folder / "store").iterdir(), own_folder):
            try:
                os.chown(folder, who, -1)
            except PermissionError:
                pytest.skip("this root may not give files away")
    for command, words in (
        (["get", own_folder / "store", "k"], "for reading too"),
        (["put", own_folder / "store", "k", "v"], "to write to it"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, str(who), *map(str, command)], capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "mode 400" in done.stderr
    own_folder.chmod(0o500)
    done = subprocess.run(
        [sys.executable, "-c", code, str(who), "put", str(own_folder / "new"), "k", "v"], capture_output=True, text=True
    )
    own_folder.chmod(0o700)
    (own_folder / "store").chmod(0o700)
    assert "to make a store in it" in done.stderr


def test_a_store_whose_secret_is_elsewhere_takes_a_secret_file(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(range(16)))
    (tmp_path / "short").write_bytes(b"short")
    path = tmp_path / "s"
    run("put", path, "k", "v", "--secret-file", tmp_path / "secret")
    assert not (path / "secret.key").exists()
    assert run("get", path, "k", "--secret-file", tmp_path / "secret").stderr == ""
    assert run("get", path, "k").stdout == "v\n"  # through the data, and it says why
    assert "16 bytes" in run("put", path, "k", "v", "--secret-file", tmp_path / "short", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["put", "s", "k", "v", "--value-file", "x"], "not both"),
        (["put", "s", "k", "-f", "none"], "cannot be read"),
        (["put", "s", "k", "v", "--fpr", "2"], "between 0 and 1"),
        (["put", "s", "k"], 'no value given: expected VALUE, "-" for standard input'),
        (["put", "s", "--hex", "xyz", ""], "hexadecimal"),
        (["get", "s", "--base64", "?"], "expected base64"),
        (["get", "s", "a", "b", "--raw"], "one KEY"),
        (["scan", "s", "--start", "\\q", "--escape"], "write a backslash"),
        (["export", "s", "--json"], "needs a FILE"),
        (["export", "s", "no/such/folder.tsv"], "cannot be written"),
    ],
)
def test_bad_arguments_are_told(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with Store("s") as store:
        store[b"k"] = b"v"
    assert words in run(*arguments, code=2).stderr


def test_without_click_the_command_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['click'] = None; from dlbf.cli import main; main(['get', 'x', 'y'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'dlbf[cli]'" in done.stderr
