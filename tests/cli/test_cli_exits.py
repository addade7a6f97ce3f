"""The table of exit codes in docs/operating.md, row by row: 0 done, 1 "no", 2 trouble, 3 ``info --check`` alone."""

import re
from pathlib import Path

import pytest
from support.places import ROOT

pytest.importorskip("click")
pytest.importorskip("rich")
from click.testing import CliRunner

import dlbf
from dlbf.cli import COMMANDS, build
from dlbf.storage import Store, publish

# command -> arguments -> what it exits with.  Names are of what `place` makes; "{}" is its folder.
CASES = {
    "get": [("store key", 0), ("store nokey", 1), ("store", 2), ("nothing key", 2), ("text key", 2), ("folder key", 2),
            ("store -f nothing", 2)],
    "delete": [("store key", 0), ("store nokey", 1), ("nothing key", 2), ("text key", 2), ("folder key", 2)],
    "put": [("store other v", 0), ("store key v --if-absent", 1), ("store key", 2), ("text key v", 2),
            ("folder key v", 2), ("no/such/folder key v", 2)],
    "load": [("new text.txt", 0), ("new bad.jsonl --skip-bad", 1), ("new bad.jsonl", 2), ("new nothing.txt", 2),
             ("text text.txt", 2), ("new text", 2), ("new broken.txt.gz", 2)],
    "scan": [("store", 0), ("nothing", 2), ("text", 2), ("folder", 2)],
    "export": [("store", 0), ("store out.tsv", 0), ("store text.txt", 2), ("nothing", 2), ("store no/such/out.tsv", 2)],
    "rebuild": [("store", 0), ("store --if-needed", 0), ("nothing", 2), ("text", 2), ("folder", 2),
                ("store --negatives nothing", 2), ("store --fpr 7", 2), ("store --secret-file text", 2)],
    "verify": [("store", 0), ("filter", 0), ("damaged", 1), ("text", 2), ("empty", 2), ("folder", 2), ("nothing", 2),
               ("store/data.mdb", 2), ("store --secret-file text", 2), ("keyed", 2)],
    "info": [("store", 0), ("filter", 0), ("keyed", 0), ("filter --check", 0), ("damaged", 2), ("damaged --check", 3),
             ("text", 2), ("text --check", 2), ("empty --check", 2), ("folder", 2), ("folder --check", 2),
             ("nothing", 2), ("nothing --check", 2), ("store/data.mdb --check", 2)],
    "top": [("store --count 1", 0), ("nothing", 2), ("text", 2), ("folder", 2), ("store --secret-file text", 2)],
    "serve-metrics": [("store --once", 0), ("nothing --once", 2), ("text --once", 2), ("folder --once", 2)],
    "publish": [("store feed --once", 0), ("nothing feed --once", 2), ("text feed --once", 2),
                ("store text --once", 2), ("store http://localhost/feed --once", 2), ("store redis://h:1/0 --once", 2)],
    "subscribe": [("feed copy --once", 0), ("feed copy --once --max-age 0", 1), ("nothing copy --once", 2),
                  ("folder copy --once", 2), ("feed copy --once --secret-file text", 2),
                  ("feed no/such/copy --once", 2), ("ftp://h/feed copy --once", 2)],
    "fleet": [("users", 2), ("users --server text", 2), ("users --server redis://127.0.0.1:1/0 --once", 2)],
    "fit": [("text.txt other.txt --json --design cuckoo", 0), ("text.txt other.txt", 2), ("nothing text.txt --json", 2),
            ("text.txt nothing --json", 2), ("text.txt other.txt -o no/such/f", 2), ("empty text.txt --json", 2),
            ("text.txt other.txt --json --fpr 7", 2)],
    "build": [("text.txt -o f --negatives other.txt --workers 1 --model none", 0),
              ("text.txt --negatives other.txt", 2), ("text.txt -o f --negatives other.txt --shards 3", 2),
              ("nothing -o f --negatives other.txt", 2), ("empty -o f --negatives other.txt", 2),
              ("text.txt -o no/such/f --negatives other.txt", 2), ("text.txt -o f --negatives nothing", 2),
              ("text.txt -o f --negatives other.txt --on nowhere", 2)],
    "report": [("text.txt", 2), ("nothing --json", 2), ("empty --json", 2), ("folder --json", 2),
               ("text.txt -o no/such/f", 2), ("text.txt --json --fpr 7", 2)],
    "plan": [("--fpr 0.01", 0), ("no-such-design", 2), ("--fpr 7", 2), ("--figures text", 2)],
    "demo": [("--keep folder", 2), ("--keys many", 2)],
    "bench": [("replay", 2), ("models", 2), ("no-such-bench", 2)],
    "completion": [("bash", 0), ("no-such-shell", 2)],
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLBF_DATA", "nowhere")
    with Store("store") as store:
        store[b"key"] = b"value"
        store.rebuild(design="cuckoo")
        publish(store, "feed", interval=None).close()
    f = dlbf.CuckooFilter(100)
    f.add(b"key")
    f.save("filter")
    damaged = bytearray(Path("filter").read_bytes())
    damaged[-1] ^= 1
    Path("damaged").write_bytes(damaged)
    dlbf.CuckooFilter(100, secret=b"s" * 16).save("keyed")
    Path("text").write_bytes(b"no filter, nor a secret\n" * 20)
    Path("text.txt").write_bytes(b"".join(b"word%d\n" % n for n in range(50)))
    Path("other.txt").write_bytes(b"".join(b"other%d\n" % n for n in range(50)))
    Path("bad.jsonl").write_bytes(b"no JSON\n")
    Path("broken.txt.gz").write_bytes(b"no gzip\n")
    Path("empty").write_bytes(b"")
    Path("folder").mkdir()
    Path("folder/something").write_bytes(b"")
    return tmp_path


def test_every_command_is_in_the_table_of_exit_codes():
    assert CASES.keys() == COMMANDS.keys()
    table = (ROOT / "docs/operating.md").read_text().split("### Exit codes")[1].split("## ")[0]
    named = set(re.findall(r"`([a-z-]+)", table.split("130:")[0]))
    assert named >= COMMANDS.keys()
    for command, cases in CASES.items():
        row = next(line for line in table.splitlines() if re.search(rf"^\|[^|]*`{command}[` ]", line))
        cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
        for _, code in cases:
            assert cells[code], f"{command} exits with {code}, and the table does not say so"


@pytest.mark.parametrize("command", CASES)
def test_commands_exit_as_the_table_says(place, command):
    for arguments, code in CASES[command]:
        done = CliRunner().invoke(build(), [command, *arguments.split()])
        assert done.exit_code == code, f"dlbf {command} {arguments}: {done.output}"
        assert done.exception is None or isinstance(done.exception, SystemExit), f"{command} {arguments}"
        if code == 2:
            assert "Error: " in done.stderr, f"dlbf {command} {arguments}"
