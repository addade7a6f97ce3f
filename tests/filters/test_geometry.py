"""The arithmetic of rates and sizes against exact enumeration, exact rationals and simulation."""

import itertools
import math
import random
from fractions import Fraction

import pytest

from dlbf import geometry


def exact_all_hit(n_balls: int, n_cells: int, n_hashes: int) -> Fraction:
    """The published sum, m^-(k(n+1)) * sum_i i^k i! C(m, i) S(kn, i), in exact integers."""
    ways = [1] + [0] * n_cells  # ways[i]: sequences of balls that hit exactly i given-size sets = C(m, i) i! S(t, i)
    for _ in range(n_balls):
        ways = [0] + [ways[i] * i + ways[i - 1] * (n_cells - i + 1) for i in range(1, n_cells + 1)]
    total = sum(count * i**n_hashes for i, count in enumerate(ways))
    return Fraction(total, n_cells ** (n_balls + n_hashes))


def test_exact_sum_equals_enumeration():
    # The reference itself, by trying every outcome: 4 balls and 2 probes into 3 cells.
    hits = sum(set(outcome[4:]) <= set(outcome[:4]) for outcome in itertools.product(range(3), repeat=6))
    assert exact_all_hit(4, 3, 2) == Fraction(hits, 3**6)


@pytest.mark.parametrize(
    ("n_keys", "n_cells", "n_hashes"),
    [(1, 1, 1), (1, 2, 3), (3, 8, 2), (10, 100, 5), (22, 216, 5), (5, 64, 7), (40, 512, 9), (100, 1000, 7), (2, 5, 8)],
)
def test_cell_fpr_equals_exact_rational(n_keys, n_cells, n_hashes):
    exact = float(exact_all_hit(n_keys * n_hashes, n_cells, n_hashes))
    assert geometry.cell_fpr(n_keys, n_cells, n_hashes) == pytest.approx(exact, rel=1e-6, abs=1e-13)


def test_cell_fpr_is_above_the_textbook_for_small_filters():
    textbook = (1 - (1 - 1 / 216) ** (22 * 5)) ** 5
    assert geometry.cell_fpr(22, 216, 5) > 1.01 * textbook


def test_cell_fpr_many_cells_joins_the_textbook_without_a_step():
    n_cells = 1 << 24
    exact = geometry.cell_fpr(1_750_000, n_cells, 7)
    textbook = geometry.cell_fpr(1_750_000, n_cells + 64, 7)
    assert exact == pytest.approx(textbook, rel=1e-4)


def test_cell_fpr_edges():
    assert geometry.cell_fpr(0, 100, 3) == 0
    assert geometry.cell_fpr(10**6, 100, 3) == pytest.approx(1)
    assert geometry.cell_fpr(5, 1, 3) == 1
    assert 0 <= geometry.cell_fpr(1, 10**6, 20) < 1e-10
    assert 0 <= geometry.cell_fpr(1, 100, 64) <= 1
    assert geometry.blocked_fpr(0, 512, 3, 512) == 0


def test_blocked_fpr_equals_simulation():
    # 64 blocks of 64 cells, 4 probes, 640 keys: simulate 300 filters, 400 queries each; the standard error of a
    # share near 0.06 over 120,000 queries (filters differ little) is below 0.001: five of them.
    rng = random.Random(5)
    hits = 0
    for _ in range(300):
        cells = set()
        for _ in range(640):
            block = rng.randrange(64)
            cells.update((block, rng.randrange(64)) for _ in range(4))
        for _ in range(400):
            block = rng.randrange(64)
            hits += all((block, rng.randrange(64)) in cells for _ in range(4))
    assert geometry.blocked_fpr(640, 64 * 64, 4, 64) == pytest.approx(hits / 120_000, abs=0.005)
    assert geometry.blocked_fpr(640, 64 * 64, 4, 64) > geometry.cell_fpr(640, 64 * 64, 4)


FPRS = [0.9, 0.5, 0.3, 0.1, 0.05, 0.03, 0.01, 0.003, 0.001, 1e-4, 1e-6]
COUNTS = [1, 2, 3, 10, 77, 1000, 54_321, 10**6, 10**9]


@pytest.mark.parametrize("block_cells", [0, 512, 128])
@pytest.mark.parametrize("fpr", FPRS)
def test_cell_geometry_meets_its_target_and_not_by_much(fpr, block_cells):
    for n_keys in COUNTS if not block_cells else COUNTS[:-1]:
        n_cells, n_hashes, block = geometry.cell_geometry(n_keys, fpr, block_cells)
        assert block == block_cells
        assert n_cells % (block_cells or 64) == 0
        assert geometry.cell_fpr(n_keys, n_cells, n_hashes, block) <= fpr
        if n_keys >= 1000 and not block_cells and fpr <= 0.1:
            ideal = -n_keys * math.log(fpr) / math.log(2) ** 2
            # A whole number of hashes costs up to 7 % at 10 %, less below.
            assert ideal * 0.999 <= n_cells <= ideal * 1.08 + 64


def test_cell_geometry_is_monotonic():
    for n_keys, fpr in itertools.product([10, 1000, 10**5], FPRS):
        cells = geometry.cell_geometry(n_keys, fpr).n_cells
        assert geometry.cell_geometry(2 * n_keys, fpr).n_cells >= cells
        assert geometry.cell_geometry(n_keys, fpr / 2).n_cells >= cells
    for n_keys in range(1, 200, 7):
        assert geometry.cell_fpr(n_keys, 2048, 5) < geometry.cell_fpr(n_keys + 1, 2048, 5)
        assert geometry.cell_fpr(n_keys, 2048, 5) > geometry.cell_fpr(n_keys, 2112, 5)


@pytest.mark.parametrize("fpr", FPRS)
def test_cuckoo_geometry_meets_its_target(fpr):
    for n_keys in COUNTS:
        shape = geometry.cuckoo_geometry(n_keys, fpr)
        assert geometry.cuckoo_fpr(n_keys, *shape) <= fpr
        assert 4 * shape.n_buckets >= n_keys / 0.96
        bits = geometry.cuckoo_bucket_bits(*shape[1:]) * shape.n_buckets
        assert bits >= n_keys * math.log2(1 / fpr)  # no filter is smaller than that


def test_cuckoo_bucket_code_counts_multisets():
    for n_prefixes in range(2, geometry.MAX_PREFIXES + 1):
        n = sum(1 for _ in itertools.combinations_with_replacement(range(n_prefixes), 4))
        assert 2 ** geometry.bucket_code_bits(n_prefixes) >= n > 2 ** (geometry.bucket_code_bits(n_prefixes) - 1)


def test_cuckoo_fpr_by_simulation_of_slots():
    # A query meets the occupied of eight slots, each one of V values: 80,000 draws, standard error 0.0011.
    rng = random.Random(6)
    values, load = 31, 0.9
    hits = sum(any(rng.random() < load and rng.randrange(values) == 0 for _ in range(8)) for _ in range(80_000))
    n_buckets = 1000
    assert geometry.cuckoo_fpr(round(4 * n_buckets * load), n_buckets, 16, 1) == pytest.approx(hits / 80_000, abs=0.006)


@pytest.mark.parametrize("counter_bits", [1, 2, 4, 8])
@pytest.mark.parametrize("fpr", FPRS)
def test_dleft_geometry_meets_its_target(fpr, counter_bits):
    for n_keys in COUNTS:
        shape = geometry.dleft_geometry(n_keys, fpr, counter_bits)
        assert shape.counter_bits == counter_bits
        assert shape.remainder_bits + counter_bits <= 32
        assert geometry.dleft_fpr(n_keys, shape) <= fpr
        assert shape.n_tables * shape.n_buckets * shape.bucket_cells >= n_keys / 0.8


def test_rates_out_of_reach_say_so():
    with pytest.raises(ValueError, match="a cuckoo filter cannot reach"):
        geometry.cuckoo_geometry(1000, 1e-12)
    with pytest.raises(ValueError, match="a d-left filter with counters of 2 bits cannot reach"):
        geometry.dleft_geometry(1000, 1e-12)
