"""Keys made here: one distribution a population, whatever the draw and the place in it."""

import hashlib
import itertools
import re
import subprocess
import sys
from collections import Counter

import pytest

from dlbf.datasets import DOWNLOADS, LENGTHS, listed_urls, ordinary_urls

N = 8000
DRAWS = (listed_urls, ordinary_urls)


def differ(first, second):
    """Largest difference between two distribution functions (Kolmogorov and Smirnov)."""
    counts = Counter(first), Counter(second)
    n = [sum(each.values()) for each in counts]
    sums = [0.0, 0.0]
    worst = 0.0
    for value in sorted(counts[0] | counts[1]):
        sums = [total + each[value] / size for total, each, size in zip(sums, counts, n, strict=True)]
        worst = max(worst, abs(sums[0] - sums[1]))
    return worst


# Two samples of N of one distribution differ by more than this once in a million (1.98 sqrt(2 / N)).
ALIKE = 1.98 * (2 / N) ** 0.5


def test_no_key_occurs_twice_in_whatever_draws():
    drawn = [key for draw in DRAWS for seed in (0, 1, 2, 2**31 - 1) for key in draw(2000, seed)]
    assert len(set(drawn)) == len(drawn) == 16_000


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_is_the_beginning_of_a_longer_one_and_made_while_it_is_read(draw):
    assert list(draw(100, seed=5)) == list(itertools.islice(draw(2**32, seed=5), 100))
    assert list(draw(0)) == []


@pytest.mark.parametrize("draw", DRAWS)
def test_tails_have_one_width(draw):
    for key in draw(2000):
        assert re.fullmatch(rb"[a-z0-9.-]+/[a-z0-9/-]+/[0-9a-f]{16}(\.[a-z]+)?", key)


@pytest.mark.parametrize("draw", DRAWS)
def test_lengths_tell_neither_the_draw_nor_the_place_in_it(draw):
    keys = list(draw(3 * N))
    beginning, end = keys[:N], keys[-N:]
    assert differ(map(len, beginning), map(len, end)) < ALIKE
    assert differ(map(len, beginning), map(len, draw(N, seed=7))) < ALIKE
    assert {len(key) for key in keys} == set(LENGTHS)


def test_lengths_do_not_tell_the_populations_apart():
    assert differ(map(len, listed_urls(N)), map(len, ordinary_urls(N))) < ALIKE


@pytest.mark.parametrize("draw", DRAWS)
def test_letters_are_alike_in_every_draw_and_everywhere_in_it(draw):
    keys = list(draw(3 * N))
    for features in (
        lambda key: key[0],
        lambda key: sum(byte < 58 for byte in key),
        lambda key: key.count(b"-"),
        lambda key: key[-4:] in {b"." + end.encode() for end in DOWNLOADS},
    ):
        first = list(map(features, keys[:N]))
        assert differ(first, map(features, keys[-N:])) < ALIKE
        assert differ(first, map(features, draw(N, seed=7))) < ALIKE


def test_words_tell_the_populations_apart():
    assert differ((key.count(b"-") for key in listed_urls(N)), (key.count(b"-") for key in ordinary_urls(N))) > 0.7


@pytest.mark.parametrize("arguments", [(-1, 0), (2**32 + 1, 0), (1, -1), (1, 2**31)])
def test_what_cannot_be_drawn_is_refused_at_once(arguments):
    with pytest.raises(ValueError, match="must be"):
        listed_urls(*arguments)


def test_keys_stay_what_they_are():
    # Figures are recorded with them: other keys are other figures.
    drawn = b"\n".join([*listed_urls(1000), *ordinary_urls(1000), *listed_urls(1000, 1), *ordinary_urls(1000, 1)])
    assert hashlib.sha256(drawn).hexdigest() == "bcd7e5b3df3510c875658f9801f7c49efe7595d6a1aa8b3f9f97df4f34e2a41c"


def test_import_needs_nothing_but_the_standard_library():
    code = "import sys, dlbf; known = set(sys.modules); import dlbf.datasets; print(*set(sys.modules) - known)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name.partition(".")[0] in {*sys.stdlib_module_names, "dlbf"} for name in done.stdout.split())
