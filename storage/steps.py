"""Named steps of a commit, so that tests can stop the process at each of them.

In normal use ``reached`` is a call that does nothing.  It is compiled: so are some of the steps.
"""

from dlbf.kernels.journal import reached, set_hook

__all__ = ["CONVERSION_STEPS", "GUARD_STEPS", "PUBLISH_STEPS", "STEPS", "reached", "set_hook"]

STEPS = (
    "write-began",
    "data-written",
    "journal-written",
    "commit-done",
    "filter-applied",
    "checkpoint-piece-written",
    "checkpoint-record-written",
    "journal-trimmed",
    "growth-scanned",
    "build-stepped",
    "base-shared",
    "switch-began",
    "switch-written",
    "switch-done",
    "broken-marked",
    "rebuild-negatives",
    "rebuild-scan",
    "rebuild-train",
    "rebuild-build",
    "rebuild-measure",
    "rebuild-switch",
)

# Those of a guarded put or delete, which contains a commit.
GUARD_STEPS = (
    "guard-locked",
    "guard-checked",
    "guard-intent-written",
    "guard-journaled",
    "guard-engine-written",
    "guard-intent-cleared",
    "guard-resolved",
)

# Those of the conversion of a guard that an older version made.
CONVERSION_STEPS = (
    "conversion-filter-written",
    "conversion-written",
    "conversion-named",
    "conversion-text-left",
)

# Those of one version that is published.
PUBLISH_STEPS = (
    "publish-delta-written",
    "publish-full-written",
    "publish-manifest-written",
    "publish-head-written",
)
