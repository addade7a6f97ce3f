"""What all tests share: hypothesis profiles, key makers with fixed seeds, the folder of real data.

``DLBF_HYPOTHESIS=ci`` runs more examples than the default profile, ``dev``.
"""

import functools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import dlbf
from dlbf.bench.contenders import SHAPES
from dlbf.errors import StoreError
from dlbf.storage.room import Room

# A process that a shell without job control starts in the background ignores Ctrl-C, and so would those it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No limit on how long an example takes: that of a busy machine is not the code's.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", PATIENT, max_examples=25, stateful_step_count=30)
settings.register_profile("ci", PATIENT, max_examples=300, stateful_step_count=60)
settings.load_profile(os.environ.get("DLBF_HYPOTHESIS", "dev"))

SECRET = bytes(range(16))


def skip_without_writemap(folder: Path) -> None:
    """Skip a test of stores written through LMDB's map where there can be none: not every file system gives room."""
    try:
        Room(folder / "probe", mapped=True).close()
    except StoreError as error:
        pytest.skip(str(error))


def url_keys(n: int, seed: int = 0) -> list[bytes]:
    """``n`` different keys that look like URLs; two seeds share none."""
    rng = random.Random(seed)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(997)]
    return [b"https://%s.example/%d/%s/%d" % (words[i % 997], seed, words[(i * 31) % 997], i) for i in range(n)]


def small_filters(secret: bytes | None = None) -> dict[str, Callable[[], dlbf.filters.Filter]]:
    """A maker of a small filter for every class, counter width and layout."""
    return {name: functools.partial(shape.make_small, secret) for name, shape in SHAPES.items()}


SMALL_FILTERS = small_filters()
DELETABLE = sorted(name for name, shape in SHAPES.items() if shape.cls.DELETABLE)


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
