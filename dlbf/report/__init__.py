"""A report on the user's own keys: one HTML page that stands alone, and the same figures as plain data.

``inputs`` samples and cleans.  ``fitting``, ``comparing``, ``planning``, ``scoring`` and ``readpath`` measure,
``advice`` finds the words, and ``collecting`` puts it all into ``figures``.  ``page`` shows those with ``charts``,
``style`` and ``wording``; it makes no request and runs no script.
"""

from dlbf.report.collecting import collect
from dlbf.report.figures import Figures
from dlbf.report.inputs import Gathered, Inputs, Targets, gather, prepare
from dlbf.report.page.document import render

__all__ = ["Figures", "Gathered", "Inputs", "Targets", "collect", "gather", "prepare", "render"]
