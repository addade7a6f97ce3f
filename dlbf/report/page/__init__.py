"""The page of a report: typed figures in, one self-contained HTML document out.

``document`` puts the sections together: ``answer``, ``designs``, ``curves``, ``places``, ``model``, ``times`` and
``method``, all written with ``markup``.
"""
