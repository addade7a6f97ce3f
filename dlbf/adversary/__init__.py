"""Attacks on filters, and the games that measure them.

Learned filters are easy to fool: change a letter of a stored key and the model says yes again.  Filters whose hash
anybody can compute are easier still.  Here are the attacks, to be run against any filter or store, and the games that
say what they achieve; ``docs/threat-model.md`` has the results.
"""

from dlbf.adversary.attacks import (
    ATTACKS,
    Attack,
    BlackBoxMutation,
    DeletionDriven,
    HashCollision,
    Pollution,
    WhiteBoxMutation,
    mutate,
)
from dlbf.adversary.forging import key_with_hash
from dlbf.adversary.games import CHALLENGES, Challenge, Outcome, attack_target, play
from dlbf.adversary.hybrid import Hybrid, measure_hybrid
from dlbf.adversary.oracle import BudgetError, Oracle, StoreFilter
from dlbf.adversary.revealing import Revealed, region_rates, reveal, stated_bound

__all__ = [
    "ATTACKS",
    "CHALLENGES",
    "Attack",
    "BlackBoxMutation",
    "BudgetError",
    "Challenge",
    "DeletionDriven",
    "HashCollision",
    "Hybrid",
    "Oracle",
    "Outcome",
    "Pollution",
    "Revealed",
    "StoreFilter",
    "WhiteBoxMutation",
    "attack_target",
    "key_with_hash",
    "measure_hybrid",
    "mutate",
    "play",
    "region_rates",
    "reveal",
    "stated_bound",
]
