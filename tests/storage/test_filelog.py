"""The log of a guard in files: its bytes, every kind of damage, what dying writers leave, and other processes."""

import contextlib
import errno
import logging
import os
import shutil
import struct
import subprocess

import pytest
from support import guard_engines, peek
from support.guard_peer import Peer

from dlbf.errors import StoreError
from dlbf.kernels.filelog import ADDING, LATE, LogFile, LogHead
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.ledger import ABSENT, MAYBE, UNKNOWN
from dlbf.storage import Guard, filelog, ledger, steps
from dlbf.storage.engines import MappingEngine
from dlbf.storage.folder import Folder, new_log
from dlbf.storage.tables import TABLES, Table

HEAD_BYTES, NOTE_AT, WORD_AT, END_AT = 4096, 88, 64, 72


class Fixed(MappingEngine):
    """A dict that is the same engine in every guard, and counts what it is asked."""

    def __init__(self, pairs=(), in_flight=False):
        super().__init__(dict(pairs))
        self._identity = b"fixed"
        self.in_flight = in_flight
        self.n_gets = 0
        self.fail = False

    def get(self, key):
        self.n_gets += 1
        return self.mapping.get(key)

    def put(self, key, value):
        if self.fail:
            raise OSError("no answer")
        self.mapping[key] = value


def open_guard(engine, path, **options):
    return Guard(engine, path, **{"sync": "none", "keyed": False, **options})


def log_of(guard):
    return peek.guarded(guard).log


def file_of(guard):
    return log_of(guard).folder.newest_file()


def open_file(path):
    """The log of a closed guard."""
    return LogFile(path / "guard.log", (path / "guard.log").open("r+b", buffering=0), True)


def write_at(path, place, data):
    """Change bytes of a file in their place."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def read_u64(path, place):
    return int.from_bytes(path.read_bytes()[place : place + 8], "little")


def adding(position, *keys, generation=1):
    operations = OperationLog()
    for key in keys:
        operations.added(key)
    return operations.record(position, generation, 0)


def small_guard(path, engine=None, **options):
    """A closed guard with a checkpoint, and records behind it."""
    engine = engine or Fixed({b"a": b"1", b"b": b"1"})
    guard = open_guard(engine, path, **options)
    guard.checkpoint()
    guard[b"c"] = b"1"
    del guard[b"a"]
    guard[b"d"] = b"1"
    peek.guarded(guard).as_writer(peek.guarded(guard).mark_clean)
    peek.close_untidily(guard)  # no other checkpoint
    return engine


def asked(guard, key):
    """What the filter says, up to date."""
    guard.get(b"")
    return guard.ledger.ask(key)


def check_keys(guard, engine):
    """The one thing that must be true of every guard."""
    assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
    assert guard.get_many(list(engine.mapping)) == list(engine.mapping.values())
    assert all(key in guard for key in engine.mapping)


def check_goes_on(guard, engine):
    """It is whole, and takes changes."""
    check_keys(guard, engine)
    assert guard.state == "filtering"
    found = guard.verify()
    assert (found.keys, found.missing) == (len(engine.mapping), 0)
    if not found.ok:  # a record that nobody needs any more, or an entry too many
        guard.rebuild(model=None)
        assert guard.verify().ok
    guard[b"afterwards"] = b"1"
    assert guard.delete(b"b")
    check_keys(guard, engine)
    assert guard.verify().ok
    guard[b"b"] = b"1"
    del guard[b"afterwards"]


# --- bytes


def padded(data):
    return data + bytes(-len(data) % 8)


def frame_bytes(kind, record, changes=b""):
    """As the module's docstring has it."""
    cold = checksum64(changes).to_bytes(8, "little") + changes if changes else b""
    head = kind + struct.pack("<II", len(record), len(cold))
    return padded(head + struct.pack("<I", checksum64(head) & 0xFFFFFFFF) + record + cold)


def change_bytes(table, what, key, value=b""):
    return struct.pack("<BBII", TABLES.index(table), what, len(key), len(value)) + key + value


def test_new_log_golden_bytes(tmp_path):
    tables = {name: Table() for name in TABLES}
    tables["meta"].put(b"key", b"value")
    tables["data"].put(b"z", b"")
    tables["data"].put(b"a", b"12")
    first, second, staged = adding(5, b"x"), adding(6, b"y", b"yy"), adding(7, b"z")
    note = LogHead.packed_note(LATE, 6)
    path = new_log(tmp_path, tables, 6, [first, second], True, bytes(range(16)), 4, note, LogFile.staged_frame(staged))
    assert path == tmp_path / "guard.log.new"
    snapshot = (
        change_bytes("data", 0, b"a", b"12") + change_bytes("data", 0, b"z") + change_bytes("meta", 0, b"key", b"value")
    )
    frames = frame_bytes(b"CORD", first) + frame_bytes(b"CORD", second)
    fixed = struct.pack("<QQ", 4, len(snapshot)) + bytes(32)
    total = checksum64(fixed + checksum64(snapshot).to_bytes(8, "little"))
    header = b"dllog-\x00\x01" + total.to_bytes(8, "little") + fixed
    end = HEAD_BYTES + len(padded(snapshot)) + len(frames)
    header += struct.pack("<QQQQ", 6, end, end, note)
    header += bytes(range(16)) + struct.pack("<Q", 4)
    expected = header + bytes(HEAD_BYTES - len(header)) + padded(snapshot) + frames + frame_bytes(b"STAG", staged)
    assert path.read_bytes() == expected
    assert total == 8606747918396858936
    assert checksum64(expected) == 11823178462335650004


def test_appended_frame_golden_bytes(tmp_path):
    tables = {name: Table() for name in TABLES}
    tables["data"].put(b"a", b"12")
    tables["misses"].put(b"m", b"")
    new_log(tmp_path, tables, 1, [adding(1)], False).rename(tmp_path / "guard.log")
    folder = Folder(tmp_path, False)
    before = (tmp_path / "guard.log").read_bytes()
    txn = folder.begin(write=True)
    assert txn.id() == 2
    txn.put(b"b", b"3", db="meta")
    txn.delete(b"a", db="data")
    txn.drop("misses")
    shown = []
    word = lambda: shown.append(read_u64(tmp_path / "guard.log", WORD_AT))  # noqa: E731
    folder.append(txn, 2, adding(2, b"x"), txn.encoded(), word)
    assert shown == [1]  # complete, and nobody sees it
    changes = change_bytes("meta", 0, b"b", b"3") + change_bytes("data", 1, b"a") + change_bytes("misses", 2, b"")
    frame = frame_bytes(b"CORD", adding(2, b"x"), changes)
    data = (tmp_path / "guard.log").read_bytes()
    expected = before[:WORD_AT] + struct.pack("<QQ", 2, len(before) + len(frame)) + before[END_AT + 8 :] + frame
    assert data[: len(expected)] == expected
    assert not any(data[len(expected) :])
    folder.close()
    again = Folder(tmp_path, True)
    assert again.state.position == 2
    assert {name: table.items for name, table in again.state.tables.items() if table.items} == {"meta": {b"b": b"3"}}
    again.close()


def test_filter_file_has_the_number_of_its_checkpoint_and_the_filters_bytes(tmp_path):
    engine = Fixed({b"a": b"1"})
    with open_guard(engine, tmp_path) as guard:
        for _ in range(3):
            guard[b"%d" % len(engine.mapping)] = b"1"
            guard.checkpoint()
            [path] = tmp_path.glob("filter.*")
            assert path.name == f"filter.{guard.ledger.checkpoint.txn_id}"
            assert path.read_bytes() == guard.ledger.filter.to_bytes()
            assert file_of(guard).base == guard.ledger.checkpoint.txn_id - 1  # no record before it is kept
    assert {entry.name for entry in tmp_path.iterdir()} <= {"guard.lock", "guard.log", "guard.id", path.name}


# --- damage


def damaged_copies(folder, tmp_path, name, changed):
    """The folder with other bytes in one of its files, over and over."""
    copy = tmp_path / "copy"
    for what, data in changed:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        (copy / name).write_bytes(data)
        yield what, copy


def flips(data, places):
    for i in places:
        changed = bytearray(data)
        changed[i // 8] ^= 1 << i % 8
        yield f"bit {i % 8} of byte {i // 8}", bytes(changed)


def check_damaged(engine, copies):
    """Whatever the damage is: no key is denied, whoever opens it, and the writer who may read the engine repairs it."""
    seen = set()
    for what, copy in copies:
        try:
            with open_guard(engine, copy, readonly=True) as guard:
                check_keys(guard, engine)
                seen.add(guard.state)
        except StoreError as error:
            seen.add("refused" if "open it for writing" in str(error) else f"{what}: {error}")
        again = copy.with_name("again")
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(copy, again)
        with open_guard(engine, copy, attach=False) as guard:
            check_keys(guard, engine)
            guard[b"e"] = b"1"
            del guard[b"b"]
            check_keys(guard, engine)
            guard[b"b"] = b"1"
            del guard[b"e"]
        with open_guard(engine, again) as guard:
            check_goes_on(guard, engine)
    return seen


def meaningful_bits(data):
    """All bits that mean something, and some others."""
    used = [*range(8 * 128), *range(8 * 128, 8 * HEAD_BYTES, 4001), *range(8 * HEAD_BYTES, 8 * len(data))]
    return [i for i in used if i // 8 < HEAD_BYTES or i // 8 < len(data)]


EVERY = [pytest.param(97, id="some"), pytest.param(1, id="every", marks=pytest.mark.slow)]


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "dlbf.storage")


def trimmed(path):
    """Without the room behind the newest frame."""
    data = path.read_bytes()
    end = read_u64(path, END_AT)
    assert not any(data[end:])
    path.write_bytes(data[:end])
    return data[:end]


@pytest.mark.parametrize("step", EVERY)
def test_flipped_bit_of_the_log_denies_no_key(tmp_path, quiet, step):
    engine = small_guard(tmp_path / "g")
    data = trimmed(tmp_path / "g" / "guard.log")
    bits = [*range(8 * WORD_AT, 8 * WORD_AT + 4), *meaningful_bits(data)[::step]]
    seen = check_damaged(engine, damaged_copies(tmp_path / "g", tmp_path, "guard.log", flips(data, bits)))
    assert seen == {"filtering", "pass-through", "refused"}


@pytest.mark.parametrize("step", EVERY)
def test_cut_log_denies_no_key(tmp_path, quiet, step):
    engine = small_guard(tmp_path / "g")
    data = trimmed(tmp_path / "g" / "guard.log")
    lengths = [0, 1, 100, *range(HEAD_BYTES - 1, len(data), step), len(data) - 8, len(data) - 1]
    cut = ((f"{n} bytes", data[:n]) for n in lengths)
    seen = check_damaged(engine, damaged_copies(tmp_path / "g", tmp_path, "guard.log", cut))
    assert seen == {"pass-through", "refused"}


@pytest.mark.parametrize("step", [pytest.param(997, id="some"), pytest.param(7, id="many", marks=pytest.mark.slow)])
def test_flipped_bit_of_the_filter_denies_no_key(tmp_path, quiet, step):
    engine = small_guard(tmp_path / "g")
    [path] = (tmp_path / "g").glob("filter.*")
    data = path.read_bytes()
    changed = [*flips(data, range(0, 8 * len(data), step)), ("nothing", b""), ("cut", data[:-1]), ("more", data + b"x")]
    seen = check_damaged(engine, damaged_copies(tmp_path / "g", tmp_path, path.name, changed))
    assert seen == {"pass-through"}


@contextlib.contextmanager
def left_at(step, folder, copy):
    """Copy the folder when a step is reached, as a process leaves it that dies there."""

    def hook(reached):
        if reached == step:
            steps.set_hook(None)
            shutil.copytree(folder, copy)

    steps.set_hook(hook)
    try:
        yield
    finally:
        steps.set_hook(None)
    assert copy.exists()


@pytest.mark.parametrize("change", ["put", "delete"])
def test_flipped_bit_of_a_pending_note_denies_no_key(tmp_path, quiet, change):
    engine = small_guard(tmp_path / "g")
    step = "guard-journaled" if change == "put" else "guard-intent-written"
    with open_guard(engine, tmp_path / "g") as guard, left_at(step, tmp_path / "g", tmp_path / "left"):
        guard.put(b"new", b"1") if change == "put" else guard.delete(b"c")
    end = read_u64(tmp_path / "left" / "guard.log", END_AT)
    data = (tmp_path / "left" / "guard.log").read_bytes()[: end + 4096]
    assert any(data[NOTE_AT : NOTE_AT + 8])
    bits = [*range(8 * NOTE_AT, 8 * NOTE_AT + 64), *range(8 * end, 8 * (end + 64), 13)]
    for was_done in (True, False):
        engine.mapping.pop(b"new", None)
        engine.mapping[b"c"] = b"1"
        if was_done:
            engine.put(b"new", b"1") if change == "put" else engine.delete(b"c")
        check_damaged(engine, damaged_copies(tmp_path / "left", tmp_path, "guard.log", flips(data, bits)))


def test_damage_of_an_open_log_is_noticed_by_whoever_reads_on(tmp_path, quiet):
    """A frame that another process cannot read is not passed over."""
    with guard_engines.running("sqlite3") as folder:
        place = tmp_path / "g"
        with guard_engines.opened("sqlite3", folder) as engine, Guard(engine, place, sync="none") as guard:
            guard[b"a"] = b"1"
            with Peer("sqlite3", folder, place, readonly=True) as reader:
                assert reader("state") == "filtering"
                guard[b"b"] = b"1"
                assert reader("get", b"b") == b"1"
                end = file_of(guard).end
                guard.engine.put(b"c", b"1")
                record = adding(guard.stats().last_txn + 1, b"c", generation=guard.ledger.generation)
                frame = bytearray(LogFile.frame(record))
                frame[20] ^= 1  # in the record, whose head is whole
                file_of(guard).make_room(len(frame))
                write_at(place / "guard.log", end, frame)
                write_at(place / "guard.log", WORD_AT, (guard.stats().last_txn + 1).to_bytes(8, "little"))
                assert reader("get", b"c") == b"1"
                assert reader("state") == "pass-through"
                assert [reader("get", key) for key in (b"a", b"b", b"c")] == [b"1"] * 3


# --- what dying writers leave


def test_frame_that_another_writer_left_before_the_word_is_taken_before_the_next_is_written(tmp_path):
    """Its head must not stay in front of another record of the same length."""
    engine = Fixed(dict.fromkeys((b"%03d" % i for i in range(200)), b"1"))
    with open_guard(engine, tmp_path) as guard:
        guard[b"one"] = b"1"
        guard[b"two"] = b"1"
        position = guard.stats().last_txn
        other = open_file(tmp_path)
        other.advance()
        operations = OperationLog()
        operations.added(b"dead")
        record = operations.record(position + 1, guard.stats().generation, 0)
        other.make_room(len(record))
        other.write(position + 1, record, b"")
        frame_bytes = len(LogFile.frame(record))
        write_at(tmp_path / "guard.log", END_AT, (other.end + frame_bytes).to_bytes(8, "little"))
        other.close()
        assert guard.stats().last_txn == position
        guard[b"live"] = b"1"
        assert guard.stats().last_txn == position + 2
        assert file_of(guard).ends_well()
        assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
        assert (guard.verify().missing, guard.verify().extra) == (0, 1)


def test_end_that_a_dead_writer_left_behind_no_frame_is_put_right_by_the_next_writer(tmp_path):
    engine = Fixed(dict.fromkeys((b"%03d" % i for i in range(200)), b"1"))
    with open_guard(engine, tmp_path) as guard:
        guard[b"one"] = b"1"
        guard[b"two"] = b"1"
        write_at(tmp_path / "guard.log", END_AT, (file_of(guard).end + 64).to_bytes(8, "little"))
        guard[b"three"] = b"1"
        assert file_of(guard).ends_well()
        assert guard.verify().ok


def test_frame_whose_writer_died_before_the_word_is_taken(tmp_path):
    engine = small_guard(tmp_path)
    path = tmp_path / "guard.log"
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert asked(guard, b"new") == ABSENT
        generation = guard.ledger.generation
    word, end = read_u64(path, WORD_AT), read_u64(path, END_AT)
    frame = LogFile.frame(adding(word + 1, b"new", generation=generation))
    data = path.read_bytes()[:end] + frame
    path.write_bytes(data)
    write_at(path, END_AT, (end + len(frame)).to_bytes(8, "little"))
    engine.mapping[b"new"] = b"1"
    with open_guard(engine, tmp_path, readonly=True) as guard:
        assert guard.state == "pass-through"
        assert "a writer died" in guard.stats().reason
        check_keys(guard, engine)
    assert read_u64(path, WORD_AT) == word
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert guard.state == "filtering"
        assert guard.stats().last_txn == word + 1
        assert asked(guard, b"new") == MAYBE
        check_goes_on(guard, engine)
    assert not (tmp_path / "guard.log.damaged").exists()


@pytest.mark.parametrize("n_bytes", [1, 8, 15, 16, 20, 40, -1, None])
@pytest.mark.parametrize("garbage", [b"", b"\xff" * 5000], ids=["nothing behind it", "garbage behind it"])
def test_torn_frame_behind_the_word_is_written_over(tmp_path, n_bytes, garbage):
    """Also a whole one that nobody was told about."""
    engine = small_guard(tmp_path)
    path = tmp_path / "guard.log"
    word, end = read_u64(path, WORD_AT), read_u64(path, END_AT)
    frame = LogFile.frame(adding(word + 1, b"torn", generation=1))[:n_bytes]
    path.write_bytes(path.read_bytes()[:end] + frame + garbage)
    for readonly in (True, False):
        with open_guard(engine, tmp_path, readonly=readonly, attach=False) as guard:
            assert guard.state == "filtering"
            assert guard.stats().last_txn == word
            assert asked(guard, b"torn") == ABSENT
            check_keys(guard, engine)
    with open_guard(engine, tmp_path, attach=False) as guard:
        guard[b"new"] = b"1"
        assert guard.stats().last_txn == word + 1
        check_goes_on(guard, engine)
    with open_guard(engine, tmp_path, attach=False) as guard:
        check_goes_on(guard, engine)


def test_file_that_was_to_be_replaced_when_its_writer_died(tmp_path):
    """Nobody answers from it until the next writer says that it counts again."""
    engine = small_guard(tmp_path)
    (tmp_path / "guard.log.new").write_bytes(b"half of a log")
    file = open_file(tmp_path)
    file.head.retire()
    newest = file.head.newest()
    file.close()
    with open_guard(engine, tmp_path, readonly=True) as guard:
        check_keys(guard, engine)
        engine.n_gets = 0
        assert guard.get(b"absent") is None
        assert engine.n_gets == 1  # passed through
        with pytest.raises(StoreError, match="readonly"):
            guard[b"new"] = b"1"
    assert open_file(tmp_path).head.is_retired
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert not file_of(guard).head.is_retired
        assert guard.stats().last_txn == newest
        engine.n_gets = 0
        assert guard.get(b"absent") is None
        assert engine.n_gets == 0
        check_goes_on(guard, engine)


@pytest.mark.parametrize(
    "step",
    ["checkpoint-piece-written", "checkpoint-record-written", "journal-trimmed", "journal-written", "commit-done"],
)
def test_checkpoint_left_in_the_middle(tmp_path, step):
    engine = small_guard(tmp_path / "g")
    with open_guard(engine, tmp_path / "g") as guard:
        guard[b"new"] = b"1"
        with left_at(step, tmp_path / "g", tmp_path / "left"):
            guard.checkpoint()
    with open_guard(engine, tmp_path / "left", readonly=True) as guard:
        assert guard.state == "filtering"
        check_keys(guard, engine)
    with open_guard(engine, tmp_path / "left", attach=False) as guard:
        check_goes_on(guard, engine)
        guard.checkpoint()
        assert len(list((tmp_path / "left").glob("filter.*"))) == 1  # what was left over is gone
    assert not (tmp_path / "left" / "guard.log.damaged").exists()


# --- tables in frames


def fail(engine, change):
    engine.fail = True
    with pytest.raises(OSError, match="no answer"):
        change()
    engine.fail = False


def test_changes_of_tables_survive_a_death_and_another_file(tmp_path):
    engine = Fixed({b"a": b"1", b"b": b"1"}, in_flight=True)
    with open_guard(engine, tmp_path / "g") as guard:
        fail(engine, lambda: guard.put(b"late", b""))
        fail(engine, lambda: guard.put(b"later", b""))
        assert peek.late_keys(guard) == {b"late", b"later"}
        shutil.copytree(tmp_path / "g", tmp_path / "left")
    with open_guard(engine, tmp_path / "left", attach=False) as guard:
        assert peek.late_keys(guard) == {b"late", b"later"}
        base = file_of(guard).base
        guard.checkpoint()
        assert file_of(guard).base > base
        assert peek.late_keys(guard) == {b"late", b"later"}
        guard.rebuild(model=None)
        shutil.copytree(tmp_path / "left", tmp_path / "again")
    engine.mapping[b"late"] = engine.mapping[b"later"] = b"arrived"
    for path in ("left", "again"):
        with open_guard(engine, tmp_path / path, attach=False) as guard:
            assert guard.state == "filtering"
            check_keys(guard, engine)


@pytest.mark.parametrize("step", ["journal-written", "commit-done"])
@pytest.mark.parametrize("key", [b"new", b"a"], ids=["new", "old"])
def test_late_key_is_known_at_every_step_of_its_listing(tmp_path, step, key):
    """Its record may not be written over before it is listed."""
    engine = Fixed({b"a": b"1", b"b": b"1"}, in_flight=True)
    with open_guard(engine, tmp_path / "g") as guard:

        def put():
            engine.fail = True
            with left_at(step, tmp_path / "g", tmp_path / "left"), pytest.raises(OSError, match="no answer"):
                writes.store([], [key], lambda: engine.put(key, b""))

        writes = peek.guarded(guard)
        if key == b"new":
            writes.alone(lambda: writes.log_keys(ADDING, [key]))
            log_of(guard).settle()
        writes.alone(put)
        engine.fail = False
    with open_guard(engine, tmp_path / "left", attach=False) as guard:
        assert peek.late_keys(guard) == {key}
        guard.rebuild(model=None)
        guard.delete(key)
        engine.mapping[key] = b"arrived"
        check_keys(guard, engine)


# --- a file that is made anew


def test_file_that_is_too_long_is_made_anew_with_the_records_that_are_needed(tmp_path, monkeypatch):
    """Changes of tables are in the next file's tables, and so take no room any more."""
    monkeypatch.setattr(ledger, "MIN_LOG_BYTES", 1 << 30)  # no checkpoint
    monkeypatch.setattr(filelog.FileLog, "_limit", lambda self, txn: 5000)
    engine = Fixed({b"a": b"1", b"b": b"1"}, in_flight=True)
    with open_guard(engine, tmp_path / "g") as guard:
        guard.checkpoint()
        checkpoint = guard.ledger.checkpoint
        numbers = set()
        for i in range(30):
            fail(engine, lambda: guard.put(b"late" * 50, b""))
            guard[b"%d" % i] = b"1"
            numbers.add(file_of(guard).number)
        assert len(numbers) > 1
        assert guard.ledger.checkpoint == checkpoint
        assert file_of(guard).base == checkpoint.txn_id
        shutil.copytree(tmp_path / "g", tmp_path / "left")
        assert guard.verify().ok
    for path in ("left", "g"):
        with open_guard(engine, tmp_path / path, attach=False) as guard:
            assert peek.late_keys(guard) == {b"late" * 50}
            check_goes_on(guard, engine)


def test_file_with_nothing_but_needed_records_is_not_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MIN_LOG_BYTES", 1 << 30)
    monkeypatch.setattr(filelog.FileLog, "_limit", lambda self, txn: 2000)
    engine = Fixed({b"a": b"1", b"b": b"1"})
    with open_guard(engine, tmp_path) as guard:
        guard.checkpoint()
        number = file_of(guard).number
        for i in range(0, 200, 2):
            guard[b"%d" % i] = b"1"
            guard.update({b"%d" % i: b"2", b"%d" % (i + 1): b"1"})
        assert file_of(guard).number == number
        check_goes_on(guard, engine)


def test_log_of_a_guard_without_a_filter_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr(filelog, "SPARE_BYTES", 20_000)
    engine = Fixed()
    with open_guard(engine, tmp_path, attach=False) as guard:
        numbers = set()
        for i in range(6000):
            guard[b"%d" % i] = b"1"
            numbers.add(file_of(guard).number)
        assert guard.state == "pass-through"
        assert file_of(guard).base > 1000
        assert len(numbers) < 30  # not with every change
    with open_guard(engine, tmp_path) as guard:
        check_keys(guard, engine)
        assert guard.verify().ok


# --- other processes


@pytest.fixture
def pair(tmp_path):
    """An engine for several processes, and a guard of this one."""
    with (
        guard_engines.running("sqlite3") as folder,
        guard_engines.opened("sqlite3", folder) as engine,
        Guard(engine, tmp_path / "g", sync="none") as guard,
    ):
        guard.update({b"a": b"1", b"b": b"1"})
        yield guard, lambda **options: Peer("sqlite3", folder, tmp_path / "g", **{"sync": "none", **options})


def test_reader_follows_the_files_of_another_process(pair):
    guard, peer = pair
    with peer(readonly=True) as reader:
        for i in range(4):
            guard[b"%d" % i] = b"1"
            assert reader("get", b"%d" % i) == b"1"
            guard.checkpoint()
            guard[b"%d more" % i] = b"1"
            assert reader("get", b"%d more" % i) == b"1"
            assert reader("number") == file_of(guard).number
            assert reader("answer", b"absent") == ABSENT
            del guard[b"%d" % i]
            assert reader("get", b"%d" % i) is None
            assert reader("answer", b"%d" % i) == ABSENT
        guard.checkpoint()
        assert reader("answer", b"a") == MAYBE  # without a change since then
        assert reader("verify").ok
        assert reader("state") == "filtering"


def test_writers_follow_each_others_files(pair):
    guard, peer = pair
    with peer() as other:
        for i in range(4):
            guard.checkpoint()
            other("put", b"theirs %d" % i, b"1")
            assert guard.get(b"theirs %d" % i) == b"1"
            assert other("number") == file_of(guard).number
            other("checkpoint")
            guard[b"ours %d" % i] = b"1"
            assert other("get", b"ours %d" % i) == b"1"
            assert other("number") == file_of(guard).number
            assert other("delete", b"ours %d" % i)
            assert guard.get(b"ours %d" % i) is None
            other("rebuild", None)
            assert guard.delete(b"theirs %d" % i)
            assert other("get", b"theirs %d" % i) is None
        assert guard.verify().ok
        assert other("verify").ok
        assert guard.state == other("state") == "filtering"


def test_retired_file_is_passed_by_readers_of_other_processes_until_somebody_writes(pair):
    guard, peer = pair
    with peer(readonly=True) as reader:
        assert reader("answer", b"absent") == ABSENT
        file_of(guard).head.retire()
        assert reader("answer", b"absent") == UNKNOWN
        assert reader("get", b"a") == b"1"
        assert reader("get", b"absent") is None
        guard[b"new"] = b"1"
        assert reader("answer", b"absent") == ABSENT
        assert reader("get", b"new") == b"1"


# --- no room


@contextlib.contextmanager
def no_room(monkeypatch):
    """The file system is full."""

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        yield


@pytest.mark.parametrize("sync", ["none", "full"])
def test_full_disk_refuses_changes_and_loses_nothing(tmp_path, monkeypatch, sync):
    engine = Fixed({b"a": b"1", b"b": b"1"})
    with open_guard(engine, tmp_path, sync=sync) as guard:
        guard.checkpoint()
        with no_room(monkeypatch):
            for change in (
                lambda: guard.put(b"new", b"1"),
                lambda: guard.update({b"new": b"1", b"newer": b"1"}),
                lambda: guard.delete(b"a"),
                lambda: guard.delete_many([b"a", b"b"]),
            ):
                with pytest.raises(StoreError, match=r"disk is full.*file system"):
                    change()
                assert engine.mapping == {b"a": b"1", b"b": b"1"}
                check_keys(guard, engine)
            guard[b"a"] = b"2"  # needs no room
        check_goes_on(guard, engine)
        assert guard.verify() == type(guard.verify())(2, 0, 0)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with little room."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(path):
    """Use all room that there is."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_full_file_system_refuses_changes_and_loses_nothing(small_disk):
    engine = Fixed({b"%d" % i: b"1" for i in range(500)} | {b"b": b"1"})
    with open_guard(engine, small_disk / "g") as guard:
        guard.checkpoint()
        fill(small_disk / "filling")
        before = dict(engine.mapping)
        with pytest.raises(StoreError, match=r"disk is full.*file system"):
            guard.update({b"new %d" % i: b"1" * 10 for i in range(2000)})
        assert engine.mapping == before
        with pytest.raises(StoreError, match=r"disk is full.*file system"):
            guard.checkpoint()
        with pytest.raises(StoreError, match=r"disk is full.*file system"):
            guard.rebuild()
        assert guard.state == "filtering"
        check_keys(guard, engine)
        with contextlib.suppress(StoreError):
            guard[b"one more"] = b"1"
        check_keys(guard, engine)
        shutil.copytree(small_disk / "g", small_disk.parent / "left")
        (small_disk / "filling").unlink()
        guard.checkpoint()
        check_goes_on(guard, engine)
    with open_guard(engine, small_disk.parent / "left", attach=False) as guard:
        check_goes_on(guard, engine)


def test_new_guard_on_a_full_file_system_says_so(small_disk):
    fill(small_disk / "filling")
    with pytest.raises(StoreError, match=r"disk is full.*file system"):
        open_guard(Fixed({b"a": b"1"}), small_disk / "g")
    (small_disk / "filling").unlink()
    with open_guard(Fixed({b"a": b"1", b"b": b"1"}), small_disk / "g") as guard:
        assert guard.verify().ok


def test_filter_that_a_dead_process_was_writing_is_removed(tmp_path):
    with Guard({b"a": b"1"}, tmp_path / "g", sync="none") as guard:
        left = [tmp_path / "g" / name for name in (".filter.7.0123abcd.tmp", "filter.7")]
        for path in left:
            path.write_bytes(b"half of it")
        other = tmp_path / "g" / ".other"
        other.write_bytes(b"")
        guard.rebuild(model=None)
        assert not any(path.exists() for path in left)
        assert other.exists()
        assert len(list((tmp_path / "g").glob("filter.*"))) == 1
