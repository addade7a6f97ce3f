"""What a terminal gets: escape codes only if it is one, and none at all with NO_COLOR."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dlbf.cli

pytest.importorskip("click")
pytest.importorskip("rich")
pty = pytest.importorskip("pty")


ESCAPE = b"\x1b"


def in_terminal(arguments, **environment):
    """Everything that a command writes to a terminal that is its output and its standard error."""
    ours, theirs = pty.openpty()
    settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    settings |= {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "dlbf", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env=settings,
    )  # fmt: skip
    os.close(theirs)
    found = b""
    try:
        while chunk := os.read(ours, 65536):
            found += chunk
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0, found
    return found


@pytest.fixture(params=["plan", "load"])
def arguments(request, tmp_path):
    if request.param == "plan":
        return ["plan", "--fpr", "0.01"]
    (tmp_path / "keys.txt").write_bytes(b"a\nb\n")
    return ["load", tmp_path / "store", tmp_path / "keys.txt"]


def test_no_color_leaves_no_escape_codes_at_all(arguments):
    assert ESCAPE in in_terminal(arguments)  # or this would prove nothing
    assert ESCAPE not in in_terminal(arguments, NO_COLOR="1")
    assert ESCAPE not in in_terminal(arguments, NO_COLOR="1", FORCE_COLOR="1")


def test_output_to_a_pipe_has_no_escape_codes(arguments):
    done = subprocess.run([sys.executable, "-m", "dlbf", *map(str, arguments)], capture_output=True, check=True)
    assert ESCAPE not in done.stdout + done.stderr


def test_every_command_asks_for_its_terminal_in_one_place():
    for path in Path(dlbf.cli.__file__).parent.rglob("*.py"):
        assert path.name == "console.py" or not re.search(r"\bConsole\(", path.read_text()), path
