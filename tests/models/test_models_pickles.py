"""Sealed pickles: what goes in comes back, and nothing hostile runs."""

import contextlib
import os
import pickle
import secrets
import struct
import sys
import warnings

import numpy as np
import pytest

from dlbf import ChecksumError, FormatError, models
from dlbf.models import pickles

SECRET = bytes(range(32))
RAN = []


def sealed(data, secret=SECRET):
    """Any bytes under a right tag: what somebody with the secret, or a bug of ours, could have stored."""
    head = pickles.MAGIC + len(data).to_bytes(8, "little")
    return head + pickles._tag(head, data, secret) + data


class Calls:
    """Pickles to a call of ``function(*arguments)``."""

    def __init__(self, function, *arguments):
        self.pair = function, arguments

    def __reduce__(self):
        return self.pair


def touch(path):
    RAN.append(path)


def estimators():
    from sklearn.ensemble import (
        AdaBoostClassifier,
        ExtraTreesClassifier,
        GradientBoostingClassifier,
        HistGradientBoostingClassifier,
        RandomForestClassifier,
    )
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.svm import LinearSVC
    from sklearn.tree import DecisionTreeClassifier

    return [
        SGDClassifier(loss="log_loss", random_state=0),
        SGDClassifier(loss="hinge", random_state=0),
        LogisticRegression(),
        LinearSVC(),
        GaussianNB(),
        DecisionTreeClassifier(max_depth=3),
        RandomForestClassifier(5, max_depth=3, random_state=0),
        ExtraTreesClassifier(5, max_depth=3, random_state=0),
        GradientBoostingClassifier(n_estimators=4, random_state=0),
        HistGradientBoostingClassifier(max_iter=4, random_state=0),
        AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=4, random_state=0),
    ]


@pytest.mark.parametrize("number", range(11))
def test_open_pickle_every_supported_estimator_comes_back(number):
    estimator = estimators()[number]
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    matrix = rng.integers(0, 50, (200, 28)) + 10 * labels[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(matrix, labels)
    again = models.open_pickle(models.seal(estimator, SECRET), SECRET)
    assert type(again) is type(estimator)
    assert np.array_equal(again.predict(matrix), estimator.predict(matrix))


@pytest.mark.parametrize(
    "payload",
    [
        Calls(os.system, "echo hostile"),
        Calls(touch, "reduce"),
        Calls(eval, "RAN.append(1)"),
        Calls(getattr, "text", "join"),
        Calls(np.load, "file"),
        Calls(__import__, "antigravity"),
        Calls(sys.exit, 3),
        [{"deep": (1, [Calls(touch, "nested")])}],
        Calls(pickle.loads, pickle.dumps(Calls(touch, "pickle in a pickle"))),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_open_pickle_class_off_the_list_is_refused_even_with_the_right_tag(payload, protocol):
    data = pickle.dumps(payload, protocol=protocol)
    with pytest.raises(FormatError, match="nothing was run"):
        models.open_pickle(sealed(data), SECRET)
    assert RAN == []


def test_open_pickle_dotted_name_is_refused():
    # STACK_GLOBAL with "ndarray.__class__": a listed module, an attribute walk to something else.
    data = b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."
    with pytest.raises(FormatError, match="nothing was run"):
        models.open_pickle(sealed(data), SECRET)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04r\xff\xff\xff\x7f.",  # memo place 2**31 - 1: the unpickler would grow its memo to 16 GiB
        b"\x80\x04N" + b"r" + struct.pack("<I", 2**32 - 1) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",  # a bytes object of 4 EiB
        b"\x80\x04\x8b" + struct.pack("<i", 2**30) + b"\x01.",  # a number of a billion bytes
        b"\x80\x05\x96" + struct.pack("<Q", 2**50) + b".",
        b"\x80\x04Pname\n.",  # persistent id
        b"\x80\x04\x82\x01.",  # extension code
        b"\x80\x05\x97.",  # out-of-band buffer
        b"\x80\x04",  # nothing
        b"",
        b"not a pickle",
        b"(" * 100_000 + b".",  # marks without end
    ],
)
def test_open_pickle_huge_or_odd_pickle_is_refused_quickly(data):
    with pytest.raises(FormatError):
        models.open_pickle(sealed(data), SECRET)


def test_open_pickle_deeply_nested_does_not_crash():
    data = b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b"."
    # Plain data, however deep, runs nothing; whether it fits is the unpickler's business, not a crash.
    with contextlib.suppress(FormatError):
        models.open_pickle(sealed(data), SECRET)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04}N" + b"\x85" * 1_000_000 + b"Ns.",  # the key of a dict: its hash would recurse until the stack ends
        b"\x80\x04}N" + b"\x85N\x86" * 500_000 + b"Ns.",
        b"\x80\x04\x8f(N" + b"\x85" * 1_000_000 + b"\x90.",  # an element of a set
        b"\x80\x04}" + b"(" * 1_000_000 + b"t" * 1_000_000 + b"Ns.",
        b"\x80\x04}N" + b"\x85\x94h\x00" + b"\x85r\x00\x00\x00\x000j\x00\x00\x00\x00" * 200_000 + b"Ns.",  # by the memo
        b"\x80\x04}N" + b"\x85Nb(e" * 300_000 + b"Ns.",  # steps that leave a tuple as it is
    ],
)
def test_open_pickle_tuples_too_deep_to_hash_are_refused(data):
    with pytest.raises(FormatError, match="nests more than"):
        models.open_pickle(sealed(data), SECRET)


@pytest.mark.parametrize(
    "change",
    [b"N}\x8c\x04linkK\x05s\x86b.", b"\x94h\x00N}\x8c\x04linkK\x05s\x86b.", b"2N}\x8c\x04linkK\x05s\x86b."],
)
def test_open_pickle_that_changes_a_class_is_refused(change):
    from sklearn._loss.link import LogitLink

    before = LogitLink.link
    data = b"\x80\x04\x8c\x12sklearn._loss.link\x8c\x09LogitLink\x93" + change
    with pytest.raises(FormatError, match="changes a class or function"):
        models.open_pickle(sealed(data), SECRET)
    assert LogitLink.link is before


@pytest.mark.parametrize("data", [b"\x80\x040.", b"\x80\x04N\x86.", b"\x80\x04t.", b"\x80\x04Ns."])
def test_open_pickle_that_takes_too_much_is_refused(data):
    with pytest.raises(FormatError, match="nothing was run"):
        models.open_pickle(sealed(data), SECRET)


@pytest.mark.parametrize(
    "loss", ["squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "perceptron"]
)
def test_open_pickle_every_loss_of_sgd_comes_back(loss):
    from sklearn.linear_model import SGDClassifier

    labels = np.arange(100) % 2
    matrix = np.random.default_rng(0).integers(0, 9, (100, 28)) + labels[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = SGDClassifier(loss=loss, random_state=0).fit(matrix, labels)
    model = models.compile(estimator, "lexical", secret=SECRET)
    assert np.array_equal(models.open_pickle(model.pickle, SECRET).coef_, estimator.coef_)


def test_open_pickle_truncation_anywhere_is_refused():
    good = models.seal({"weights": [1.0, 2.0], "name": "x"}, SECRET)
    for n in range(len(good)):
        with pytest.raises(FormatError):
            models.open_pickle(good[:n], SECRET)
    body = pickle.dumps({"weights": [1.0, 2.0]}, protocol=4)
    for n in range(len(body)):
        with pytest.raises(FormatError):
            models.open_pickle(sealed(body[:n]), SECRET)


def test_open_pickle_wrong_tag_is_refused_before_anything_is_read():
    hostile = pickle.dumps(Calls(touch, "wrong tag"), protocol=4)
    with pytest.raises(ChecksumError, match="nothing was run"):
        models.open_pickle(sealed(hostile, secrets.token_bytes(16)), SECRET)
    good = bytearray(models.seal([1, 2, 3], SECRET))
    for bit in range(8 * len(good)):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            models.open_pickle(changed, SECRET)
    assert RAN == []


def test_open_pickle_larger_than_allowed_is_refused_unread():
    with pytest.raises(FormatError, match="at most 10 are accepted"):
        models.open_pickle(models.seal(b"x" * 100, SECRET), SECRET, max_bytes=10)


def test_seal_short_secret_is_refused():
    with pytest.raises(ValueError, match="at least 16"):
        models.seal([1], b"short")


def test_model_pickle_opens_with_its_secret_only():
    keys = [f"10.0.0.{i}/a" for i in range(60)]
    negatives = [f"example.org/{i}/page" for i in range(60)]
    model = models.train(keys, negatives, max_bytes=256, secret=SECRET)
    assert isinstance(model.pickle, bytes)
    assert type(models.open_pickle(model.pickle, SECRET)).__name__ == "SGDClassifier"
    with pytest.raises(ChecksumError):
        models.open_pickle(model.pickle, bytes(32))
    unsealed = models.train(keys, negatives, max_bytes=256)
    with pytest.raises(ChecksumError):
        models.open_pickle(unsealed.pickle, SECRET)
    again = models.open_pickle(unsealed.seal(SECRET), SECRET)
    assert models.compile(again, unsealed.features).payload == unsealed.payload
