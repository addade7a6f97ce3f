"""Where the repository and the files of the tests are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
# Golden files of every released format.
DATA = TESTS / "data"
