"""Shows what a model makes of the keys: histograms of its scores, and the regions they are cut into."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlbf.learned import LearnedFilter
from dlbf.report.figures import RegionFigures, Scores
from dlbf.report.inputs import Inputs, sample_evenly
from dlbf.report.wording import show_key

__all__ = ["region_figures", "score_figures"]

HISTOGRAM_BINS = 44
EXAMPLES = 3


def _borders(lf: LearnedFilter) -> list[int]:
    """The lowest scores of all regions but the first."""
    return [region.low for region in lf.plan.regions if region.low is not None]


def score_figures(basis: LearnedFilter, for_comparison_only: bool, inputs: Inputs) -> Scores:
    """Histograms of the scores of keys and of unseen absent keys, with the borders of the regions."""
    keys = basis.model.score_many(sample_evenly(inputs.keys, 200_000))
    absent = basis.model.score_many(inputs.unseen or inputs.learnt)
    borders = _borders(basis)
    low, high = (int(edge) for edge in np.quantile(np.concatenate((keys, absent)), (0.002, 0.998)))
    low, high = min([low, *borders]), max([high + 1, *(border + 1 for border in borders)])
    step = max(1, math.ceil((high - low) / HISTOGRAM_BINS))
    edges = np.arange(low, high + step, step)

    def shares(scores: npt.NDArray[np.int32]) -> list[float]:
        # What lies outside is counted in the bins at the ends.
        inside = np.clip((scores.astype(np.int64) - low) // step, 0, len(edges) - 2)
        return [float(share) for share in np.bincount(inside, minlength=len(edges) - 1) / max(1, len(scores))]

    of_keys, of_absent = shares(keys), shares(absent)
    return Scores(
        edges=[int(edge) for edge in edges],
        keys=of_keys,
        absent=of_absent,
        overlap=sum(map(min, of_keys, of_absent)),
        borders=[int(border) for border in borders],
        for_comparison_only=for_comparison_only,
        model=basis.plan.model,
    )


def region_figures(lf: LearnedFilter, inputs: Inputs, examples: bool) -> list[RegionFigures]:
    """The regions of a filter, lowest scores first, with some of the keys in each if ``examples``."""
    regions = lf.plan.regions
    total_bytes = max(1, sum(region.n_bytes for region in regions))
    some_keys = _examples(lf, sample_evenly(inputs.keys, 20_000) if examples else [])
    some_absent = _examples(lf, sample_evenly(inputs.unseen, 20_000) if examples else [])
    return [
        RegionFigures(
            score_from=region.low,
            key_share=region.key_share,
            query_share=region.query_share,
            filter=region.base,
            bits_per_key=8 * region.n_bytes / region.n_keys if region.n_keys else 0.0,
            share_of_bytes=region.n_bytes / total_bytes,
            fpr_predicted=region.fpr,
            fpr_measured=region.measured_fpr,
            example_keys=keys,
            example_absent=absent,
        )
        for region, keys, absent in zip(regions, some_keys, some_absent, strict=True)
    ]


def _examples(lf: LearnedFilter, source: Sequence[bytes]) -> list[list[str]]:
    """For each region its first few keys of a source, as text."""
    chosen: list[list[str]] = [[] for _ in lf.plan.regions]
    if source:
        numbers = np.searchsorted(_borders(lf), lf.model.score_many(source), side="right")
        for key, number in zip(source, numbers, strict=True):
            if len(chosen[number]) < EXAMPLES:
                chosen[number].append(show_key(key))
    return chosen
