"""The learned filter: one composite of a model and base filters, many designs."""

from dlbf.learned.evaluation import Evaluation, Rate
from dlbf.learned.explanation import Explanation
from dlbf.learned.filter import LearnedFilter

__all__ = ["Evaluation", "Explanation", "LearnedFilter", "Rate"]
