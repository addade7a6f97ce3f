"""LearnedFilter: the public face of the composite, which is fitted and measured here."""

from dlbf.learned.evaluation import Evaluation, evaluate
from dlbf.learned.holding import Groups
from dlbf.learned.preparing import fit
from dlbf.learned.routing import Routing
from dlbf.learned.targets import Progress, Targets
from dlbf.models import Model
from dlbf.typenames import Keys

__all__ = ["LearnedFilter"]


class LearnedFilter(Routing):
    """A deletable filter with a model in it: several times smaller than one without, where keys have structure.

    Make one with ``fit``; open a saved one with ``dlbf.open_filter`` or ``from_bytes``.  It has every
    method of the other filters, and holds a key once: like a store, do not add a key that is there.

    Examples
    --------
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> keys, negatives = list(listed_urls(3000)), list(ordinary_urls(20000))
    >>> lf = LearnedFilter.fit(keys, negatives, fpr=0.01, model="ngram")
    >>> all(key in lf for key in keys), lf.design
    (True, 'auto')
    >>> lf.remove(keys[0]) in (True, False)
    True
    """

    __hash__ = None

    @classmethod
    def fit(
        cls,
        keys: Keys,
        negatives: Keys,
        fpr: float | None = None,
        *,
        deletability: float | None = None,
        adversarial_fpr: float | None = None,
        design: str = "auto",
        model: str | Model | None = "auto",
        counter_bits: int | None = None,
        bits_per_key: float | None = None,
        headroom: float = 1.0,
        deletions: float = 0.1,
        secret: bytes | None = None,
        random_state: int = 0,
        max_model_bytes: int | None = None,
        groups: Groups | None = None,
        progress: bool | Progress | None = None,
    ) -> "LearnedFilter":
        """Learn from keys and absent keys, plan, build and fill.

        Parameters
        ----------
        keys : iterable of keys
            What is stored; duplicates count once.
        negatives : iterable of keys
            A sample of what is asked for and absent; each counts once, and those that are among ``keys`` are left out
            with a warning.  A part of it is held out of training and decides.
        fpr : float, optional
            Target false-positive rate for queries like ``negatives``; 0.01 unless ``bits_per_key`` is given.
        deletability : float, optional
            Least share of removed keys that answer "absent" afterwards.  A removed key still looks like a key, so this
            is what costs most: 0.9 (the default of ``auto``) needs at least 3.3 bits per key.  Other designs take what
            their plan gives unless asked.
        adversarial_fpr : float, optional
            The worst case: the largest rate of any region, so of forged queries (with ``secret``: whoever cannot forge
            the hash), deleted keys and traffic unlike ``negatives``.  ``1 - deletability`` if not given: 0.1 for
            ``auto``.  1 lifts it, and says what then passes of a shifted sample; ``print(lf.plan)`` shows the trade.
        design : str
            ``"auto"``, or a name of ``dlbf.theory.DESIGNS``.
        model : str, Model or None
            ``"auto"``, a kind of ``dlbf.models.train``, a compiled model, or None for none.
        counter_bits : {2, 4, 8}, optional
            Width of counters where the design has them; 4 by default.
        bits_per_key : float, optional
            A budget, model included, instead of ``fpr``.  ``auto`` then takes whatever promises the lowest rate: with
            few bits, and unless ``deletability`` is asked for, that may be Bloom filters, which keep removed keys.
        headroom : float
            Room for so many times the keys; 1.5 leaves space for half as many again.
        deletions : float
            Share of keys that will be deleted, for designs that keep a deleted set.
        secret : bytes, optional
            16 bytes for keyed hashing.
        random_state : int
            Same input and state give the same filter.
        max_model_bytes : int, optional
            Largest model to consider.
        groups : "host", callable or sequence, optional
            Hold out whole groups of negatives, so that the rate is measured on groups that were never learnt from: the
            host of a URL or e-mail address, a function of the key, or a label for each of ``negatives``.  Without it
            the promise is for queries from groups like those learnt from, and new hosts may do worse.
        progress : bool or callable, optional
            ``callable(stage, fraction)``; True writes to standard error; by default only on a terminal.

        Returns
        -------
        LearnedFilter

        Raises
        ------
        ValueError
            If the targets cannot be met by the design; the message has the smallest budget that would do.
        """
        targets = Targets(
            fpr=fpr,
            deletability=deletability,
            adversarial_fpr=adversarial_fpr,
            design=design,
            model=model,
            counter_bits=counter_bits,
            bits_per_key=bits_per_key,
            headroom=headroom,
            deletions=deletions,
            secret=secret,
            random_state=random_state,
            max_model_bytes=max_model_bytes,
            groups=groups,
        )
        return fit(cls, keys, negatives, targets, progress)

    def evaluate(self, negatives: Keys, deleted: Keys | None = None) -> Evaluation:
        """Measure the filter beside what its plan predicts.

        Parameters
        ----------
        negatives : iterable of keys
            Absent keys that were not used to fit.
        deleted : iterable of keys, optional
            Keys that are in the filter; they are removed from a copy to measure deletability and false negatives.
            Every removal makes the next key easier to forget, so there are three figures, each beside its prediction:
            ``first_removal`` (each key removed alone), ``average_removal`` (asked at once while one after the other
            goes) and ``deletability`` (asked when all are gone).

        Returns
        -------
        Evaluation
            Rates with 99 % intervals; print it.
        """
        return evaluate(self, negatives, deleted)
