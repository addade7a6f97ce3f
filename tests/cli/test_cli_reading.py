"""Files of keys: what they are is told by name and content, and where that is not enough an error asks."""

import csv
import gzip
import io
import lzma

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dlbf.cli import build
from dlbf.cli.reading import open_records, read_keys_from
from dlbf.cli.records import FORMATS, RecordError, record_heading, record_writer
from dlbf.storage import Store


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "short.csv").write_text("id,url\n1,a.example\n\n2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a\nb\n", mtime=0)[:-6])
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("short.csv", "url", "line 4: expected 2 columns, found 1"),
        ("short.csv", "host", "no column 'host'; there are: id, url"),
        ("empty.csv", "url", "no column 'url'; there are: none"),
        ("cut.gz", None, "cannot be read"),
        ("nothing here", None, "cannot be read"),
    ],
)
def test_bad_file_is_explained(folder, name, column, words):
    with pytest.raises(click.ClickException, match="(?s)" + words):
        read_keys_from(str(folder / name), column)


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("two.parquet", None, "name that of the keys with --column: id, url"),
        ("two.parquet", "host", "no column 'host'; there are: id, url"),
        ("two.parquet", "id", "column 'id' holds neither text nor bytes"),
        ("text.parquet", None, "cannot be read"),
    ],
)
def test_bad_parquet_is_explained(folder, name, column, words):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"id": [1, 2], "url": ["a", None]}), folder / "two.parquet")
    with pytest.raises(click.ClickException, match=words):
        read_keys_from(str(folder / name), column)
    assert read_keys_from(str(folder / "two.parquet"), "url") == [b"a"]


def test_parquet_without_pyarrow_says_what_to_install(folder, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(click.ClickException, match="pip install pyarrow"):
        read_keys_from(str(folder / "text.parquet"), None)


URLS = [b"http://a.example/1", b'http://b.example/,"x"', b"c.example/\xff\xfe"]


def table(*rows, delimiter=","):
    """CSV as Python's own writer makes it."""
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows([[cell.decode("latin-1") for cell in row] for row in rows])
    return out.getvalue().encode("latin-1")


ONE_COLUMN = table([b"url"], *([url] for url in URLS))
TWO_COLUMNS = table([b"id", b"key"], *([b"%d" % n, url] for n, url in enumerate(URLS)))


@pytest.mark.parametrize(
    ("name", "content", "column", "told"),
    [
        ("a.csv", ONE_COLUMN, None, "only column, 'url'"),
        ("a.csv.gz", gzip.compress(ONE_COLUMN, mtime=0), None, "only column, 'url'"),
        ("a.csv.xz", lzma.compress(ONE_COLUMN), None, "only column, 'url'"),
        ("a.csv", b"\xef\xbb\xbf" + ONE_COLUMN, None, "only column, 'url'"),
        ("a.csv", b"\n\r\n" + ONE_COLUMN + b"\n\n", None, "only column, 'url'"),
        ("a.csv", table(*([url] for url in URLS)), None, "without a heading"),
        ("a.csv", TWO_COLUMNS, None, "the column 'key'"),
        ("a.csv", table([b"Key", b"Value"], *([url, b"v"] for url in URLS)), None, "the column 'Key'"),
        ("a.csv", table([b"n", b"key"], *([b"1", url] for url in URLS), delimiter=";"), None, "the column 'key'"),
        ("a.csv", table([b"key", b"n"], *([url, b"1"] for url in URLS), delimiter="\t"), None, "the column 'key'"),
        ("a.csv", ONE_COLUMN, "url", ""),
        ("a.csv", ONE_COLUMN.partition(b"\n")[2], "0", ""),
        ("a.csv", table([b"n", b"u"], *([b"1", url] for url in URLS), delimiter=";"), "u", ""),
        ("a.tsv", table([b"u", b"n"], *([url, b"1"] for url in URLS), delimiter="\t"), "u", ""),
        ("a.txt", table([b"u", b"n"], *([url, b"1"] for url in URLS)), "u", ""),
        ("a.tsv", b"".join(b"%b\tv\n" % url for url in URLS), None, "keys from the first column"),
        ("a.tsv.gz", gzip.compress(b"\n".join(URLS), mtime=0), None, "keys from the first column"),
        ("a.txt", b"\n".join(URLS), None, ""),
        ("a.unknown", b"\r\n".join(URLS), None, ""),
        ("a", b"\n".join(URLS), None, ""),
    ],
)
def test_one_plausible_reading_is_taken_and_told(tmp_path, capsys, name, content, column, told):
    (tmp_path / name).write_bytes(content)
    assert read_keys_from(str(tmp_path / name), column) == URLS
    said = capsys.readouterr().err
    assert told in said
    assert bool(told) == bool(said)


def test_json_lines_have_keys_in_a_field(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"key": "k", "value": "v"}\n{"key_base64": "/w=="}\n')
    assert read_keys_from(str(path)) == [b"k", b"\xff"]
    path.write_bytes(b'{"url": "k", "n": 1}\n')
    assert read_keys_from(str(path), "url") == [b"k"]
    with pytest.raises(click.ClickException, match="found 'url, n'; name another with --column"):
        read_keys_from(str(path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"url,count\na.example/,1\nb.example/,2\n", "2 columns; name .* with --column: url, count"),
        ("a.csv", b"a.example/,1\nb.example/,2\n", "no headings, .*: 0 \\('a.example/'\\), 1 \\('1'\\)"),
        ("a.csv", b"apple\nbanana\n", "'apple', may be a heading or a key; pass --column"),
        ("a.csv", b"a.example/\nb.example/,x\n", "rows have 1 to 2 cells; pass --format keys"),
        ("a.csv", b'url\na.example/\n"a.example/\n', "line 3: unexpected end of data"),
        ("a.csv", b'url\na.example/\n"a"b\n', "line 3: .* expected after"),
        ("a.csv", "url\na.example/".encode("utf-16"), "found UTF-16"),
        ("a.tsv", b"a\tb\tc\n", "3 columns .*--column"),
        ("a.data", b"url,count\na.example/,1\nb.example/,2\n", "columns url, count; .*--column, or .*--format keys"),
        ("a.data", b"url\tcount\na.example/\t1\nb.example/\t2\n", "columns url, count; .*--column, or .*--format keys"),
        ("a", b'{"key": "a"}\n{"key": "b"}\n', "--format jsonl"),
        ("a", gzip.compress(b"a\n", mtime=0), "gzip; name it .gz"),
        ("a", b"PAR1....", "Parquet; name it .parquet"),
    ],
)  # fmt: skip
def test_several_plausible_readings_are_asked_about(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(click.ClickException, match=words):
        read_keys_from(str(tmp_path / name))
    if "--format keys" in words:  # and the answer helps
        lines = [line for line in content.split(b"\n") if line]
        assert read_keys_from(str(tmp_path / name), format="keys") == lines


def test_lines_of_a_file_that_is_called_a_list_of_lines_stay_lines(tmp_path):
    content = b"url,count\na.example/,1\nb.example/,2"
    (tmp_path / "a.txt").write_bytes(content)
    assert read_keys_from(str(tmp_path / "a.txt")) == content.split(b"\n")


CELL = st.binary(max_size=12) | st.text(alphabet='a,;|\t"\r\n \\', max_size=6).map(str.encode)


@given(st.dictionaries(CELL, CELL, max_size=8), st.sampled_from(["tsv", "csv", "jsonl"]))
def test_what_is_written_in_a_lossless_format_is_read_back(tmp_path_factory, records, format):
    path = tmp_path_factory.getbasetemp() / f"records.{format}"
    line = record_writer(format)
    path.write_bytes(record_heading(format) + b"".join(line(*record) for record in records.items()))
    with open_records(str(path), with_values=True, quiet=True) as found:
        assert {record.key: record.value for record in found} == records
    assert read_keys_from(str(path)) == [key for key in records if key]
    if format == "csv":  # and everybody else reads the same
        rows = list(csv.reader(io.StringIO(path.read_bytes().decode("latin-1"), newline=""), strict=True))
        want = [[key.decode("latin-1"), value.decode("latin-1")] for key, value in records.items()]
        assert rows == [["key", "value"], *want]


@given(st.lists(CELL.filter(bool), min_size=1, max_size=8), st.sampled_from(FORMATS))
def test_keys_come_back_from_every_format_that_does_not_refuse_them(tmp_path_factory, keys, format):
    path = tmp_path_factory.getbasetemp() / f"keys.{'txt' if format == 'keys' else format}"
    line = record_writer(format)
    try:
        path.write_bytes(record_heading(format) + b"".join(line(key, b"") for key in keys))
    except RecordError:
        assert format == "keys"
        return
    assert read_keys_from(str(path)) == keys


def run(*arguments, code=0, **more):
    done = CliRunner().invoke(build(), list(map(str, arguments)), **more)
    assert done.exit_code == code, done.output
    return done


def test_every_command_that_reads_keys_reads_tables_alike(tmp_path):
    keys = [b"key%d, x" % n for n in range(300)]
    (tmp_path / "keys.csv").write_bytes(table([b"url", b"n"], *([key, b"1"] for key in keys)))
    (tmp_path / "asked.csv").write_bytes(table([b"key"], *([b"no%d, x" % n] for n in range(300))))
    asked = tmp_path / "asked.csv"
    with Store(tmp_path / "s") as store:
        store.update((key, b"v") for key in keys)
    commands = [
        ["fit", tmp_path / "keys.csv", asked, "-o", tmp_path / "f", "--design", "cuckoo"],
        ["fit", asked, tmp_path / "keys.csv", "-o", tmp_path / "f", "--design", "cuckoo"],
        ["report", tmp_path / "keys.csv", "--quick", "-o", tmp_path / "r"],
        ["get", tmp_path / "s", "-f", tmp_path / "keys.csv"],
        ["load", tmp_path / "t", tmp_path / "keys.csv"],
        ["rebuild", tmp_path / "s", "--dry-run", "--design", "cuckoo", "--negatives", tmp_path / "keys.csv"],
        ["delete", tmp_path / "s", "-f", tmp_path / "keys.csv"],
    ]
    for command in commands:
        assert "--column" in run(*command, code=2).stderr
        assert "url, n" in run(*command, code=2).stderr
    assert not (tmp_path / "t").exists()
    fit = ["--negatives-column", "key", "--column", "url"]
    run(*commands[0], *fit)
    for command in commands[3:]:
        run(*command, "--column", "url")
    with Store(tmp_path / "s") as store, Store(tmp_path / "t") as loaded:
        assert not len(store)
        assert sorted(loaded) == sorted(keys)


def test_load_takes_values_from_a_column(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'n,url,note\n1,a.example/,x\n2,b.example/,"y\nz"\n3,c.example/\n4,d.example/,w\n')
    assert "--value-column" in run("load", tmp_path / "s", tmp_path / "a.csv", code=2).stderr
    done = run("load", tmp_path / "s", tmp_path / "a.csv", "--column", "url", "--value-column", "note", code=2)
    assert "line 5: expected 3 columns, found 2" in done.stderr
    assert "--from-line 5" in done.stderr  # the record before ended on line 4
    more = ["--column", "url", "--value-column", "note", "--from-line", "5", "--skip-bad"]
    run("load", tmp_path / "s", tmp_path / "a.csv", *more, code=1)
    with Store(tmp_path / "s") as store:
        assert dict(store.items()) == {b"a.example/": b"x", b"b.example/": b"y\nz", b"d.example/": b"w"}
    assert "needs --column" in run("load", tmp_path / "s", tmp_path / "a.csv", "--value-column", "n", code=2).stderr


def test_load_reads_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"key": [b"a\xff", b"b"], "value": ["1", None]}), tmp_path / "a.parquet")
    assert (
        "keys from the column 'key', values from 'value'" in run("load", tmp_path / "s", tmp_path / "a.parquet").stderr
    )
    with Store(tmp_path / "s") as store:
        assert dict(store.items()) == {b"a\xff": b"1", b"b": b""}


@pytest.mark.parametrize("name", ["out", "out.parquet", "out.xlsx"])
def test_export_to_a_name_that_tells_no_format_asks(tmp_path, name):
    with Store(tmp_path / "s") as store:
        store[b"k"] = b"v"
    assert "pass --format tsv|csv|jsonl|keys" in run("export", tmp_path / "s", tmp_path / name, code=2).stderr
    run("export", tmp_path / "s", tmp_path / name, "--format", "csv")
    assert (tmp_path / name).read_bytes() == b"key,value\nk,v\n"
