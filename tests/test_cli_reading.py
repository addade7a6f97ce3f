"""Files that the command line cannot use: each says what is wrong with it and what would do."""

import gzip

import click
import pytest

from dlbf.cli.reading import read_keys_from


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "short.csv").write_text("id,url\n1,a.example\n\n2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a\nb\n")[:-6])
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("short.csv", "url", "row 4: 1 columns, expected more than 1"),
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
        ("two.parquet", None, "name one of its columns with --column: id, url"),
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
