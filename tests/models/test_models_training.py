"""Training and compiling: what is learnt, what is lost by quantising, what is refused."""

import lzma
import math
import os
import random
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from support import models_reference as reference
from support.models_golden import GOLDEN, golden_keys
from support.places import ROOT

from dlbf import models
from dlbf.models import kinds
from dlbf.models.features import PackedKeys, guess_split_byte, guess_view
from dlbf.models.measuring import choose_thresholds, filter_bits, measure, region_shares
from dlbf.models.trainers import TRAINERS

KINDS = ("ngram", "trees", "naive-bayes", "svm")
DATA = os.environ.get("DLBF_DATA", "")


def addresses(n, seed=0):
    """Two families that overlap a little, with digits, depth and endings to learn from."""
    rng = random.Random(seed)
    words = ["alpha", "beta", "gamma", "delta", "news", "img", "blog", "wiki", "story", "index"]
    keys, negatives = set(), set()
    while len(keys) < n:
        if rng.random() < 0.5:
            host = ".".join(str(rng.randrange(256)) for _ in range(4))
        else:
            host = f"{rng.choice(words)}{rng.randrange(9999)}.ru"
        folder, ending = rng.choice(["bin", "x", "mips", "wp-admin"]), rng.choice(["exe", "sh", "php"])
        keys.add(f"{host}/{folder}/{rng.randrange(10**6)}.{ending}")
    while len(negatives) < n:
        path = "-".join(rng.choice(words) for _ in range(rng.randrange(1, 6)))
        negatives.add(
            f"{rng.choice(words)}{rng.randrange(99)}.com/{2000 + rng.randrange(24)}/{path}{rng.randrange(1000)}"
        )
    return sorted(keys), sorted(negatives)


KEYS, NEGATIVES = addresses(3000)


@pytest.fixture(scope="module")
def trained():
    return {kind: models.train(KEYS, NEGATIVES, kind=kind, max_bytes=2048) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_train_every_kind_tells_keys_from_negatives(trained, kind):
    model = trained[kind]
    assert model.kind == kind
    assert 0 < model.nbytes <= 2048
    keys, negatives = model.score_many(KEYS), model.score_many(NEGATIVES)
    assert keys.dtype == np.int32
    assert np.median(keys) > np.quantile(negatives, 0.99)
    assert model.report["kl_integer"] > 1
    # Quantising may shuffle near-ties, so a little gain is possible too.
    assert model.report["kl_integer"] > 0.95 * model.report["kl_float"]


@pytest.mark.parametrize("kind", KINDS)
def test_train_every_kind_equals_reference(trained, kind):
    model = trained[kind]
    slow = reference.Reference(model.params, model.payload)
    keys = [key.encode() for key in KEYS[:150] + NEGATIVES[:150]] + golden_keys(300)
    assert model.score_many(keys).tolist() == [slow.score(key) for key in keys]


def test_every_kind_has_a_trainer_and_the_number_it_always_had():
    assert kinds.KINDS == ("none", "ngram", "trees", "naive-bayes", "svm")  # stored in models: new ones come last
    assert [kinds.kind_of_number(number).name for number in range(len(kinds.KINDS))] == list(kinds.KINDS)
    assert kinds.kind_of_number(len(kinds.KINDS)) is None
    assert set(TRAINERS) == set(kinds.ROWS) - {"none"}
    for name in models.SUPPORTED:
        assert kinds.kind_of_class(name.split()[0]).name in TRAINERS


@pytest.mark.parametrize("kind", KINDS)
def test_train_twice_gives_the_same_bytes(trained, kind):
    again = models.train(KEYS, NEGATIVES, kind=kind, max_bytes=2048)
    assert again.to_bytes() == trained[kind].to_bytes()
    assert models.from_bytes(again.to_bytes()) == trained[kind]


def test_train_four_bits_hold_twice_the_weights():
    model = models.train(KEYS, NEGATIVES, max_bytes=1024, weight_bits=4)
    assert (model.nbytes, model.features.n_weights, model.form) == (1024, 2048, "int4 table")
    assert np.median(model.score_many(KEYS)) > np.quantile(model.score_many(NEGATIVES), 0.99)


def test_train_auto_picks_a_model_that_saves_bits():
    stages = []
    model = models.train(
        KEYS, NEGATIVES, kind="auto", max_bytes=1024, progress=lambda stage, share: stages.append((stage, share))
    )
    assert model.kind != "none"
    assert model.nbytes <= 1024
    assert model.report["total_bits_per_key"] < 0.8 * model.report["plain_bits_per_key"]
    kinds = {candidate["kind"] for candidate in model.report["candidates"]}
    assert kinds == {"none", *KINDS}
    assert stages
    assert all(0 <= share <= 1 for _, share in stages)


def test_train_auto_random_keys_answers_no_model():
    rng = random.Random(3)
    keys, negatives = ([rng.randbytes(16) for _ in range(4000)] for _ in range(2))
    model = models.train(keys, negatives, kind="auto", max_bytes=4096)
    assert (model.kind, model.nbytes, model.score(keys[0])) == ("none", 0, 0)
    assert model.report["total_bits_per_key"] == model.report["plain_bits_per_key"]
    assert models.from_bytes(model.to_bytes()) == model


@pytest.mark.parametrize("width", ["decimal", "binary"])
def test_train_auto_integers_in_a_range_are_learnt(width):
    rng = random.Random(4)
    make = (lambda i: str(i).encode()) if width == "decimal" else (lambda i: i.to_bytes(8, "big"))
    keys = [make(rng.randrange(5_000_000, 6_000_000)) for _ in range(4000)]
    negatives = [make(rng.randrange(1_000_000, 9_999_999)) for _ in range(4000)]
    assert guess_view(PackedKeys(keys)) == "numeric"
    model = models.train(keys, negatives, kind="trees", max_bytes=512)
    assert model.features.view == "numeric"
    assert model.report["kl_integer"] > 1.5  # ln 9 = 2.2 is all there is


def test_train_validation_negatives_are_measured_not_learnt():
    other = [f"elsewhere.net/{i}" for i in range(200)]
    model = models.train(KEYS, NEGATIVES, max_bytes=512, validation=other)
    assert model.report["n_negatives"] == len(NEGATIVES)
    assert model.report["n_held_out"] == 200
    half = models.train(KEYS, NEGATIVES, max_bytes=512, validation=0.5)
    assert half.report["n_negatives"] == half.report["n_held_out"] == len(NEGATIVES) // 2


def test_train_takes_generators_and_samples_long_lists():
    model = models.train((key for key in KEYS), iter(NEGATIVES), max_bytes=256)
    assert model.report["n_keys"] == len(KEYS)
    model = models.train(KEYS, NEGATIVES, max_bytes=256, max_rows=500)
    assert model.report["n_keys"] == 500
    assert model.report["n_negatives"] <= 500


def test_train_objective_decides():
    # An objective that hates bytes leaves nothing but "none".
    model = models.train(KEYS, NEGATIVES, "auto", 512, objective=lambda quality, n_bytes: 1 + n_bytes)
    assert model.kind == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "magic"}, "kind must be one of"),
        ({"max_bytes": 3}, "at least 16"),
        ({"validation": 1.5}, "between 0 and 1"),
        ({"weight_bits": 5}, "weight_bits must be 4 or 8"),
    ],
)
def test_train_wrong_arguments_say_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.train(KEYS[:50], NEGATIVES[:50], **arguments)


def test_train_without_keys_says_so():
    with pytest.raises(ValueError, match="found 0 and 50"):
        models.train([], NEGATIVES[:50])


def test_train_progress_is_written_to_stderr(capsys):
    models.train(KEYS[:100], NEGATIVES[:100], max_bytes=256, epochs=1, progress=True)
    assert "100%" in capsys.readouterr().err


# compile


def fitted(name):
    from sklearn import ensemble, linear_model, naive_bayes, svm, tree

    made = {
        "LogisticRegression": lambda: linear_model.LogisticRegression(max_iter=50),
        "SGDClassifier": lambda: linear_model.SGDClassifier(random_state=0),
        "LinearSVC": lambda: svm.LinearSVC(max_iter=50),
        "GaussianNB": naive_bayes.GaussianNB,
        "DecisionTreeClassifier": lambda: tree.DecisionTreeClassifier(max_depth=6),
        "RandomForestClassifier": lambda: ensemble.RandomForestClassifier(8, max_depth=6, random_state=0),
        "ExtraTreesClassifier": lambda: ensemble.ExtraTreesClassifier(8, max_depth=6, random_state=0),
        "GradientBoostingClassifier": lambda: ensemble.GradientBoostingClassifier(n_estimators=8, random_state=0),
        "HistGradientBoostingClassifier": lambda: ensemble.HistGradientBoostingClassifier(max_iter=8),
        "AdaBoostClassifier": lambda: ensemble.AdaBoostClassifier(
            tree.DecisionTreeClassifier(max_depth=2), n_estimators=8, random_state=0
        ),
    }[name]()
    matrix = models.Features("lexical").transform(KEYS + NEGATIVES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made.fit(matrix, [1] * len(KEYS) + [0] * len(NEGATIVES))


@pytest.mark.parametrize("name", [name.split()[0] for name in models.SUPPORTED])
def test_compile_every_supported_estimator_keeps_its_order(name):
    estimator = fitted(name)
    model = models.compile(estimator, "lexical", keys=KEYS, negatives=NEGATIVES)
    assert model.report["kl_integer"] >= 0.98 * model.report["kl_float"] > 0.5
    view = models.Features("lexical").transform(KEYS[:300] + NEGATIVES[:300])
    if hasattr(estimator, "decision_function"):
        floats = estimator.decision_function(view)
    else:
        floats = estimator.predict_proba(view)[:, 1]
    scores = model.score_many(KEYS[:300] + NEGATIVES[:300])
    # Where the estimator is clear, the integers agree; only near-ties may fall together.
    if name not in ("GaussianNB",):
        order = np.argsort(floats, kind="stable")
        steps = np.diff(scores[order].astype(np.int64))
        tolerance = max(2, int(np.ptp(scores) * 0.01))
        assert steps.min() >= -tolerance
    slow = reference.Reference(model.params, model.payload)
    assert scores[:40].tolist() == [slow.score(key.encode()) for key in KEYS[:40]]


def test_compile_unsupported_estimator_lists_the_supported():
    from sklearn.neighbors import KNeighborsClassifier

    with pytest.raises(TypeError, match=r"KNeighborsClassifier cannot be compiled.*LogisticRegression.*AdaBoost"):
        models.compile(KNeighborsClassifier())


def test_compile_unfitted_or_mismatched_estimator_is_refused():
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB

    with pytest.raises(ValueError, match="not fitted"):
        models.compile(GaussianNB(), "lexical")
    estimator = LogisticRegression().fit(np.eye(30), np.arange(30) % 2)
    with pytest.raises(ValueError, match="fitted on 30 columns"):
        models.compile(estimator, "lexical")
    with pytest.raises(ValueError, match="not an ngram table"):
        models.compile(estimator)
    three = LogisticRegression().fit(np.eye(28), np.arange(28) % 3)
    with pytest.raises(ValueError, match="two classes"):
        models.compile(three, "lexical")
    trees = fitted("DecisionTreeClassifier")
    with pytest.raises(ValueError, match="28 columns"):
        models.compile(trees, models.Features("ngram", 32))


# measuring


def test_choose_thresholds_equals_exhaustive_search():
    rng = np.random.default_rng(5)
    keys, queries = rng.integers(0, 12, 400) + 2, rng.integers(0, 12, 400)
    found = choose_thresholds(keys, queries, 3)

    def kl(cuts):
        shares = [np.bincount(np.searchsorted(cuts, part, side="right"), minlength=3) / 400 for part in (keys, queries)]
        return sum(g * math.log(g / max(h, 3 / 400)) for g, h in zip(*shares, strict=True) if g > 0)

    best = max(kl([a, b]) for a in range(1, 14) for b in range(a + 1, 15))
    assert kl(found) == pytest.approx(best, abs=1e-9)


def test_filter_bits_meets_both_targets():
    keys, queries = np.array([0.1, 0.2, 0.7]), np.array([0.9, 0.09, 0.01])
    plain = filter_bits(np.ones(1), np.ones(1), 0.001)
    assert plain == pytest.approx(math.log(1000) / math.log(2) ** 2, rel=1e-6)
    learned = filter_bits(keys, queries, 0.001)
    divergence = float((keys * np.log(keys / queries)).sum())
    # No region at rate 1: exactly KL / ln(2)**2 bits are saved.
    assert plain - learned == pytest.approx(divergence / math.log(2) ** 2, rel=1e-3)
    assert filter_bits(keys, queries, 0.001, 0.9) > learned
    assert filter_bits(np.ones(1), np.ones(1), 1.0) == 0


def test_region_shares_of_an_empty_region_are_not_zero():
    _, queries = region_shares(np.array([0, 10]), np.array([5, 20]), np.array([-1, -2]))
    assert queries.min() > 0
    assert queries.sum() == pytest.approx(1)


def test_guess_split_byte_of_common_keys():
    assert guess_split_byte(PackedKeys([b"a.b/c-d", b"e.f/g"])) == b"/"
    assert guess_split_byte(PackedKeys([b"user:1:x", b"user:2:y"])) == b":"
    assert guess_split_byte(PackedKeys([b"word", b"other"])) is None


# real keys


def read(name):
    with lzma.open(Path(DATA) / name) as lines:
        return [line.rstrip(b"\n") for line in lines]


@pytest.fixture(scope="module")
def urls():
    rng = random.Random(0)
    keys, negatives = read("urls.malicious.txt.xz"), read("urls.benign.txt.xz")
    rng.shuffle(keys)
    rng.shuffle(negatives)
    return keys, negatives


def check_divergence(keys, negatives, held_out, least):
    model = models.train(keys, negatives, kind="ngram", max_bytes=8192, validation=held_out)
    assert model.nbytes == 8192
    kl = measure(model.score_many(keys), model.score_many(held_out)).kl
    assert kl >= least
    assert model.report["kl_integer"] >= 0.98 * model.report["kl_float"]


@pytest.mark.data
@pytest.mark.skipif(not DATA, reason="set DLBF_DATA to the folder of key sets")
def test_ngram_real_urls_divergence_on_held_out_negatives(urls):
    keys, negatives = urls
    check_divergence(keys[:300_000], negatives[:300_000], negatives[300_000:500_000], 4.0)


@pytest.mark.data
@pytest.mark.skipif(not DATA, reason="set DLBF_DATA to the folder of key sets")
def test_ngram_real_urls_divergence_on_unseen_hosts(urls):
    keys, negatives = urls
    unseen = [zlib.crc32(key.split(b"/")[0]) % 4 == 0 for key in negatives]
    learnt = [key for key, skip in zip(negatives, unseen, strict=True) if not skip]
    held_out = [key for key, skip in zip(negatives, unseen, strict=True) if skip]
    check_divergence(keys[:300_000], learnt[:300_000], held_out, 3.0)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not DATA, reason="set DLBF_DATA to the folder of key sets")
def test_scores_of_a_million_keys_equal_reference(urls):
    keys, negatives = urls
    rng = random.Random(7)
    batch = keys[:300_000] + negatives[:300_000] + [rng.randbytes(rng.randrange(64)) for _ in range(400_000)]
    for kind in KINDS:
        model = models.train(keys[:20_000], negatives[:20_000], kind=kind, max_bytes=1024)
        slow = reference.Reference(model.params, model.payload)
        found = model.score_many(batch)
        for first in range(0, len(batch), 50_000):
            part = batch[first : first + 50_000]
            assert found[first : first + 50_000].tolist() == [slow.score(key) for key in part]


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches",
    [
        {"DLBF_OPT": "0"},
        {"DLBF_OPT": "3"},
        {"DLBF_NATIVE": "1"},
        {"DLBF_SANITIZE": "address,undefined"},
    ],
    ids=lambda value: "-".join(f"{name}={level}" for name, level in value.items()),
)
def test_scores_are_pinned_in_every_build(switches, tmp_path):
    import shutil

    for name in ("dlbf", "storage", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.c"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    environment = {**os.environ, **switches, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    if "DLBF_SANITIZE" in switches:
        library = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
        environment |= {"LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    out = subprocess.run(
        [sys.executable, "tests/support/models_golden.py"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == GOLDEN


@pytest.mark.slow
@pytest.mark.timing
def test_score_is_far_faster_than_one_row_of_the_estimator(trained):
    model = trained["ngram"]
    row = model.features.transform(KEYS[:1])
    best_row = best_score = math.inf
    for _ in range(20):
        started = time.perf_counter()
        model.estimator.predict_proba(row)
        best_row = min(best_row, time.perf_counter() - started)
        started = time.perf_counter()
        for key in KEYS:
            model.score(key)
        best_score = min(best_score, (time.perf_counter() - started) / len(KEYS))
    assert best_row > 1000 * best_score


@pytest.mark.parametrize("how", ["kind='trees'", "estimator=HistGradientBoostingClassifier(max_iter=3), kind='trees'"])
def test_train_in_a_child_of_fork_ends_though_the_parent_has_used_openmp(how):
    """GNU's OpenMP waits for ever for threads that fork() has not copied."""
    code = f"""
import os, sys, time
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from dlbf import models
rows = np.random.default_rng(0).random((20_000, 8))
HistGradientBoostingClassifier(max_iter=3).fit(rows, rows[:, 0] > 0.5).decision_function(rows)
keys = [b"http://a.example/%d.exe" % i for i in range(2000)]
negatives = [b"https://b.example/page/%d" % i for i in range(2000)]
pid = os.fork()
if pid == 0:
    models.train(keys, negatives, max_bytes=1024, progress=False, {how})
    os._exit(0)
end = time.monotonic() + 90
while time.monotonic() < end:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.05)
os.kill(pid, 9)
sys.exit("the child hangs")
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"OMP_NUM_THREADS": "2"}, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, done.stderr
