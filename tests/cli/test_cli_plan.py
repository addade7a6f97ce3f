"""``dlbf plan``, in process."""

import csv
import json
import sys

import pytest

pytest.importorskip("click")
from click.testing import CliRunner

from dlbf.cli import build
from dlbf.theory import DESIGNS, plan

MODEL = ["--model-fpr", "0.01", "--model-fnr", "0.5"]


def run(*arguments, code=0):
    result = CliRunner().invoke(build(), ["plan", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_plan_lists_every_design_with_a_model_and_a_budget():
    pytest.importorskip("rich")
    output = run(*MODEL, "--bits-per-key", "20", "--counter-bits", "2")
    assert [line.split()[0] for line in output.splitlines()[1 : 1 + len(DESIGNS)]] == list(DESIGNS)
    assert "0.0016" in output


def test_plan_without_a_model_lists_the_designs_that_need_none():
    pytest.importorskip("rich")
    output = run("--fpr", "0.01")
    names = [line.split()[0] for line in output.splitlines()[1:-1]]
    assert {"bloom", "counting", "cuckoo", "auto"} <= set(names)
    assert "slbf" not in names


def test_plan_says_why_a_design_is_not_feasible():
    pytest.importorskip("rich")
    output = run(*MODEL, "--bits-per-key", "9", "--counter-bits", "2", "slbf-2cbf")
    assert "not feasible" in output
    assert "9.56" in output


def test_plan_fits_a_terminal_of_eighty_columns():
    pytest.importorskip("rich")
    arguments = ["plan", *MODEL, "--fpr", "0.01", "--deletability", "0.9"]
    output = CliRunner().invoke(build(), arguments, env={"COLUMNS": "80"}).output
    lines = output.splitlines()
    assert max(map(len, lines)) <= 80
    # Each design on a line or two, those that cannot be had together in one sentence.
    assert len(lines) <= 24
    said = " ".join(output.split())
    assert (
        "not feasible (the design cannot delete): bloom, lbf, slbf, plbf, ada-bf, bodega, uptown, secure-bloom" in said
    )


def test_plan_json_equals_the_library():
    data = json.loads(run(*MODEL, "--bits-per-key", "20", "--json"))
    assert [row["design"] for row in data] == list(DESIGNS)
    for row in data:
        assert row == plan(row["design"], model_fpr=0.01, model_fnr=0.5, bits_per_key=20).to_dict()


def test_plan_by_shares_with_details():
    output = run(
        "--key-shares", "0.1,0.3,0.6", "--query-shares", "0.8 0.15 0.05", "--fpr", "0.01", "--details", "plbf-cbf"
    )
    assert output.startswith("plbf-cbf: ")
    assert output.count("  region") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fpr", "2"], "fpr: expected 0 < fpr < 1, found 2.0"),
        (["nonsense"], "design: expected one of"),
        (["--fpr", "0.01", "slbf"], "slbf uses a model"),
        (["--key-shares", "a,b"], "expected numbers separated by commas, found 'a,b'"),
        (["--counter-bits", "3"], "counter_bits: expected one of (2, 4, 8), found 3"),
    ],
)
def test_nonsense_is_refused_with_a_message(arguments, words):
    assert words in run(*arguments, code=2)


def test_figures_are_written_with_their_claims(tmp_path):
    pytest.importorskip("matplotlib")
    run("--figures", str(tmp_path / "figures"))
    files = {path.name: path for path in (tmp_path / "figures").iterdir()}
    for name in (
        "dlbf-figure-7-fpr", "dlbf-figure-8-deletability", "dlbf-figure-9-fnr", "bodega-figure-6-high",
        "bodega-figure-7-low", "bodega-figure-8-mixed", "hybrid-measured", "theory-saving", "theory-ridge",
        "theory-adversary",
    ):  # fmt: skip
        assert files[f"{name}.png"].read_bytes().startswith(b"\x89PNG")
        with files[f"{name}.csv"].open(newline="") as file:
            assert len(list(csv.DictReader(file))) > 30
    with files["claims.csv"].open(newline="") as file:
        claims = {row["statement"]: row for row in csv.DictReader(file)}
    # The slips of the published sources, each with the value that is right.
    limits = [row["computed"] for statement, row in claims.items() if "feasible from" in statement]
    assert [text.split()[2] for text in limits] == ["23.3", "36.4"]
    (worked,) = (row for statement, row in claims.items() if "b1* of slbf-2cbf" in statement)
    assert worked["published"] == "4.782"
    assert worked["computed"].startswith("9.564")
    assert worked["computed"].endswith("FPR 0.00163")
    (equation,) = (row for statement, row in claims.items() if "DlBF" in statement)
    assert equation["computed"].startswith("Eq. 1 0.932")
    assert "0.80" in equation["computed"]
    # The published crossover, by theory and with filters that were built; the sandwich and bodega have one bound.
    (crossover,) = (row for statement, row in claims.items() if "crossover of the published example" in statement)
    assert crossover["computed"].startswith("predicted 0.87%, measured 0.8")
    for words in ("crossover of", "has the bound of bodega"):
        assert {row["agrees"] for statement, row in claims.items() if words in statement} == {"yes"}
    with files["dlbf-figure-7-fpr.csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    infeasible = [float(row["bits_per_key"]) for row in rows if not row["slbf-2cbf fpr"]]
    assert max(infeasible) == pytest.approx(36.4, abs=0.6)


def test_figures_can_be_chosen_by_name(tmp_path):
    pytest.importorskip("matplotlib")
    run("--figures", str(tmp_path), "--only", "theory-ridge")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theory-ridge.csv", "theory-ridge.png"]
    assert "expected the start of one of" in run("--figures", str(tmp_path), "--only", "nothing", code=2)


def test_missing_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'dlbf[plot]'" in run("--figures", str(tmp_path), code=2)


def test_missing_rich_names_the_extra(monkeypatch):
    for name in ("rich", "rich.console", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'dlbf[cli]'" in run("--fpr", "0.01", code=2)
    assert json.loads(run("--fpr", "0.01", "--json"))
