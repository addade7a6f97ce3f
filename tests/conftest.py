"""What all tests share: hypothesis profiles, the fixtures, which tests are left out.

``DLBF_HYPOTHESIS=ci`` runs more examples than the default profile, ``dev``.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.samples import DELETABLE, SMALL_FILTERS

import dlbf

# A process that a shell without job control starts in the background ignores Ctrl-C, and so would those it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No limit on how long an example takes: that of a busy machine is not the code's.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", PATIENT, max_examples=25, stateful_step_count=30)
settings.register_profile("ci", PATIENT, max_examples=300, stateful_step_count=60)
settings.load_profile(os.environ.get("DLBF_HYPOTHESIS", "dev"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes or compares times, unless ``-m`` names one of the two or ``DLBF_SLOW=1`` is set."""
    chosen = config.getoption("markexpr")
    if "slow" in chosen or "timing" in chosen or os.environ.get("DLBF_SLOW", "0") not in ("", "0"):
        return
    for item in items:
        for marker, reason in (("slow", "takes minutes"), ("timing", "compares times")):
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{reason}; run with -m {marker} or DLBF_SLOW=1"))


@pytest.fixture(params=sorted(SMALL_FILTERS))
def make_filter(request: pytest.FixtureRequest) -> Callable[[], dlbf.filters.Filter]:
    """Each kind of filter in turn."""
    return SMALL_FILTERS[request.param]


@pytest.fixture(params=DELETABLE)
def make_deletable(request: pytest.FixtureRequest) -> Callable[[], dlbf.filters.Filter]:
    """Each kind of filter that can forget."""
    return SMALL_FILTERS[request.param]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real key sets; see the marker ``data``."""
    folder = os.environ.get("DLBF_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set DLBF_DATA to the folder of real key sets")
    return Path(folder)
