"""A report on the user's own keys: one HTML page that stands alone, and the same figures as plain data.

``inputs`` samples and cleans, ``comparing`` and ``readpath`` measure, ``figures`` gathers everything into plain data,
``charts`` and ``page`` draw it.  The page makes no request and runs no script.
"""

from dlbf.report.comparing import Targets
from dlbf.report.figures import collect
from dlbf.report.inputs import Gathered, Inputs, gather, prepare
from dlbf.report.page import render

__all__ = ["Gathered", "Inputs", "Targets", "collect", "gather", "prepare", "render"]
