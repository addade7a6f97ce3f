"""Trees and quadratic forms as they are laid out in memory: every shape, edge and vector against plain integers."""

import itertools
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models_reference as reference
from support.models_golden import golden_keys

import dlbf
from dlbf.kernels.scoring import Scorer, use_simd

LEXICAL, NUMERIC = 2, 3
WIDE = [b"", b"a", b"/", b"\xff" * 8, b"\x00" * 8, bytes(range(16)), b"x" * 64, b"x" * 65, b"x" * 70_000, b"ab/" * 100]
KEYS = golden_keys(400) + WIDE


@pytest.fixture
def all_ways():
    """With AVX-512, with AVX2 and with neither, as far as the processor has them; leaves the default behind."""
    yield range(use_simd(True), -1, -1)
    use_simd(True)


def leaf(value):
    return struct.pack("<hHBB", value, 0, 255, 0)


def grow(rng, n_leaves, values, thresholds):
    """A random tree of that many leaves, in the stored layout."""
    nodes = [None]
    open_places = [0]
    for _ in range(n_leaves - 1):
        # Children must come after their parent, and two of them are neighbours: open leaves are split in any order.
        place = open_places.pop(rng.randrange(len(open_places)))
        nodes[place] = struct.pack("<HHBB", rng.choice(thresholds), len(nodes), rng.choice(values), 0)
        open_places += [len(nodes), len(nodes) + 1]
        nodes += [None, None]
    return b"".join(node or leaf(rng.randrange(-(2**15), 2**15)) for node in nodes)


def forest(trees, view=LEXICAL, bias=0):
    """The parameters and the payload of some trees."""
    firsts = [0, *itertools.accumulate(len(tree) // 6 for tree in trees)][:-1]
    payload = b"".join(struct.pack("<I", first) for first in firsts) + b"".join(trees)
    return (4, view, 1, 0, 47, 0, bias % 2**64, len(trees), 0, 0), payload


def agrees(params, payload, ways, keys=KEYS):
    slow = reference.Reference(params, payload)
    expected = [slow.score(key) for key in keys]
    # A batch is scored 64 keys at a time, and what is left over one by one if it is little.
    times = 1 + 100 // len(keys)
    for way in ways:
        use_simd(way)
        scorer = Scorer(params, payload)
        assert scorer.score_many(keys * times).tolist() == expected * times
        assert [scorer.score(key) for key in keys] == expected
    return True


# One leaf, and around the masks of 16, 32 and 64 bits; from 65 leaves on trees are walked.
@pytest.mark.parametrize("n_leaves", [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200])
@pytest.mark.parametrize("view", [LEXICAL, NUMERIC])
def test_trees_of_every_number_of_leaves_equal_reference(n_leaves, view, all_ways):
    rng = random.Random(n_leaves)
    thresholds = range(80) if view == LEXICAL else range(0, 65536, 97)
    trees = [grow(rng, n_leaves, range(28), thresholds) for _ in range(7)]
    agrees(*forest(trees, view), all_ways)


# 32, 48 and 64 trees are where half trees get other lanes; up to 256 are summed for 64 keys at once.
@pytest.mark.parametrize("n_trees", [1, 4, 5, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 200])
def test_trees_of_every_number_equal_reference(n_trees, all_ways):
    rng = random.Random(n_trees)
    trees = [grow(rng, rng.randrange(1, 17), range(28), range(60)) for _ in range(n_trees)]
    agrees(*forest(trees, bias=-5), all_ways, KEYS[:150] + WIDE)


@pytest.mark.parametrize(("n_trees", "n_leaves"), [(255, 5), (256, 5), (257, 4), (64, 16), (73, 15), (74, 15)])
def test_trees_around_the_limits_of_columns_equal_reference(n_trees, n_leaves, all_ways):
    # 256 trees and 1,024 tests are the most that are summed for 64 keys at once.  The largest sums there are come from
    # leaves at one end of 16 bits.
    rng = random.Random(n_trees)
    trees = [grow(rng, n_leaves, range(28), range(60)) for _ in range(n_trees)]
    agrees(*forest(trees), all_ways, KEYS[:150] + WIDE)
    for extreme in (-(2**15), 2**15 - 1):
        agrees(*forest([leaf(extreme)] * n_trees, bias=7), all_ways, KEYS[:30])


@pytest.mark.parametrize("n_keys", [1, 23, 24, 25, 63, 64, 65, 87, 88, 89, 128, 2048, 2050, 2100])
def test_batches_of_every_size_equal_one_by_one(n_keys):
    rng = random.Random(n_keys)
    scorer = Scorer(*forest([grow(rng, 16, range(28), range(60)) for _ in range(43)], bias=3))
    keys = list(itertools.islice(itertools.cycle(KEYS), n_keys))
    assert scorer.score_many(keys).tolist() == [scorer.score(key) for key in keys]


def test_trees_like_a_list_equal_reference(all_ways):
    # Each test has a leaf on one side, always the left, always the right, or by turns; these are the deepest trees.
    def chain(n_leaves, side):
        nodes = []
        for i in range(n_leaves - 1):
            # Inner nodes are 0, then one of each pair of children.
            place = 0 if i == 0 else 2 * i - 1 + side(i - 1)
            nodes.append((place, struct.pack("<HHBB", 3 * i % 50, 2 * i + 1, i % 28, 0)))
        filled = dict(nodes)
        return b"".join(filled.get(place) or leaf(100 * place - 700) for place in range(2 * n_leaves - 1))

    for n_leaves in range(2, 17):
        trees = [chain(n_leaves, side) for side in (lambda i: 0, lambda i: 1, lambda i: i % 2, lambda i: i // 2 % 2)]
        agrees(*forest(trees), all_ways, KEYS[:60] + WIDE)


# A byte's end, the end of the rows that are looked up, and that of a value.
@pytest.mark.parametrize("threshold", [0, 1, 253, 254, 255, 256, 510, 511, 512, 513, 65534, 65535])
def test_trees_with_thresholds_at_every_edge_equal_reference(threshold, all_ways):
    rng = random.Random(threshold)
    lengths = {max(0, min(70_000, threshold + off)) for off in (-1, 0, 1, 2)}
    keys = [b"x" * length for length in lengths]
    keys += [struct.pack(">H", max(0, min(65535, threshold + off))) * 4 for off in (-1, 0, 1)]
    for view, value in ((LEXICAL, 0), (NUMERIC, 0), (NUMERIC, 13)):
        one = struct.pack("<HHBB", threshold, 1, value, 0) + leaf(-7) + leaf(11)
        trees = [one, leaf(100), one, grow(rng, 9, [value], [0, threshold, 65535])]
        agrees(*forest(trees[:3], view), all_ways, keys)
        agrees(*forest(trees, view), all_ways, keys)
        # And it decides: a value at the threshold goes left, one beyond it right.
        if view == LEXICAL and threshold < 65535:
            left, right = Scorer(*forest([one])).score_many([b"x" * threshold, b"x" * (threshold + 1)])
            assert (left, right) == (-7, 11)


def test_trees_that_are_mixed_equal_reference(all_ways):
    # Few and many leaves, small and large thresholds, all in one: masks are as wide as the largest tree wants.
    rng = random.Random(3)
    trees = [grow(rng, n, range(28), [rng.randrange(65536) for _ in range(40)]) for n in (1, 64, 2, 16, 1, 30) * 8]
    for view in (LEXICAL, NUMERIC):
        agrees(*forest(trees, view), all_ways, KEYS[:200] + WIDE)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(1, 70), st.sampled_from((20, 255, 600, 65536)))
def test_any_trees_with_and_without_simd_are_equal(seed, n_trees, most_leaves, top):
    rng = random.Random(seed)
    thresholds = [rng.randrange(top) for _ in range(30)]
    trees = [grow(rng, rng.randrange(1, most_leaves + 1), range(28), thresholds) for _ in range(n_trees)]
    try:
        agrees(*forest(trees, rng.choice((LEXICAL, NUMERIC))), range(use_simd(True), -1, -1), KEYS[::40] + WIDE)
    finally:
        use_simd(True)


def test_nodes_with_two_parents_are_scored_as_they_stand(all_ways):
    # No compiler writes them, but nothing forbids them: 2**n paths through n nodes must not take 2**n steps to open.
    chain = b"".join(struct.pack("<HHBB", 3 * i, i + 1, i % 28, 0) for i in range(60)) + leaf(5) + leaf(-5)
    agrees(*forest([chain]), all_ways, KEYS[:100])
    diamond = struct.pack("<HHBB", 2, 1, 0, 0) + struct.pack("<HHBB", 4, 3, 1, 0) * 2 + leaf(1) + leaf(2)
    agrees(*forest([diamond] * 5), all_ways, KEYS[:100])
    # Unreachable nodes are in no walk.
    agrees(*forest([leaf(9) + leaf(1), diamond]), all_ways, KEYS[:100])


def test_no_trees_at_all_score_the_bias(all_ways):
    agrees(*forest([], bias=12), all_ways, KEYS[:20])


def test_hostile_trees_are_refused_or_scored(all_ways):
    rng = random.Random(11)
    params, payload = forest([grow(rng, 20, range(28), range(90)) for _ in range(6)])
    n_scored = 0
    for _ in range(600):
        changed = bytearray(payload)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            Scorer(params, bytes(changed))
        except dlbf.FormatError:
            continue
        agrees(params, bytes(changed), all_ways, KEYS[:12])
        n_scored += 1
    assert n_scored > 50


def test_working_bytes_are_told_bounded_and_freed(all_ways):
    rng = random.Random(5)
    small = forest([grow(rng, 16, range(28), range(60)) for _ in range(43)])
    huge = forest([grow(rng, 64, range(28), range(0, 65536, 3)) for _ in range(300)])
    for way in all_ways:
        use_simd(way)
        assert 0 < Scorer(*small).working_nbytes < 64 << 10
        assert Scorer(*huge).working_nbytes == 0  # walked: the rows would not fit
        assert Scorer((0, 0, 1, 0, 256, 0, 0, 0, 0, 0), b"").working_nbytes == 0
    # What 10,000 models were given is given back.
    Scorer(*small)
    tracemalloc.start()
    try:
        for _ in range(10_000):
            Scorer(*small)
        assert tracemalloc.get_traced_memory()[0] < 64 << 10
    finally:
        tracemalloc.stop()


def test_quadratic_of_every_size_of_value_equals_reference(all_ways):
    # 46,340 is the largest whose square fits 31 bits; a value is the length, or the word that a key begins with.
    keys = [b"x" * n for n in (0, 1, 64, 65, 248, 249, 46_339, 46_340, 46_341, 65_535, 70_000)]
    keys += [struct.pack(">H", x) * 8 for x in (0, 1, 46_340, 46_341, 65_535)] + KEYS[:100]
    for a, b in itertools.product((-(2**24), -1, 0, 1, 2**24), (-(2**31), -1, 1, 2**31 - 1)):
        payload = b"".join(struct.pack("<HHii", value, 0, a, b) for value in range(28))
        for view, shift in ((LEXICAL, 0), (NUMERIC, 31), (NUMERIC, 62)):
            agrees((3, view, 1, 0, 47, 0, 9, 28, shift, 0), payload, all_ways, keys)


def test_quadratic_with_two_terms_of_one_value_equals_reference(all_ways):
    payload = struct.pack("<HHii", 0, 0, 2**24, 2**31 - 1) * 2 + struct.pack("<HHii", 3, 0, -5, 7)
    agrees((3, LEXICAL, 1, 0, 47, 0, 0, 3, 4, 0), payload, all_ways)
    agrees((3, LEXICAL, 1, 0, 47, 0, 0, 0, 4, 0), b"", all_ways)
