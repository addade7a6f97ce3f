"""Compiled models: features and scores against plain integers, storage, errors."""

import copy
import pickle
import random
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models_reference as reference
from support.models_golden import GOLDEN, golden_hash, golden_keys, golden_models

import dlbf
from dlbf import format, models
from dlbf.kernels.features import LEXICAL_NAMES, NUMERIC_NAMES, ngram_rows, pack_keys, value_rows
from dlbf.kernels.scoring import Scorer, use_simd
from dlbf.models.features import PackedKeys

URLISH = st.text(alphabet="abcXYZ019./-_%@?", max_size=300).map(str.encode)
KEYS = st.one_of(st.binary(max_size=300), URLISH, st.integers(0, 2**70).map(lambda i: str(i).encode()))
FORMS = golden_models()


def rows_of(keys):
    data, offsets = pack_keys(keys)
    return data, offsets, np.arange(len(keys), dtype=np.int64)


@pytest.fixture
def all_paths():
    """Run with AVX-512, with AVX2 and with neither, as far as the processor has them, and leave the default behind."""
    yield range(use_simd(True), -1, -1)
    use_simd(True)


# features


@settings(max_examples=300, deadline=None)
@given(KEYS, st.sampled_from((2, 3, 4)), st.sampled_from((0, 47, 64, 255, 256)), st.integers(4, 24))
def test_ngram_rows_any_key_equal_reference(key, order, split, log2_weights):
    indices, indptr = ngram_rows(*rows_of([key]), order, split, log2_weights)
    assert indptr.tolist() == [0, len(indices)]
    assert indices.tolist() == reference.ngram_indices(key, order, split, log2_weights)


@settings(max_examples=300, deadline=None)
@given(KEYS, st.sampled_from((47, 64, 256)))
def test_value_rows_any_key_equal_reference(key, split):
    packed = rows_of([key])
    assert value_rows(*packed, "lexical", split)[0].tolist() == reference.lexical_values(key, split)
    assert value_rows(*packed, "numeric", split)[0].tolist() == reference.numeric_values(key)


@pytest.mark.parametrize("split", [0, 47, 255, 256])
def test_runs_hosts_and_strange_bytes_of_every_length_equal_reference(split):
    keys = [b"7" * n for n in range(1, 66)] + [b"x" * n for n in range(1, 66)]
    keys += [b"9" * n + b"/" + b"a" * (63 - n) for n in range(64)] + [b"-" * n + b"Q" * (64 - n) for n in range(65)]
    keys += [bytes([byte]) * n for byte in range(256) for n in (1, 7, 64)]
    hosts = (b"tinyurl.com", b"t.co", b"bit.ly", b"rebrand.ly", b"10.20.30.40")
    keys += [host[:n] + b"/x.y" for host in hosts for n in range(13)]
    packed = pack_keys(keys)
    found = value_rows(*packed, np.arange(len(keys)), "lexical", split)
    assert found.tolist() == [reference.lexical_values(key, split) for key in keys]


def test_lexical_has_the_features_of_the_literature():
    assert len(LEXICAL_NAMES) >= 20
    assert len(set(LEXICAL_NAMES)) == len(LEXICAL_NAMES) == len(NUMERIC_NAMES) == 28
    row = models.Features("lexical").transform([b"bit.ly/A-b_c%20/x1234.php"])[0]
    named = dict(zip(LEXICAL_NAMES, row.tolist(), strict=True))
    assert named["host_is_shortener"] == 1
    assert named["host_is_address"] == 0
    assert (named["slashes"], named["percents"], named["extension_length"]) == (2, 1, 3)
    assert named["longest_digit_run"] == 4
    assert named["last_segment_length"] == len(b"x1234.php")


def test_entropy_of_even_bytes_is_exact():
    row = models.Features("lexical").transform([bytes(range(16)) * 4, b"aaaa"])
    assert row[:, 27].tolist() == [64, 0]  # 4 bits and 0 bits, in sixteenths


def test_pack_keys_every_input_is_read():
    for batch in (["a", b"bc"], ("a", b"bc"), iter(["a", b"bc"]), np.array([b"a", b"bc"]), [memoryview(b"a"), b"bc"]):
        data, offsets = pack_keys(batch)
        assert (bytes(data), offsets.tolist()) == (b"abc", [0, 1, 3])


def test_transform_names_every_column_once():
    keys = [b"aaaaaaaaaaaaaaaa", b"", b"abababababab/abab"]
    view = models.Features("ngram", 64)
    matrix = view.transform(keys)
    assert matrix.has_canonical_format
    rows = view.rows(PackedKeys(keys), np.arange(3))
    assert not rows.has_canonical_format
    assert np.array_equal(matrix.toarray(), rows.toarray())


def test_rows_outside_the_batch_are_refused():
    data, offsets, _ = rows_of([b"a"])
    with pytest.raises(IndexError, match="row 1 is not one of the 1"):
        ngram_rows(data, offsets, np.array([1]), 3, 47, 13)
    with pytest.raises(ValueError, match="offsets"):
        value_rows(data, offsets + 1, np.array([0]), "lexical")
    with pytest.raises(ValueError, match="must not fall"):
        value_rows(data, np.array([0, 2, 1]), np.array([0]), "lexical")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"view": "bag"}, "view must be one of"),
        ({"n_weights": 1000}, "power of two"),
        ({"order": 5}, "order must be"),
        ({"split": b"ab"}, "one byte"),
        ({"n_weights": 8}, "log2_weights"),
    ],
)
def test_features_wrong_arguments_say_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.Features(**arguments)


# scores


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_score_every_form_equals_reference(number, all_paths):
    params, payload = FORMS[number]
    keys = golden_keys(1500)
    slow = reference.Reference(params, payload)
    expected = [slow.score(key) for key in keys]
    for simd in all_paths:
        use_simd(simd)
        scorer = Scorer(params, payload)
        assert scorer.score_many(keys).tolist() == expected
        assert [scorer.score(key) for key in keys[:200]] == expected[:200]


@settings(max_examples=200, deadline=None)
@given(st.lists(KEYS, max_size=4), st.integers(0, len(FORMS) - 1))
def test_score_any_key_equals_reference(keys, number):
    params, payload = FORMS[number]
    scorer = Scorer(params, payload)
    assert scorer.score_many(keys).tolist() == [reference.score(params, payload, key) for key in keys]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 280), st.integers(0, 280), st.sampled_from((2, 3, 4)), st.integers(1, 2))
def test_score_with_and_without_simd_is_equal(n, slash, order, form):
    # Every length and place of the split, at the end of a buffer: the vectors must not read or count past it.
    key = bytearray(b"a.B-7_z" * 41)[:n]
    if slash < n:
        key[slash] = 47
    params = (form, 1, 1, order, 47, 12, 0, 0, 0, 0)
    payload = bytes(range(256)) * (16 if form == 1 else 8)
    expected = reference.score(params, payload, bytes(key))
    try:
        for way in range(use_simd(True), -1, -1):
            use_simd(way)
            scorer = Scorer(params, payload)
            assert scorer.score(bytes(key)) == expected
            assert scorer.score_many([bytes(key), bytes(key[:40])])[0] == expected
    finally:
        use_simd(True)


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("split", [46, 47, 255, 256])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_table_score_of_every_short_length_is_equal_on_all_paths(form, split, order, all_paths):
    rng = random.Random(order)
    keys = [bytes(rng.choices(b"aeZ7@[.-/_0\x00\x02\x03\x7f\xad\xff", k=n)) for n in range(70) for _ in range(8)]
    params = (form, 1, 1, order, split, 14, 2**64 - 5, 0, 0, 0)
    payload = rng.randbytes(1 << (14 if form == 1 else 13))
    scores = []
    for way in all_paths:
        use_simd(way)
        scorer = Scorer(params, payload)
        scores.append(scorer.score_many(keys).tolist())
        assert scores[-1] == [scorer.score(key) for key in keys]
    assert all(some == scores[0] for some in scores)


def test_table_of_four_bits_has_bytes_in_memory_only_if_small(all_paths):
    for way in all_paths:
        use_simd(way)
        small, large = (Scorer((2, 1, 1, 3, 47, log2, 0, 0, 0, 0), bytes(1 << (log2 - 1))) for log2 in (14, 15))
        assert (small.working_nbytes, large.working_nbytes) == ((1 << 14) if way == 2 else 0, 0)
        assert small.payload == bytes(1 << 13)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 70).flatmap(
        lambda n: st.one_of(
            st.binary(min_size=n, max_size=n),
            st.lists(st.sampled_from(b"aeZ7.-/_@%?\x00 \x7f\xe9{"), min_size=n, max_size=n).map(bytes),
            st.lists(st.sampled_from(b"a0/"), min_size=n, max_size=n).map(bytes),
            st.sampled_from((b"t.co", b"bit.ly", b"s.ic", b"tinyurl.com")).map(lambda host: host + b"/" + b"x" * n),
        )
    ),
    st.sampled_from((0, 47, 255, 256)),
)
def test_lexical_values_with_and_without_simd_are_equal(key, split):
    # One model for each value alone, so that a difference in any shows; the last is all of them at once.
    terms = [(value, 0, 0, 1 + 257 * value) for value in range(28)]
    for some in [[term] for term in terms] + [terms]:
        payload = b"".join(struct.pack("<HHii", *term) for term in some)
        params = (3, 2, 1, 3, split, 0, 0, len(some), 0, 0)
        try:
            scores = set()
            for way in range(use_simd(True), -1, -1):
                use_simd(way)
                scores.add(Scorer(params, payload).score(key))
        finally:
            use_simd(True)
        assert len(scores) == 1


def test_scores_are_pinned(all_paths):
    # If this fails, stored filters route keys elsewhere: never change the constant, make a new view.
    for simd in all_paths:
        use_simd(simd)
        assert golden_hash() == GOLDEN


def test_score_payload_at_any_alignment_is_equal():
    keys = golden_keys(300)
    for params, payload in FORMS:
        expected = Scorer(params, payload).score_many(keys)
        for offset in (1, 2, 3):
            moved = memoryview(b"\xff" * offset + payload)[offset:]
            assert np.array_equal(Scorer(params, moved).score_many(keys), expected)


def test_score_takes_str_and_buffers_like_bytes():
    scorer = Scorer(*FORMS[0])
    assert scorer.score("ü/x") == scorer.score("ü/x".encode()) == scorer.score(bytearray("ü/x".encode()))
    with pytest.raises(TypeError, match="must be bytes, str"):
        scorer.score(7)


def test_score_many_empty_batch_is_empty():
    scores = Scorer(*FORMS[0]).score_many([])
    assert scores.dtype == np.int32
    assert scores.shape == (0,)


def test_score_many_releases_the_gil():
    scorer = Scorer(*FORMS[0])
    keys = golden_keys(2000) * 40
    expected = scorer.score_many(keys)
    results = [None] * 4

    def work(place):
        results[place] = scorer.score_many(keys)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(result, expected) for result in results)


# bytes


def labelled(number):
    params, payload = FORMS[number]
    label = {0: 0, 1: 1, 2: 4, 3: 3, 4: 2}[params[0]]
    return models.Model((*params, label), payload)


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_to_bytes_every_form_comes_back(number):
    model = labelled(number)
    again = models.from_bytes(model.to_bytes())
    assert again == model
    assert hash(again) == hash(model)
    assert (again.kind, again.form, again.nbytes, again.bias) == (model.kind, model.form, model.nbytes, model.bias)
    keys = golden_keys(50)
    assert np.array_equal(again.score_many(keys), model.score_many(keys))
    assert pickle.loads(pickle.dumps(model)) == copy.deepcopy(model) == model
    assert again.pickle is None
    assert models.from_bytes(bytearray(model.to_bytes())) == model


def test_from_bytes_every_bit_flip_and_cut_is_refused():
    data = models.Model((1, 1, 1, 3, 47, 4, 0, 0, 0, 0, 1), bytes(16)).to_bytes()
    for n in range(len(data)):
        with pytest.raises(dlbf.FormatError):
            models.from_bytes(data[:n])
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(dlbf.FormatError):
            models.from_bytes(bytes(changed))


def test_from_bytes_other_object_is_named():
    data = format.pack(format.Header(dlbf.BloomFilter.KIND, 0), b"")
    with pytest.raises(dlbf.FormatError, match="expected a model, found a BloomFilter"):
        models.from_bytes(data)


TREE = (4, 2, 1, 0, 47, 0, 0, 1, 0, 0)
LEAVES = b"\0\0\0\0\xff\0" * 2


@pytest.mark.parametrize(
    ("params", "payload"),
    [
        ((5, 1, 1, 3, 47, 4, 0, 0, 0, 0), bytes(16)),  # unknown kind
        ((1, 9, 1, 3, 47, 4, 0, 0, 0, 0), bytes(16)),  # unknown view
        ((1, 1, 2, 3, 47, 4, 0, 0, 0, 0), bytes(16)),  # newer view
        ((1, 1, 1, 5, 47, 4, 0, 0, 0, 0), bytes(16)),  # order
        ((1, 1, 1, 3, 300, 4, 0, 0, 0, 0), bytes(16)),  # split byte
        ((1, 1, 1, 3, 47, 40, 0, 0, 0, 0), bytes(16)),  # size
        ((1, 1, 1, 3, 47, 4, 0, 0, 0, 0), bytes(15)),  # cut
        ((1, 1, 1, 3, 47, 4, 2**40, 0, 0, 0), bytes(16)),  # bias
        ((1, 2, 1, 3, 47, 4, 0, 0, 0, 0), bytes(16)),  # a table without runs
        ((0, 0, 1, 0, 256, 0, 0, 0, 0, 0), b"x"),  # none, with a payload
        ((3, 2, 1, 0, 47, 0, 0, 1, 0, 0), bytes(11)),  # cut term
        ((3, 2, 1, 0, 47, 0, 0, 1, 0, 0), b"\x1c" + bytes(11)),  # value 28 of 28
        ((3, 2, 1, 0, 47, 0, 0, 1, 63, 0), bytes(12)),  # too many fraction bits
        ((3, 2, 1, 0, 47, 0, 0, 1, 0, 0), bytes(4) + b"\xff\xff\xff\x7f" + bytes(4)),  # factor overflows
        ((3, 2, 1, 0, 47, 0, 0, 2**63, 0, 0), bytes(12)),  # count
        (TREE, bytes(3)),  # no room for the first tree
        (TREE, b"\1\0\0\0" + LEAVES),  # begins elsewhere
        (TREE, bytes(4) + b"\0\0\0\0\0\0" + LEAVES),  # a loop
        (TREE, bytes(4) + b"\0\0\2\0\0\0" + LEAVES),  # right child outside
        (TREE, bytes(4) + b"\0\0\1\0\x1c\0" + LEAVES),  # value 28 of 28
        (TREE, bytes(4) + b"\0\0\1\0\0\1" + LEAVES),  # reserved byte
    ],
)
def test_scorer_malformed_model_is_refused(params, payload):
    with pytest.raises(dlbf.FormatError):
        Scorer(params, payload)


def test_model_reserved_parameters_are_refused():
    with pytest.raises(dlbf.FormatError, match="reserved"):
        models.Model((*FORMS[-1][0], 0, 1), b"")
    with pytest.raises(dlbf.FormatError, match="unknown kind number"):
        models.Model((*FORMS[-1][0], 9), b"")


def test_import_open_and_score_never_import_sklearn():
    data = labelled(0).to_bytes()
    code = (
        "import sys, dlbf.models as m\n"
        f"model = m.from_bytes({data!r})\n"
        "model.score(b'a'); model.score_many([b'a', b'b'])\n"
        "bad = [n for n in sys.modules if n.split('.')[0] in ('sklearn', 'scipy', 'joblib')]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
