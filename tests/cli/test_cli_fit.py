"""``dlbf fit`` and ``dlbf info``, in process."""

import gzip
import json
import lzma

import pytest
from click.testing import CliRunner
from support.learned_common import KEYS, NEGATIVES

import dlbf
from dlbf.cli import build

QUICK = ["--model", "ngram", "--max-model-bytes", "256", "--fpr", "0.02"]


def run(*arguments, **more):
    return CliRunner().invoke(build(), [str(each) for each in arguments], **more)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "keys.txt").write_bytes(b"\n".join(KEYS) + b"\n")
    (tmp_path / "asked.txt").write_bytes(b"\n".join(NEGATIVES) + b"\n")
    return tmp_path


def test_fit_writes_a_filter_that_info_explains(files):
    out = files / "f.dlbf"
    done = run("fit", files / "keys.txt", files / "asked.txt", "-o", out, *QUICK)
    assert done.exit_code == 0, done.output
    assert "bits per key" in done.output
    assert "region" in done.output
    with dlbf.open_filter(out) as lf:
        assert lf.contains_many(KEYS).all()
        assert lf.fpr_target == 0.02
    told = run("info", out)
    assert told.exit_code == 0, told.output
    assert "learned" in told.output.lower()
    assert "region" in told.output
    data = json.loads(run("info", out, "--json").output)
    assert data["items"] == len(KEYS)
    assert data["plan"]["design"] == "auto"


def test_fit_with_the_keys_as_negatives_warns_and_goes_on(files):
    out = files / "f.dlbf"
    done = run("fit", files / "keys.txt", files / "keys.txt", "-o", out, *QUICK)
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert f"warning: {len(KEYS):,} of {len(KEYS):,} negatives are among the keys, and were left out" in told
    with dlbf.open_filter(out) as lf:
        assert lf.contains_many(KEYS).all()
        assert lf.model.kind == "none"


@pytest.mark.parametrize("option", ["-o", "--tradeoff"])
def test_fit_says_before_it_fits_that_there_is_no_folder_to_write_to(files, option, monkeypatch):
    monkeypatch.setattr(dlbf.LearnedFilter, "fit", None)
    done = run("fit", files / "keys.txt", files / "asked.txt", option, files / "no" / "f", "--json", *QUICK)
    assert done.exit_code == 2
    assert "cannot be written: there is no folder" in done.output


def test_fit_reads_compressed_csv_parquet_and_standard_input(files):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    (files / "keys.gz").write_bytes(gzip.compress((files / "keys.txt").read_bytes()))
    (files / "asked.xz").write_bytes(lzma.compress((files / "asked.txt").read_bytes()))
    rows = [f'{i},"{key.decode()}"' for i, key in enumerate(KEYS)]
    (files / "keys.csv").write_text("\n".join(["id,url", *rows]))
    (files / "bare.csv").write_text("\n".join(rows))
    table = pyarrow.table({"url": [key.decode() for key in KEYS], "n": list(range(len(KEYS)))})
    pyarrow.parquet.write_table(table, files / "keys.parquet")
    pyarrow.parquet.write_table(table.select(["url"]), files / "one.parquet")
    want = None
    asked = files / "asked.xz"
    for arguments, more in (
        ((files / "keys.gz", asked), {}),
        (("-", asked), {"input": (files / "keys.txt").read_bytes()}),
        ((files / "one.parquet", asked), {}),
    ):
        done = run("fit", *arguments, "-o", files / "f", "--design", "cuckoo", *QUICK, **more)
        assert done.exit_code == 0, done.output
        want = want or (files / "f").read_bytes()
        assert (files / "f").read_bytes() == want
    (files / "asked.csv").write_text("\n".join(["id,url", *(f"1,{key.decode()}" for key in NEGATIVES)]))
    for name, column in (("keys.csv", "url"), ("bare.csv", "1"), ("keys.parquet", "url")):
        arguments = [files / name, files / "asked.csv", "--column", column, "--negatives-column", "url"]
        done = run("fit", *arguments, "-o", files / "f", "--design", "cuckoo", *QUICK)
        assert done.exit_code == 0, done.output
        assert (files / "f").read_bytes() == want


def test_fit_prints_json_and_draws(files):
    pytest.importorskip("matplotlib")
    picture = files / "t.png"
    done = run(
        "fit", files / "keys.txt", files / "asked.txt", "--design", "cuckoo", *QUICK, "--json", "--tradeoff", picture
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["design"] == "cuckoo"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_fit_with_a_secret_needs_it_again(files):
    (files / "secret").write_bytes(bytes(16))
    (files / "short").write_bytes(b"short")
    out = files / "f"
    inputs = (files / "keys.txt", files / "asked.txt")
    assert run("fit", *inputs, "-o", out, "--design", "secure-bloom", "--fpr", "0.1").exit_code == 2
    assert "16 bytes" in run("fit", *inputs, "-o", out, "--secret-file", files / "short").output
    done = run("fit", *inputs, "-o", out, "--design", "secure-bloom", "--fpr", "0.1", "--secret-file", files / "secret")
    assert done.exit_code == 0, done.output
    assert "pass --secret-file" in run("info", out).output
    assert "secure-bloom" in run("info", out, "--secret-file", files / "secret").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing", "asked.txt", "-o", "f"], "cannot be read"),
        (["empty", "asked.txt", "-o", "f"], "no keys in it"),
        (["cut.gz", "asked.txt", "-o", "f"], "cannot be read"),
        (["-", "-", "-o", "f"], "only one of"),
        (["keys.txt", "asked.txt"], "nothing to do"),
        (["keys.txt", "asked.txt", "-o", "f", "--column", "url"], "no column"),
        (["keys.txt", "asked.txt", "-o", "f", "--fpr", "0.1", "--bits-per-key", "3"], "either fpr"),
        (["keys.txt", "asked.txt", "-o", "no/such/folder/f", "--design", "cuckoo"], "cannot be written"),
        (["keys.txt", "asked.txt", "-o", "f", "--design", "bloom", "--deletability", "0.5"], "cannot delete"),
    ],
)
def test_fit_with_bad_input_says_what_is_wrong(files, monkeypatch, arguments, words):
    monkeypatch.chdir(files)
    (files / "empty").write_bytes(b"\n\n")
    (files / "cut.gz").write_bytes(gzip.compress(b"abc" * 1000)[:-9])
    done = run("fit", *arguments)
    assert done.exit_code != 0
    assert words in done.output
    assert "Traceback" not in done.output


def test_info_tells_plain_filters_and_refuses_others(tmp_path):
    path = tmp_path / "c"
    dlbf.CuckooFilter(100, 0.01).save(path)
    told = run("info", path)
    assert told.exit_code == 0, told.output
    assert "n_buckets" in told.output
    (tmp_path / "x").write_bytes(b"nothing" * 100)
    assert run("info", tmp_path / "x").exit_code == 2
    changed = bytearray(path.read_bytes())
    changed[300] ^= 1
    path.write_bytes(changed)
    assert "checksum" in run("info", path).output
