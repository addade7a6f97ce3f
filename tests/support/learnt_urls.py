"""The keys of stores that learn: stored, asked for and absent, and absent ones that no store has been asked for."""

from dlbf.datasets import listed_urls, ordinary_urls

N_KEYS = 15_000
KEYS = list(listed_urls(N_KEYS, seed=3))
ABSENT = list(ordinary_urls(12_000, seed=3))
FRESH = list(ordinary_urls(40_000, seed=11))
