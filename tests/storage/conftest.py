"""What all tests of stores share."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store can be made."""
    return tmp_path / "store"
