"""The example of an extension that asks filters, compiled."""

import os
import shutil
import subprocess
import sys

from support.places import TESTS


def build_example(folder, python=sys.executable, **environment):
    """Compile the example in ``folder``, with the dlbf that ``python`` has; the path of the extension."""
    shutil.copytree(TESTS / "cython_example", folder, dirs_exist_ok=True)
    command = [str(python), "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("ask.*.so")
    return built
