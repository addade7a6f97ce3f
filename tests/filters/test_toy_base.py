"""One row is all that there is to know about a base filter: a toy in one file of its own goes through the library.

And the composite's kernel, which calls the leaves of the filters it knows directly, agrees with the table.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import learned_common, peek
from support.places import TESTS
from support.samples import SECRET, url_keys

import dlbf
from dlbf.filters import kinds
from dlbf.kernels.composite import DIRECT
from dlbf.learned.assembly import DELETED, INITIAL, MEMBER, Part
from dlbf.learned.composite import empty_composite
from dlbf.theory import DESIGNS, FilterPlan
from dlbf.theory.planner import PLANNERS

TOY = TESTS / "toy" / "toy.pyx"
ROOT = Path(dlbf.__file__).parents[1]
SETUP = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
toy = Extension("toy", ["toy.pyx"], include_dirs=[sys.argv.pop()])
setup(name="toy", ext_modules=cythonize([toy], language_level=3))
"""


# --- the table and the kernel


def test_kernel_calls_exactly_the_filters_of_the_table_by_their_numbers():
    assert {row.name: row.number for row in kinds.BASES.values()} == DIRECT


@pytest.fixture
def doubles():
    """Rows like those of the table, under numbers that the kernel does not know, so it asks their classes."""
    made = {}
    for row in list(kinds.BASES.values()):
        cls = type(row.cls.__name__, (row.cls,), {"KIND": row.number + 100, "__hash__": None})
        made[row.name] = replace(row, name=f"{row.name} again", cls=cls)
        kinds.add_base(made[row.name])
    yield made
    for row in made.values():
        del kinds.BASES[row.name], kinds._NUMBERED[row.number], dlbf.format.KIND_NAMES[row.number]


def laid_out(row, places, secret):
    """An empty composite of two regions with a filter of that row in these places."""
    like = learned_common.fitted("lbf-2cbf")
    n_keys = 300 if row.growable else 60  # what has grown is moved by the kernel, which must know the filter for that
    params = row.geometry(n_keys, FilterPlan(row.name, 0.1, 5.0), 4)
    parts = [Part(role, region, row.number, role, params) for role, region in places]
    scores = like.model.score_many(KEYS)
    flags = 2 if secret else 0
    cut = int(np.median(scores))
    return empty_composite(dlbf.LearnedFilter, parts, [cut], like.model, flags, like.plan, 60, 0.1, secret)


KEYS = url_keys(60, seed=1)
ABSENT = url_keys(3000, seed=2)
MEMBERS = [(MEMBER, 0), (MEMBER, 1)]


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
@pytest.mark.parametrize(
    "places",
    [MEMBERS, [(INITIAL, 0), *MEMBERS], [(MEMBER, 0), (DELETED, 1)]],
    ids=["members", "initial", "deleted"],
)
@pytest.mark.parametrize("name", [name for name, row in kinds.BASES.items() if not row.static])
def test_composite_asks_a_class_as_it_calls_its_leaves(doubles, name, places, secret):
    """The switch of the kernel against the leaves that ``core.pxd`` asks for: same answers, same bytes."""
    both = [laid_out(row, places, secret) for row in (kinds.BASES[name], doubles[name])]
    direct, asked = both

    def check():
        assert (direct.contains_many(ABSENT + KEYS) == asked.contains_many(ABSENT + KEYS)).all()
        assert [key in direct for key in KEYS] == [key in asked for key in KEYS]
        assert len(direct) == len(asked)
        for (_, at, n_bytes), (_, their_at, _) in zip(peek.layout(direct), peek.layout(asked), strict=True):
            assert peek.payload(direct)[at : at + n_bytes] == peek.payload(asked)[their_at : their_at + n_bytes]
        return asked.contains_many(KEYS)

    for lf in both:
        lf.update(KEYS)
    assert check().all()
    gone, same = (lf.remove_many(KEYS[:30]) for lf in both)
    assert (gone == same).all()
    present = check()
    assert not present[:30][gone].any()
    assert present[30:].all() or (DELETED, 1) in places  # an approximate set of deleted keys takes others with it
    again = dlbf.LearnedFilter.from_bytes(asked.to_bytes(), secret)
    assert (again.contains_many(ABSENT) == direct.contains_many(ABSENT)).all()
    if name == "bits" and (DELETED, 1) in places:
        for lf in both:
            with pytest.raises(dlbf.ReinsertionError):
                lf.update(KEYS[:30])
        return
    for lf in both:
        lf.update(key for key, left in zip(KEYS, present, strict=True) if not left)
    check()
    for lf in both:
        lf.clear()
    check()


def test_names_and_numbers_are_taken_once():
    row = kinds.BASES["cuckoo"]
    with pytest.raises(ValueError, match="is a CuckooFilter's"):
        kinds.add_base(row)
    with pytest.raises(ValueError, match="'other' of kind 5"):
        kinds.add_base(replace(row, name="other"))


def test_every_design_names_a_planner_a_title_and_filters_of_the_table():
    for design in DESIGNS.values():
        assert design.planner in PLANNERS
        assert design.title
        bases = {*design.member, *design.deleted, design.initial or "all"} - {"all", "chosen", "none"}
        assert bases <= set(kinds.BASES)
    assert set(PLANNERS) == {design.planner for design in DESIGNS.values()}


# --- a base filter in one file of its own


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A folder with the compiled toy and two files of keys."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copy(TOY, folder)
    (folder / "setup.py").write_text(SETUP)
    (folder / "keys.txt").write_bytes(b"\n".join(url_keys(400, seed=3)) + b"\n")
    (folder / "absent.txt").write_bytes(b"\n".join(url_keys(1200, seed=4)) + b"\n")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", str(ROOT / "dlbf" / "kernels")]
    done = subprocess.run(
        build, cwd=folder, env=environment(folder) | {"CFLAGS": "-O1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def environment(folder):
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "COLUMNS": "120"}


def run(folder, code, *arguments):
    """What a program prints that puts the toy into the table before anything else."""
    done = subprocess.run(
        [sys.executable, "-c", f"import toy\n{code}", *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CLI = "import sys\nfrom dlbf.cli import main\nmain(sys.argv[1:])"


def command(folder, *arguments):
    return run(folder, CLI, *arguments)


LIBRARY = """
import dlbf
from dlbf.learned.regions import relaid
from dlbf.theory import DESIGNS, plan
keys, absent = (open(name, "rb").read().split() for name in ("keys.txt", "absent.txt"))

# Format and open_filter.
f = toy.ToyFilter(len(keys), 0.01)
f.update(keys)
assert toy.ToyFilter.from_bytes(f.to_bytes()) == f
f.save("plain.dlbf")
with dlbf.open_filter("plain.dlbf", "r+") as g:
    assert type(g) is toy.ToyFilter and g.contains_many(keys).all() and g.contains_many(absent).mean() < 0.03
    assert g.remove(keys[0]) and keys[0] not in g
try:
    dlbf.CuckooFilter.from_bytes(f.to_bytes())
except dlbf.FormatError as error:
    assert "found a ToyFilter" in str(error)

# Planner.
one = plan("toy", fpr=0.01)
assert one.regions[0].member.base == "toy" and one.deletability > 0.98
shares = {"key_shares": [0.2, 0.8], "query_shares": [0.9, 0.1]}
many = plan("auto", fpr=0.01, deletability=0.9, bases=("toy",), **shares)
assert {region.member.base for region in many.regions} == {"toy"}, many
assert plan("auto", fpr=0.01, deletability=0.9, **shares).bits < many.bits

# Composite: filled, saved, opened, changed, laid out anew.
lf = dlbf.LearnedFilter.fit(keys, absent, fpr=0.01, design="toy", model=None, progress=False)
assert lf.plan.regions[0].base == "toy" and lf.contains_many(keys).all()
lf.save("learned.dlbf")
with dlbf.open_filter("learned.dlbf", "r+") as opened:
    gone = opened.remove_many(keys[:100])
    assert gone.mean() > 0.9 and opened.contains_many(keys[100:]).all()
    assert not opened.contains_many(keys[:100])[gone].any()
with dlbf.open_filter("learned.dlbf") as opened:
    assert len(opened) == len(keys) - 100 and abs(opened.approximate_count() - 300) < 30
    assert opened.copy() == opened
larger = relaid(lf, [10 * len(keys)])
larger.update(keys)
assert larger.contains_many(keys).all() and larger.nbytes > 8 * lf.nbytes

# Words.
from dlbf.report.wording import design_title, plain_words
assert (design_title("toy"), plain_words("toy"), DESIGNS["toy"].summary) == ("Toy filter", "toy filter", "toy filter")
from dlbf.storage import generations
assert generations.design_of(f) == "toy"
"""


def test_toy_goes_through_format_planner_and_composite(toy):
    run(toy, LIBRARY)


def test_toy_goes_through_the_command_line(toy):
    command(toy, "fit", "keys.txt", "absent.txt", "--design", "toy", "--model", "none", "-o", "toy.dlbf")
    assert "toy" in command(toy, "info", "toy.dlbf")
    shown = json.loads(command(toy, "info", "--json", "toy.dlbf"))
    assert (shown["items"], shown["plan"]["regions"][0]["base"]) == (400, "toy")
    assert "toy" in command(toy, "plan", "toy", "--fpr", "0.01")


def test_toy_goes_through_the_report(toy):
    listed = "from dlbf.report import collecting\ncollecting.SHORT_LIST = (*collecting.SHORT_LIST, 'toy')\n"
    run(toy, listed + CLI, "report", "keys.txt", "absent.txt", "--quick", "-o", "page.html")
    assert "Toy filter" in (toy / "page.html").read_text()
