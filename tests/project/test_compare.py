"""tools/compare.py: the best times of two builds in turn, and which of them are ours."""

import json
import sys

import pytest
from support.places import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import compare


@pytest.fixture
def checkout(tmp_path):
    """A function that makes a checkout whose ``dlbf bench`` prints the given records, one at each run."""

    def make(name, *records):
        tree = tmp_path / name
        command = tree / ".venv" / "bin" / "dlbf"
        command.parent.mkdir(parents=True)
        for i, record in enumerate(records):
            (tree / f"{i}.json").write_text(json.dumps(record))
        command.write_text(
            '#!/bin/sh\ncase "$*" in *--json) ;; *) exit 3 ;; esac\n'
            f"echo {name} >> ../turns\n"
            'i=$(cat n 2>/dev/null || echo 0); echo $((i + 1)) > n\ncat "$i.json"\n'
        )
        command.chmod(0o755)
        return tree

    return make


def store_record(ours, peers, design):
    cases = [{"mix": "B", "absent_share": 0.5, "ns": {"dlbf Store": ours, "py-lmdb": peers}, "fastest": 3}]
    return {"keys": 9, "engines": {"dlbf Store": {"filter_design": design}, "py-lmdb": {}}, "cases": cases}


def test_best_of_several_turns_counts(checkout, tmp_path):
    before = checkout("before", store_record(100, 50, "cuckoo"), store_record(120, 40, "cuckoo"))
    now = checkout("now", store_record(140, 60, "layers"), store_record(130, 40, "layers"))
    ours, peers = compare.compare("store", (before, now), rounds=2)
    assert (tmp_path / "turns").read_text().split() == ["before", "now", "now", "before"]
    assert (ours.what, ours.before, ours.now, ours.ratio) == ("B, 0.5, ns, dlbf Store", 100, 130, 1.3)
    assert (ours.is_ours, ours.design) == (True, "cuckoo -> layers")
    assert (peers.what, peers.ratio, peers.is_ours, peers.design) == ("B, 0.5, ns, py-lmdb", 1.0, False, "")


def test_exit_code_tells_whether_ours_is_slower_whatever_others_do(checkout, capsys):
    before, now = (
        checkout("before", *[store_record(100, 50, "cuckoo")] * 3),
        checkout("now", *[store_record(104, 99, "cuckoo")] * 3),
    )
    given = [str(before), str(now), "--only", "store", "--rounds", "1"]
    assert compare.main(given) == 0
    shown = capsys.readouterr().out
    assert "store: dlbf 1.040 (median of 1), others 1.980 (median of 1)" in shown
    assert shown.splitlines()[0].split() == ["1.040", "100.0", "104.0", *"store: B, 0.5, ns, dlbf Store cuckoo".split()]
    assert compare.main([*given, "--at-most", "1.05"]) == 0
    capsys.readouterr()
    assert compare.main([*given, "--at-most", "1.03", "--json"]) == 1
    assert [row["ours"] for row in json.loads(capsys.readouterr().out)] == [True, False]


def test_only_times_are_compared_and_guarded_ones_are_ours():
    record = {
        "machine": {"cores": "2"},
        "costs": [{"engine": "dict", "absent": {"bare_ns": 4.5, "guarded_ns": 9, "ratio": [2.0]}}],
        "rows": [{"name": "dlbf Bloom", "add_ns": None, "fpr": 0.01, "threads_speedup": 1.5}],
        "load": [{"load_us_per_key": 2.0}],
        "others": [{"name": "CuckooFilter", "add_ns": 3.0}, {"name": "pyfusefilter", "add_ns": 4.0}],
    }
    times = dict(compare.times_of(record))
    assert times == {
        "dict, absent, bare_ns": 4.5,
        "dict, absent, guarded_ns": 9.0,
        "load, 0, load_us_per_key": 2.0,
        "CuckooFilter, add_ns": 3.0,
        "pyfusefilter, add_ns": 4.0,
    }
    assert [compare.Compared("guard", what, 1, 1).is_ours for what in times] == [False, True, False, True, False]


def test_failing_checkout_is_named(tmp_path, checkout):
    tree = checkout("broken")
    with pytest.raises(SystemExit, match=r"broken/.venv/bin/dlbf bench .* failed; build the checkout first"):
        compare.bench(tree, ["filters"])


def test_instructions_are_compared_where_both_builds_have_the_path(tmp_path, monkeypatch, capsys):
    trees = []
    for name, counts in (("before", {"in": 100.0, "add": None, "gone": 5.0}), ("now", {"in": 106.0, "add": 7.0})):
        python = tmp_path / name / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n[ \"$2\" = '{compare.HOT_PATHS}' ] && echo '{json.dumps(counts)}'\n")
        python.chmod(0o755)
        trees.append(str(tmp_path / name))
    assert compare.main([*trees, "--only", "instructions"]) == 0
    shown = capsys.readouterr().out
    assert "instructions: dlbf 1.060 (median of 1)" in shown
    assert shown.splitlines()[-2:] == ["slower by more than 5%: 1", "  1.060  instructions: in"]


def test_what_is_no_checkout_and_no_revision_is_refused():
    with pytest.raises(SystemExit, match="neither a folder nor a revision"):
        compare.main(["no-such-revision", "."])
