"""Descriptors that a Python class has of its own for methods of a compiled base."""

import pickle

import pytest

from dlbf.kernels.methods import own_methods
from dlbf.kernels.scoring import Scorer
from dlbf.models import Model, from_bytes
from dlbf.models.model import no_model
from dlbf.storage import Guard, Store
from dlbf.storage.transactions import WriteTransaction


@pytest.mark.parametrize(
    ("cls", "name"),
    [(Store, "get"), (Store, "put"), (Store, "delete"), (Guard, "get"), (WriteTransaction, "put"), (Model, "score")],
)
def test_hot_method_belongs_to_the_class_that_is_used(cls, name):
    # Only then does the interpreter call it without a detour.
    assert getattr(cls, name).__objclass__ is cls
    assert getattr(cls, name).__doc__


def test_own_method_is_the_same_function_and_works_in_subclasses(tmp_path):
    class Mine(Store):
        """A user's subclass."""

    with Mine(tmp_path / "store") as store:
        store.put(b"k", b"v")
        assert store.get(b"k") == b"v"
        assert store.get(b"absent", default=b"d") == b"d"
        assert store.get(key=b"k") == b"v"
        assert store.delete(b"k")
        with pytest.raises(TypeError, match="argument"):
            store.get()
    model = from_bytes(no_model().to_bytes())
    assert model.score(b"key") == Scorer.score(model, b"key") == 0
    with pytest.raises(TypeError, match="Model"):
        Model.score(object(), b"key")
    assert pickle.loads(pickle.dumps(Model.score)) is Model.score


def test_own_method_of_a_class_without_such_a_method_is_refused():
    class Plain:
        def method(self):
            """A function."""

    with pytest.raises(TypeError, match=r"Plain\.method is no plain method"):
        own_methods("method")(Plain)
    with pytest.raises(AttributeError):
        own_methods("missing")(Plain)


def test_own_method_overridden_by_a_subclass_is_left_to_it(tmp_path):
    class Counting(Store):
        n = 0

        def get(self, key, default=None):
            self.n += 1
            return super().get(key, default)

    with Counting(tmp_path / "store") as store:
        assert store.get(b"absent") is None
        assert store.n == 1
