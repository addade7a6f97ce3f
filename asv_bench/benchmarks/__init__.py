"""The asv suite of dlbf; one module per area, keys made by dlbf.datasets.

With ``DLBF_BENCH_TINY=1`` everything is measured on a few thousand keys: a check that it runs, no measurement.
"""
