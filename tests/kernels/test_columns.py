"""Columns of pandas and polars are batches of keys, and answers are columns again."""

import numpy as np
import pytest

import dlbf
from dlbf.storage import Store

URLS = ["evil.example/", "fine.example/", "sn\u00f6.example/", ""]
STORED = [b"evil.example/", "sn\u00f6.example/".encode()]


def pandas_column(values, **more):
    return pytest.importorskip("pandas").Series(values, **more)


def polars_column(values):
    return pytest.importorskip("polars").Series("url", values)


def stored():
    f = dlbf.CuckooFilter(100, fpr=1e-6)
    f.update(STORED)
    return f


@pytest.mark.parametrize("make", [pandas_column, polars_column])
def test_columns_of_text_go_in_and_come_out(make, tmp_path):
    column = make(URLS)
    f = dlbf.CuckooFilter(100, fpr=1e-6)
    f.update(column)
    assert all(url.encode() in f for url in URLS)
    assert f.remove_many(column).all()
    mask = stored().contains_many(column)
    assert mask.tolist() == [True, False, True, False]
    kept = column[mask] if make is pandas_column else column.filter(mask)
    assert list(kept) == [url for url, yes in zip(URLS, mask, strict=True) if yes]
    with Store(tmp_path, sync="none") as store:
        store.update(zip(column[:3], map(str.encode, column[:3]), strict=True))
        assert make(store.get_many(column[:3])).to_list() == [url.encode() for url in URLS[:3]]
        assert store.contains_many(column[:3]).all()


def test_pandas_kinds_of_text_are_the_same_keys():
    for more in ({"dtype": object}, {"dtype": "string"}, {"index": [9, 8, 7, 6]}):
        assert stored().contains_many(pandas_column(URLS, **more)).tolist() == [True, False, True, False]
    assert stored().contains_many(pandas_column(URLS)[1:]).tolist() == [False, True, False]


@pytest.mark.parametrize("make", [pandas_column, polars_column])
def test_other_columns_are_refused_with_what_to_do(make):
    f = stored()
    with pytest.raises(TypeError, match=r"column\.to_numpy"):
        f.contains_many(make([1, 2, 3]))
    f.update(make([1, 2, 3]).to_numpy())
    assert f.contains_many(np.arange(5)).tolist() == [False, True, True, True, False]
    with pytest.raises(ValueError, match="key number 1 is null"):
        f.contains_many(make(["a", None]))


def test_categories_are_refused_with_what_to_do():
    with pytest.raises(TypeError, match="astype"):
        stored().contains_many(pandas_column(URLS, dtype="category"))
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=r"cast\(polars\.String\)"):
        stored().contains_many(polars_column(URLS).cast(polars.Categorical))
