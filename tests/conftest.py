"""What all tests share: hypothesis profiles, the fixtures, which tests are left out.

``DLBF_HYPOTHESIS=ci`` runs more examples than the default profile, ``dev``.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.samples import DELETABLE, SMALL_FILTERS

import dlbf

# A process that a shell without job control starts in the background ignores Ctrl-C, and so would those it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of tests start a process that imports dlbf: without bytecode each compiles all of it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Stores wait for the disk at each commit, and only tests with ``disk_path`` need a disk.  So temporary files are in
# memory, where there is enough and programs may be there.  Workers and other processes of tests see the variable.
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 4 << 30


def has_room(folder: Path) -> bool:
    """Whether a folder can take what the tests write, and may have programs in it."""
    if not os.access(folder, os.W_OK):
        return False
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize >= ENOUGH_BYTES and not room.f_flag & os.ST_NOEXEC


if "TMPDIR" not in os.environ and has_room(MEMORY):
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

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


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, where ``tmp_path`` may be in memory."""
    with tempfile.TemporaryDirectory(prefix="dlbf-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real key sets; see the marker ``data``."""
    folder = os.environ.get("DLBF_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set DLBF_DATA to the folder of real key sets")
    return Path(folder)
