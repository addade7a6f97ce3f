"""Models: trained by scikit-learn, compiled to integers, scored without either.

Importing this package, reading a model and scoring never import scikit-learn; `train` does.
"""

from dlbf.models.compiling import SUPPORTED, compile
from dlbf.models.features import Features
from dlbf.models.measuring import Quality, choose_thresholds, filter_bits, measure, region_shares
from dlbf.models.model import Model, from_bytes, no_model
from dlbf.models.pickles import open_pickle, seal
from dlbf.models.training import train

__all__ = [
    "SUPPORTED",
    "Features",
    "Model",
    "Quality",
    "choose_thresholds",
    "compile",
    "filter_bits",
    "from_bytes",
    "measure",
    "no_model",
    "open_pickle",
    "region_shares",
    "seal",
    "train",
]
