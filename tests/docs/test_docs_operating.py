"""The operating guide: its commands run, in their order, and what it names exists."""

import re
import shlex
import shutil
import subprocess

import pytest
from support.places import ROOT

pytest.importorskip("click")
pytest.importorskip("rich")
from click.testing import CliRunner

from dlbf.cli import COMMANDS, build

GUIDE = (ROOT / "docs" / "operating.md").read_text()
COMMAND_LINES = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_commands_of_the_guide_run_in_their_order(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    said = ""
    for line in COMMAND_LINES:
        if not line.startswith("dlbf "):
            subprocess.run(["bash", "-c", line], check=True)
            continue
        # In process, for speed; what a shell would do with the rest of the line does not matter here.
        command = re.split(r" \|\| | > | \| ", line)[0]
        done = CliRunner().invoke(build(), shlex.split(command)[1:])
        assert done.exit_code == 0 or "||" in line, f"{line}\n{done.output}"
        assert done.exit_code in (0, 1), f"{line}\n{done.output}"
        said += f"$ {line}\n{done.output}"
    assert "$ dlbf get urls evil.example/login\n\n" in said  # listed, with an empty value
    assert "no key 'ordinary.example/'" in said
    assert "$ dlbf scan urls --count\n3\n" in said
    assert "urls: 3 keys, ok" in said


def test_commands_and_options_of_the_guide_exist():
    group = build()
    context = group.make_context("dlbf", ["--help"], resilient_parsing=True)
    for name, options in re.findall(r"dlbf ([a-z-]+)([^`|\n]*)", GUIDE):
        if name not in COMMANDS:
            continue
        known = {option for param in group.get_command(context, name).params for option in param.opts}
        for option in re.findall(r"--[a-z-]+", options.partition("#")[0]):
            assert option in known, f"dlbf {name} {option}"
    named = set(re.findall(r"`dlbf ([a-z-]+)", GUIDE)) | set(re.findall(r"^\$ dlbf ([a-z-]+)", GUIDE, re.MULTILINE))
    assert named <= set(COMMANDS)


def test_files_that_the_guide_names_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", GUIDE):
        assert (ROOT / "docs" / target).exists(), target
    table = GUIDE.partition("the folder `examples/`")[2].partition("\n\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(named) == 5
    assert all((ROOT / "examples" / name).is_file() for name in named), named
