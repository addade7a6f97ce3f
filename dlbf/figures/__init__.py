"""The published figures computed again, and what the theory says beside them: one CSV and one PNG each.

The curves need numpy only; the pictures need matplotlib.  One figure is measured: it builds the filters that the theory
speaks of.
"""
