"""What the traffic shows of a filter's rate."""

import math
from dataclasses import replace

from dlbf.storage.layout import TrafficRecord

__all__ = ["TOLERATED", "least_rate", "observe", "observed_rate"]

# The rate may be so much above its target before that is a reason to do something.
TOLERATED = 1.1

# Absent lookups that the observed rate is taken over: when there are more, older ones lose half of their weight.
WINDOW = 1_000_000
# One-sided, 99.9 %: asked once an hour, chance alone says "due" once in six weeks, and then only if the true rate is at
# the limit already.
Z_LOW = 3.0902


def observe(traffic: TrafficRecord, generation: int, absent: int, false_positives: int) -> TrafficRecord:
    """The traffic record after so many more absent lookups of a generation's filter."""
    if traffic.generation != generation:
        traffic = replace(traffic, generation=generation, absent=0, false_positives=0)
    absent, false_positives = traffic.absent + absent, traffic.false_positives + false_positives
    while absent > WINDOW:
        absent, false_positives = absent // 2, false_positives // 2
    return replace(traffic, absent=absent, false_positives=false_positives)


def observed_rate(traffic: TrafficRecord) -> tuple[float, float]:
    """The rate that the traffic shows, and the least that it could truly be (Wilson)."""
    n = traffic.absent
    if not n:
        return math.nan, 0.0
    return traffic.false_positives / n, least_rate(n, traffic.false_positives)


def least_rate(n: int, false_positives: int) -> float:
    """The least that the rate could truly be where so many of ``n`` absent lookups passed (Wilson)."""
    if not n:
        return 0.0
    rate, z2 = false_positives / n, Z_LOW**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_LOW * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half)
