"""``dlbf completion`` and what the shells then ask for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from dlbf.cli import COMMANDS, build
from dlbf.storage import Store

# The script calls ``dlbf``, so there has to be one, and this Python's.
BIN = Path(sys.executable).parent


def ask(words, shell="bash"):
    """What the program answers to a shell that completes the last word, a line a suggestion."""
    asked = get_completion_class(shell)(build(), {}, "dlbf", "_DLBF_COMPLETE")
    return [asked.format_completion(item) for item in asked.get_completions(words[1:-1], words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_asks_for_completions(shell):
    done = CliRunner().invoke(build(), ["completion", shell])
    assert done.exit_code == 0, done.output
    assert f"_DLBF_COMPLETE={shell}_complete" in done.output
    assert "_dlbf_completion" in done.output
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=done.output, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_completion_for_an_unknown_shell_names_the_known_ones():
    done = CliRunner().invoke(build(), ["completion", "csh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output


def test_command_names_complete_without_importing_any_command():
    code = (
        "import atexit, sys; from dlbf.cli import main; "
        "atexit.register(lambda: print(sorted(name for name in sys.modules if name.startswith('dlbf.cli.')))); main()"
    )
    environment = os.environ | {"_DLBF_COMPLETE": "bash_complete", "COMP_WORDS": "dlbf ", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert {line.partition(",")[2] for line in lines if line.startswith("plain")} == set(COMMANDS)
    assert lines[-1] == "['dlbf.cli.lazy']"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_words_complete_in_every_shell(shell):
    assert any("export" in line for line in ask(["dlbf", "ex"], shell))
    assert any("--prefix" in line for line in ask(["dlbf", "scan", "store", "--pre"], shell))
    assert any("jsonl" in line for line in ask(["dlbf", "load", "store", "file", "--format", "js"], shell))


def test_paths_and_keys_complete(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Store("store") as store:
        store.update({b"apple": b"", b"apricot": b"", b"banana": b"", b"ap\n\xff": b""})
    assert ask(["dlbf", "get", "st"]) == ["dir,st"]
    assert ask(["dlbf", "load", "store", "f"]) == ["file,f"]
    assert ask(["dlbf", "get", "store", "app"]) == ["plain,apple"]
    assert ask(["dlbf", "get", "store", "ap"]) == ["plain,apple", "plain,apricot"]
    assert ask(["dlbf", "get", "nowhere", "ap"]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.mark.skipif(not shutil.which("bash") or not (BIN / "dlbf").exists(), reason="needs bash and an installed dlbf")
def test_bash_completes_with_the_script():
    script = (
        "source <(dlbf completion bash); COMP_WORDS=(dlbf del); COMP_CWORD=1; _dlbf_completion dlbf; "
        'echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "delete", done.stderr
