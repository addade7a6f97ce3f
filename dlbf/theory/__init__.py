"""Theory: what every design costs and delivers, known before anything is built.

Needs numpy only: nothing here imports scipy or matplotlib.
"""

from dlbf.geometry import blocked_fpr, cell_fpr, cuckoo_fpr, dleft_fpr
from dlbf.theory.allocation import Allocation, allocate, sandwich, smallest_budget
from dlbf.theory.churn import Churned, dlbf_under_churn
from dlbf.theory.costs import ALL, Cost, base_cost, base_costs, cell_cost, fingerprint_cost
from dlbf.theory.designs import DESIGNS, MANY, Design, get_design
from dlbf.theory.formulas import (
    ALPHA,
    bodega_fpr,
    counting_deletability,
    dlbf_clean_chance,
    dlbf_deletability,
    exact_bloom_fpr,
    hybrid_crossover,
    hybrid_fpr,
    lbf_2cbf_split,
    lbf_3sbf_rates,
    slbf_2cbf_split,
)
from dlbf.theory.planner import plan
from dlbf.theory.plans import FilterPlan, Plan, RegionPlan
from dlbf.theory.shared_array import SharedArray, optimise_shared_array
from dlbf.theory.shares import kl_divergence, merge_shares, saved_bits, shares_from_scores
from dlbf.theory.three_filter import (
    ThreeFilters,
    optimise_three_filters,
    pareto_front,
    smallest_three_filters,
)
from dlbf.theory.thresholds import Thresholds, best_thresholds, cheapest_thresholds
from dlbf.theory.trade import WORST_CASES, Trade, trade, trade_lines

__all__ = [
    "ALL",
    "ALPHA",
    "DESIGNS",
    "MANY",
    "WORST_CASES",
    "Allocation",
    "Churned",
    "Cost",
    "Design",
    "FilterPlan",
    "Plan",
    "RegionPlan",
    "SharedArray",
    "ThreeFilters",
    "Thresholds",
    "Trade",
    "allocate",
    "base_cost",
    "base_costs",
    "best_thresholds",
    "blocked_fpr",
    "bodega_fpr",
    "cell_cost",
    "cell_fpr",
    "cheapest_thresholds",
    "counting_deletability",
    "cuckoo_fpr",
    "dlbf_clean_chance",
    "dlbf_deletability",
    "dlbf_under_churn",
    "dleft_fpr",
    "exact_bloom_fpr",
    "fingerprint_cost",
    "get_design",
    "hybrid_crossover",
    "hybrid_fpr",
    "kl_divergence",
    "lbf_2cbf_split",
    "lbf_3sbf_rates",
    "merge_shares",
    "optimise_shared_array",
    "optimise_three_filters",
    "pareto_front",
    "plan",
    "sandwich",
    "saved_bits",
    "shares_from_scores",
    "slbf_2cbf_split",
    "smallest_budget",
    "smallest_three_filters",
    "trade",
    "trade_lines",
]
