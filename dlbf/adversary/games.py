"""The challenges: games that an adversary plays against a filter, and what it wins.

In every game the adversary knows the stored keys, asks for keys of its choice and sees the answers.  Then it names keys
that are new (not stored, not asked for before, each once), and wins with those that are false positives.  A filter is
*resilient* for a bound if no adversary wins more often than that; *reveal-resilient* if this holds although the
adversary sees everything that the filter keeps in memory except the secret.  The classical games are about filters
without a model; in the learned ones the adversary can also work on the score.  In the fifth game it may change the
filter's contents as well, which the published games leave open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dlbf.adversary.attacks import Attack
from dlbf.adversary.oracle import Oracle, Target
from dlbf.adversary.revealing import reveal, stated_bound
from dlbf.filters.base import Filter
from dlbf.learned.evaluation import Rate
from dlbf.learned.filter import LearnedFilter

__all__ = ["CHALLENGES", "Challenge", "Outcome", "Setup", "attack_target", "play"]

# Makes what is attacked, with a secret of its own for every round, and says which keys are in it.
Setup = Callable[[int], tuple[Target, Collection[bytes]]]


@dataclass(frozen=True)
class Challenge:
    """The rules of one game.

    Attributes
    ----------
    name, summary : str
    learned : bool
        Played against filters with a model.
    reveals : bool
        The adversary sees model and bits.
    changes : bool
        The adversary may insert and remove.
    """

    name: str
    summary: str
    learned: bool
    reveals: bool
    changes: bool = False


_TABLE = (
    Challenge("resilient", "a filter without a model; answers only", False, False),
    Challenge("reveal-resilient", "a filter without a model; its bits are seen", False, True),
    Challenge("learned-resilient", "a learned filter; answers only", True, False),
    Challenge("learned-reveal-resilient", "a learned filter; its model and bits are seen", True, True),
    Challenge("insertion-resilient", "any filter; bits are seen, keys may be inserted and removed", True, True, True),
)
CHALLENGES: dict[str, Challenge] = {challenge.name: challenge for challenge in _TABLE}


@dataclass(frozen=True)
class Outcome:
    """What an adversary achieved.

    Attributes
    ----------
    challenge, attack : str
    queries : Rate
        Share of its questions (absent keys, each once) answered "maybe"; predicted: the stated bound.
    forged : Rate
        Share of the keys it named at the end that are false positives: its success rate.
    lost : int
        Stored keys denied afterwards.
    refused : int
        Insertions refused because something was full.
    """

    challenge: str
    attack: str
    queries: Rate
    forged: Rate
    lost: int
    refused: int

    @property
    def bound(self) -> float:
        """The rate that was promised."""
        return self.queries.predicted

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""

        def rate(found: Rate) -> dict[str, object]:
            return {
                "value": found.value if found.trials else None,
                "interval_99": list(found.interval),
                "hits": found.hits,
                "trials": found.trials,
            }

        return {
            "challenge": self.challenge,
            "attack": self.attack,
            "bound": self.bound,
            "queries": rate(self.queries),
            "forged": rate(self.forged),
            "lost_keys": self.lost,
            "refused": self.refused,
        }


def attack_target(
    target: Target,
    members: Collection[bytes],
    attack: Attack,
    *,
    challenge: Challenge | None = None,
    forgeries: int = 0,
    bound: float | None = None,
) -> Outcome:
    """One attack on one filter or store.

    Parameters
    ----------
    target : object
        Anything with ``in``.
    members : collection of bytes
        What is stored in it.
    attack : Attack
        With its budget.
    challenge : Challenge, optional
        The rules; by default everything but the secret is revealed, and changes are allowed if the attack makes any.
    forgeries : int
        Keys it names at the end.
    bound : float, optional
        What was promised; ``stated_bound`` of a filter unless given.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> from dlbf.adversary import BlackBoxMutation
    >>> keys = [b"key number %d" % i for i in range(1000)]
    >>> f = BloomFilter(1000, 0.02, secret=bytes(16)); f.update(keys)
    >>> outcome = attack_target(f, keys, BlackBoxMutation(10_000), forgeries=10_000)
    >>> outcome.forged.interval[0] < 0.02 < outcome.forged.interval[1]
    True
    """
    if challenge is None:
        challenge = Challenge("open", "", learned=False, reveals=True, changes=attack.changes_target)
    if attack.changes_target and not challenge.changes:
        raise ValueError(f"the game {challenge.name!r} allows no changes, and {attack.name!r} makes them")
    if bound is None:
        bound = stated_bound(target)
    revealed = reveal(target) if challenge.reveals and isinstance(target, Filter) else None
    oracle = Oracle(target, members, attack.queries, attack.changes if challenge.changes else 0, revealed)
    attack.run(oracle)
    named = attack.forge(oracle, forgeries) if forgeries else []
    wins = oracle.judge(named)
    return Outcome(
        challenge.name,
        attack.name,
        Rate(oracle.hits, oracle.asked, bound),
        Rate(wins, len(named), bound),
        oracle.lost(),
        oracle.refused,
    )


def play(
    challenge: str, attack: Callable[[int], Attack], setup: Setup, *, rounds: int = 1, forgeries: int = 10_000
) -> Outcome:
    """Play a challenge for some rounds, each against a new filter with a new secret.

    Parameters
    ----------
    challenge : str
        A name of ``CHALLENGES``.
    attack : callable
        Makes the adversary of a round, given its number.
    setup : callable
        Makes the filter of a round and says which keys it holds.
    rounds : int
    forgeries : int
        Keys named at the end of each round.

    Returns
    -------
    Outcome
        Sums over all rounds; the bound is the largest of them.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> from dlbf.adversary import HashCollision
    >>> keys = [b"key number %d" % i for i in range(500)]
    >>> def setup(number):
    ...     f = BloomFilter(500, 0.01, secret=number.to_bytes(16, "big")); f.update(keys)
    ...     return f, keys
    >>> outcome = play("resilient", lambda number: HashCollision(1000, seed=number), setup, rounds=2, forgeries=5000)
    >>> outcome.forged.trials, outcome.forged.value < 0.015
    (10000, True)
    """
    try:
        rules = CHALLENGES[challenge]
    except KeyError:
        raise ValueError(f"challenge: expected one of {', '.join(CHALLENGES)}, found {challenge!r}") from None
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, found {rounds!r}")
    outcomes = []
    for number in range(rounds):
        target, members = setup(number)
        if isinstance(target, LearnedFilter) and len(target.plan.regions) > 1 and not rules.learned:
            raise ValueError(f"the game {challenge!r} is for filters without a model; this one has {target.design!r}")
        outcomes.append(attack_target(target, members, attack(number), challenge=rules, forgeries=forgeries))
    bound = max(outcome.bound for outcome in outcomes)
    return Outcome(
        challenge,
        outcomes[0].attack,
        Rate(sum(o.queries.hits for o in outcomes), sum(o.queries.trials for o in outcomes), bound),
        Rate(sum(o.forged.hits for o in outcomes), sum(o.forged.trials for o in outcomes), bound),
        sum(o.lost for o in outcomes),
        sum(o.refused for o in outcomes),
    )
