"""``dlbf info``, ``verify`` and ``rebuild`` of guards, with the URL of their engine."""

import contextlib
import json
import sqlite3
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
import lmdb
from click.shell_completion import get_completion_class
from click.testing import CliRunner
from support import guard_engines

from dlbf.cli import build
from dlbf.cli.engines import FORMS, open_engine, without_password
from dlbf.cli.exits import Trouble
from dlbf.storage import Guard, Store
from dlbf.storage.engines import LmdbEngine, SqliteEngine, engine_for

LOCAL = ("rocksdict", "plyvel", "sqlite3", "lmdb")
KEYS = [b"key %d" % i for i in range(300)]


def run(*arguments, code=0):
    done = CliRunner().invoke(build(), list(map(str, arguments)))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def url_of(name, folder):
    """The URL of an engine that ``guard_engines`` has made in a folder."""
    port = (folder / "port").read_text() if name.startswith("redis") else ""
    return {
        "rocksdict": f"rocksdb:{folder}/rocksdict",
        "plyvel": f"leveldb:{folder}/plyvel",
        "sqlite3": f"sqlite:{folder}/sqlite3?table=pairs",
        "lmdb": f"lmdb:{folder}/lmdb?db=pairs",
        "redis": f"redis://127.0.0.1:{port}/0",
        "redis-cluster": f"valkey://127.0.0.1:{port}",
    }[name]


def files_of(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock.mdb"}


@pytest.fixture(params=[*LOCAL, "redis", "redis-cluster"])
def engine(request):
    with guard_engines.running(request.param) as folder:
        yield request.param, folder


def test_commands_of_a_guard_with_its_engine(engine, tmp_path):
    name, folder = engine
    path, url = tmp_path / "guard", url_of(name, folder)
    with guard_engines.opened(name, folder) as opened, Guard(opened, path) as guard:
        guard.update(dict.fromkeys(KEYS, b"v"))
        generation = guard.stats().generation
    facts = json.loads(run("info", path, "--engine", url, "--json", "--check").stdout)
    assert (facts["kind"], facts["status"], facts["stats"]["state"]) == ("guard", "healthy", "filtering")
    assert (facts["stats"]["keys"], facts["guard"]["opened"]) == (len(KEYS), url)
    said = run("info", path, "--engine", url).stdout
    assert f"guard       {path}: 300 keys, " in said
    assert f"(opened: {url})" in said
    facts = json.loads(run("verify", path, "--engine", url, "--json").stdout)
    assert (facts["ok"], facts["keys"], facts["missing"], facts["extra"]) == (True, len(KEYS), 0, 0)
    with guard_engines.opened(name, folder) as opened:
        engine_for(opened).put(b"behind the guard", b"v")
    said = run("verify", path, "--engine", url, code=1).stdout
    assert "missing: behind the guard" in said
    assert "NOT ok" in said
    assert "not done: dry run" in run("rebuild", path, "--engine", url, "--dry-run").stdout
    run("verify", path, "--engine", url, code=1)
    assert json.loads(run("rebuild", path, "--engine", url, "--json").stdout)["done"]
    assert f"{path}: 301 keys, ok" in run("verify", path, "--engine", url).stdout
    with guard_engines.opened(name, folder) as opened, Guard(opened, path, attach=False) as guard:
        assert (guard.state, guard.get(b"behind the guard")) == ("filtering", b"v")
        assert guard.stats().generation > generation
    # The data are as they were.
    with guard_engines.opened(name, folder) as opened:
        assert set(engine_for(opened).scan(b"")) == {*KEYS, b"behind the guard"}


@pytest.mark.parametrize("command", ["verify", "rebuild"])
def test_guard_without_its_engine_says_what_to_add(tmp_path, command):
    with Guard({}, tmp_path / "guard"):
        pass
    said = run(command, tmp_path / "guard", code=2).stderr
    assert "add --engine with one of rocksdb:PATH, sqlite:FILE?table=NAME, redis://HOST:PORT/DB, lmdb:PATH" in said
    assert f"dlbf info {tmp_path / 'guard'}" in said


@pytest.mark.parametrize("command", ["info", "verify", "rebuild"])
def test_engine_of_something_that_is_no_guard_is_refused(tmp_path, command):
    with Store(tmp_path / "store"):
        pass
    said = run(command, tmp_path / "store", "--engine", "rocksdb:x", code=2).stderr
    assert "--engine is for the directory of a guard" in said
    if command == "rebuild":
        said = run("rebuild", tmp_path / "store", "--adopt-engine", code=2).stderr
        assert "--adopt-engine needs --engine" in said


@pytest.fixture
def made(tmp_path):
    """Some engines, and things that are none."""
    with contextlib.closing(sqlite3.connect(tmp_path / "data.db")) as connection:
        SqliteEngine(connection, "pairs").put(b"a", b"1")
        SqliteEngine(connection, "Words", key="word", value="n", text=True).put(b"b", b"2")
    with lmdb.open(str(tmp_path / "env"), max_dbs=1) as environment:
        LmdbEngine(environment, b"pairs").put(b"a", b"1")
    with lmdb.open(str(tmp_path / "env.lmdb"), subdir=False) as environment:
        LmdbEngine(environment).put(b"a", b"1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.db").touch()
    (tmp_path / "text").write_text("some text, longer than sixteen bytes")
    return tmp_path


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data.db", "found 'data.db'; say what kind of engine data.db is"),
        ("nothing", "expected one of rocksdb:PATH"),
        ("mysql://host/db", "expected one of rocksdb:PATH, sqlite:FILE?table=NAME"),
        ("sqlite:", "expected sqlite:FILE?table=NAME, found no path"),
        ("sqlite:none.db?table=pairs", "found that none.db does not exist; check the path; nothing was made"),
        ("sqlite:empty?table=pairs", "found that empty is a directory"),
        ("sqlite:text?table=pairs", "expected a file that begins with b'SQLite format 3"),
        ("sqlite:data.db", "expected table=NAME, found the tables pairs, Words; name the guard's"),
        ("sqlite:data.db?table=pears", "expected a table 'pears', found the tables pairs, Words"),
        ("sqlite:empty.db?table=pairs", "expected a table 'pairs', found no table"),
        ("sqlite:data.db?tabel=pairs", "unknown option 'tabel'; sqlite has table, key, value, text"),
        ("sqlite:data.db?table=pairs&table=Words", "option 'table' is there twice"),
        ("sqlite:data.db?table=pairs&text=maybe", "expected text=yes or text=no, found text=maybe"),
        ("sqlite:data.db?table=words", "expected a column 'key', found word, n; set key= and value="),
        ("sqlite:data.db?table=words&key=word&value=n", "found TEXT; pass text=True"),
        ("lmdb:none", "found that none does not exist"),
        ("lmdb:empty", "with data.mdb in it, found an empty directory"),
        ("lmdb:text", "expected LMDB's number dec0efbe in text, found "),
        ("lmdb:env?db=pears", "expected a database 'pears', found pairs; check db="),
        ("rocksdb:none", "found that none does not exist"),
        ("rocksdb:text", "found that text is a file"),
        ("rocksdb:empty", "with CURRENT in it, found an empty directory"),
        ("leveldb:empty", "with CURRENT in it, found an empty directory"),
        ("redis://127.0.0.1:1", "the server cannot be used: "),
        ("redis:", "found no host"),
        ("redis://user:hidden@127.0.0.1:1/0", "redis://user:***@127.0.0.1:1/0: the server cannot be used"),
        ("redis://:hidden@127.0.0.1:port", "--engine redis://:***@127.0.0.1:port: "),
    ],
)
def test_engine_that_cannot_be_opened_is_told_and_nothing_is_made(made, monkeypatch, url, words):
    monkeypatch.chdir(made)
    if url.startswith("redis"):
        pytest.importorskip("redis")
    before = files_of(made)
    with Guard({}, made / "guard"):
        pass
    guard = files_of(made)
    for command in ("info", "verify", "rebuild"):
        said = run(command, "guard", "--engine", url, code=2).stderr
        assert words in said
        assert "hidden" not in said
    assert files_of(made) == guard
    assert {name for name in guard if "/guard/" not in name} == set(before)


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("sqlite:data.db?table=pairs", [b"a"]),
        ("sqlite:data.db?table=words&key=word&value=n&text=True", [b"b"]),
        ("SQLITE:odd%3F%20%25.db?table=a%20%26%20b", [b"c"]),
        ("lmdb:env?db=pairs", [b"a"]),
        ("lmdb:env.lmdb", [b"a"]),
    ],
)
def test_urls_say_which_part_of_an_engine(made, monkeypatch, url, keys):
    monkeypatch.chdir(made)
    with contextlib.closing(sqlite3.connect("odd? %.db")) as connection:
        SqliteEngine(connection, "a & b").put(b"c", b"3")
    for exclusive in (False, True):
        with open_engine(url, exclusive) as engine:
            assert list(engine.scan(b"")) == keys


def test_rocksdb_and_leveldb_are_not_mistaken_for_each_other(tmp_path, monkeypatch):
    for module in ("rocksdict", "plyvel"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    for name in ("rocksdict", "plyvel"):
        with guard_engines.opened(name, tmp_path) as opened:
            engine_for(opened).put(b"a", b"1")
    before = files_of(tmp_path)
    with pytest.raises(Trouble, match=r"found one of LevelDB; use leveldb:plyvel"), open_engine("rocksdb:plyvel"):
        pass
    with pytest.raises(Trouble, match=r"found one of RocksDB; use rocksdb:rocksdict"), open_engine("leveldb:rocksdict"):
        pass
    assert files_of(tmp_path) == before


def test_prefixes_and_column_families(tmp_path, monkeypatch):
    rocksdict, plyvel = pytest.importorskip("rocksdict"), pytest.importorskip("plyvel")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(plyvel.DB("level", create_if_missing=True)) as database:
        database.put(b"a:1", b"")
        database.put(b"b:2", b"")
    with open_engine("leveldb:level?prefix=b:") as engine:
        assert list(engine.scan(b"")) == [b"2"]
    options = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict("rocks", options)
    database[b"a"] = b""
    part = database.create_column_family("part", rocksdict.Options(raw_mode=True))
    part[b"b"] = b""
    part.close()
    database.close()
    for exclusive in (False, True):
        with open_engine("rocksdb:rocks?cf=part", exclusive) as engine:
            assert list(engine.scan(b"")) == [b"b"]
        with open_engine("rocksdb:rocks", exclusive) as engine:
            assert list(engine.scan(b"")) == [b"a"]
    match = "expected a column family 'parts', found default, part"
    with pytest.raises(Trouble, match=match), open_engine("rocksdb:rocks?cf=parts"):
        pass
    rocksdict.Rdict("typed").close()
    with pytest.raises(Trouble, match="raw_mode=True"), open_engine("rocksdb:typed"):
        pass


def test_engine_that_another_process_has_is_told(tmp_path):
    pytest.importorskip("rocksdict")
    with guard_engines.opened("rocksdict", tmp_path) as opened, Guard(opened, tmp_path / "guard") as guard:
        guard.update(dict.fromkeys(KEYS, b"v"))
        url = url_of("rocksdict", tmp_path)

        def process(command):
            arguments = [sys.executable, "-m", "dlbf", command, tmp_path / "guard", "--engine", url]
            return subprocess.run(arguments, capture_output=True, text=True, check=False)

        # A look at the state of some moment does no harm; comparing or reading it for a filter would.
        assert process("info").returncode == 0
        for command in ("verify", "rebuild"):
            done = process(command)
            assert done.returncode == 2
            assert "RocksDB lets in one process at a time: stop the one that has it open" in done.stderr
        assert guard.verify().ok


def test_wrong_engine_costs_nobody_a_filter(tmp_path):
    pytest.importorskip("rocksdict")
    (tmp_path / "other").mkdir()
    url, other = url_of("rocksdict", tmp_path), url_of("rocksdict", tmp_path / "other")
    for folder in (tmp_path, tmp_path / "other"):
        with guard_engines.opened("rocksdict", folder) as opened:
            engine_for(opened).put(b"in %s" % folder.name.encode(), b"v")
    with guard_engines.opened("rocksdict", tmp_path) as opened, Guard(opened, tmp_path / "guard"):
        pass
    for command in ("verify", "rebuild"):
        said = run(command, tmp_path / "guard", "--engine", other, code=2).stderr
        assert "expected the engine that its filter was made for" in said
        assert "--adopt-engine" in said
    assert "pass-through" in run("info", tmp_path / "guard", "--engine", other, "--check", code=3).stdout
    run("info", tmp_path / "guard", "--engine", url, "--check")
    run("verify", tmp_path / "guard", "--engine", url)
    run("rebuild", tmp_path / "guard", "--engine", other, "--adopt-engine")
    run("verify", tmp_path / "guard", "--engine", other)


@pytest.mark.parametrize("name", [*LOCAL, "redis"])
def test_engine_of_another_guard_is_told_and_can_be_adopted(name, tmp_path):
    with guard_engines.running(name) as folder:
        url = url_of(name, folder)
        with guard_engines.opened(name, folder) as opened, Guard(opened, tmp_path / "guard") as guard:
            guard[b"a"] = b"1"
        with Guard({b"b": b"1"}, tmp_path / "second"):
            pass
        for command in ("verify", "rebuild"):
            said = run(command, tmp_path / "second", "--engine", url, code=2).stderr
            assert f"{tmp_path / 'guard'} (noted " in said
            assert "--adopt-engine" in said
        run("info", tmp_path / "second", "--check")  # its filter is what it was
        run("verify", tmp_path / "guard", "--engine", url)
        run("rebuild", tmp_path / "second", "--engine", url, "--adopt-engine")
        assert "1 keys, ok" in run("verify", tmp_path / "second", "--engine", url).stdout
        assert f"{tmp_path / 'second'} (noted " in run("verify", tmp_path / "guard", "--engine", url, code=2).stderr


def test_server_with_a_password(tmp_path, monkeypatch):
    with guard_engines.running("redis") as folder:
        url = url_of("redis", folder)
        with guard_engines.opened("redis", folder) as client:
            with Guard(client, tmp_path / "guard"):
                pass
            client.config_set("requirepass", "open sesame")
        said = run("verify", tmp_path / "guard", "--engine", url, code=2).stderr
        assert "a password may be in the URL or in the environment variable REDISCLI_AUTH" in said
        run("verify", tmp_path / "guard", "--engine", url.replace("//", "//:open%20sesame@"))
        monkeypatch.setenv("REDISCLI_AUTH", "open sesame")
        run("verify", tmp_path / "guard", "--engine", url)


def test_engine_that_fails_meanwhile_is_trouble(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "data.db")) as connection:
        SqliteEngine(connection, "pairs").put(b"a", b"1")

    def drop_and_get():
        with open_engine(f"sqlite:{tmp_path}/data.db?table=pairs") as engine:
            with contextlib.closing(sqlite3.connect(tmp_path / "data.db")) as connection:
                connection.execute("DROP TABLE pairs")
            engine.get(b"a")

    with pytest.raises(Trouble, match=r"data.db\?table=pairs: the engine failed: no such table"):
        drop_and_get()


def test_package_that_is_missing_is_named(tmp_path):
    with Guard({}, tmp_path / "guard"):
        pass
    (tmp_path / "db").mkdir()
    for name in ("CURRENT", "IDENTITY"):
        (tmp_path / "db" / name).touch()
    code = "import sys; sys.modules['rocksdict'] = None; from dlbf.cli import main; main()"
    arguments = ["verify", tmp_path / "guard", "--engine", f"rocksdb:{tmp_path}/db"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'dlbf[engines]'" in done.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://u:p@h", "redis://u:***@h"),
        ("redis://:p@q/r@h:1/0", "redis://:***@h:1/0"),
        ("sqlite:a:b@c", "sqlite:a:b@c"),
    ],
)
def test_passwords_are_not_shown(url, shown):
    assert without_password(url) == shown


def test_engines_complete(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "a b.db").touch()
    (tmp_path / "e.db").touch()

    def ask(incomplete, shell="zsh"):
        asked = get_completion_class(shell)(build(), {}, "dlbf", "_DLBF_COMPLETE")
        return [item.value for item in asked.get_completions(["verify", "guard", "--engine"], incomplete)]

    assert ask("") == ["rocksdb:", "leveldb:", "sqlite:", "lmdb:", "redis://", "valkey://"]
    assert ask("r") == ["rocksdb:", "redis://"]
    assert ask("sqlite:e") == ["sqlite:e.db?table=", "sqlite:env/"]
    assert ask("sqlite:env/") == ["sqlite:env/a%20b.db?table="]
    assert ask("sqlite:env/a%20") == ["sqlite:env/a%20b.db?table="]
    assert ask(f"lmdb:{tmp_path}/en") == [f"lmdb:{tmp_path}/env/"]
    assert ask("lmdb:no/such/") == ask("mysql:") == ask("sqlite:e.db?ta") == []


def test_help_names_every_form():
    for command in ("info", "verify", "rebuild"):
        said = " ".join(run(command, "--help").stdout.split())
        for form in FORMS.values():
            assert form in said
