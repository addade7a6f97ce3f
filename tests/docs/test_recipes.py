"""The recipes run as they stand, each in a process of its own; those whose package is not installed are skipped."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from support import guard_engines
from support.places import ROOT

EXAMPLES = ROOT / "examples"
# What each needs, and what it prints.
RECIPES = {
    "fastapi": (("fastapi", "httpx", "redis"), r"200 absent users: \d commands reached the server\n"),
    "django": (("django",), r"1000 misses: \d\d? queries\n"),
    "sqlalchemy": (("sqlalchemy",), r"1000 free addresses: \d\d? queries\n"),
    "celery": (("celery",), "7 messages and one after all was forgotten: 4 mails\n"),
    "scrapy": (("scrapy",), "new pages of 1000 requests: 700, and 0 when the job goes on\n"),
    "rocksdb": (
        ("rocksdict",),
        r"10000 absent keys: \d{1,3} reads\nbits per key that the tables no longer have: 1[0-2]\n",
    ),
    "diskcache": ((), r"1000 misses: \d\d? reads\n"),
}


def test_every_recipe_is_tried():
    assert {path.stem.removeprefix("recipe_") for path in EXAMPLES.glob("recipe_*.py")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_runs(name, tmp_path):
    packages, words = RECIPES[name]
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")

    def run(*arguments):
        command = [sys.executable, EXAMPLES / f"recipe_{name}.py", *arguments]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)

    if "redis" in packages:
        with guard_engines.running("redis") as folder:
            done = run((folder / "port").read_text())
    else:
        done = run()
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(words, done.stdout), done.stdout
