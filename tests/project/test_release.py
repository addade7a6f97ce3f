"""tools/release.py, and the files that a release is made by."""

import sys
import tomllib

import pytest
from support.places import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import release


@pytest.fixture
def checkout(tmp_path):
    """A function that makes the files that name the version."""

    def make(version="1.2.3", heading="1.2.3 (2027-01-31)", cited="1.2.3"):
        (tmp_path / "dlbf").mkdir(exist_ok=True)
        (tmp_path / "dlbf" / "_version.py").write_text(f'"""."""\n\n__version__ = "{version}"\n')
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n## 0.9 (2020-01-01)\n")
        (tmp_path / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {cited}\n")
        return tmp_path

    return make


def test_a_tag_is_ready_when_all_files_say_its_version(checkout):
    assert release.problems("v1.2.3", checkout()) == []


@pytest.mark.parametrize(
    ("tag", "files", "words"),
    [
        ("v1.2.4", {}, "expected v1.2.3"),
        ("v1.2.3", {"heading": "1.2.3 (unreleased)"}, "write the day of the release"),
        ("v1.2.3", {"heading": "1.2.2 (2027-01-31)"}, "newest entry of CHANGELOG.md is 1.2.2"),
        ("v1.2.3", {"cited": "1.0"}, "CITATION.cff says version 1.0"),
    ],
)
def test_each_file_that_says_otherwise_is_named(checkout, tag, files, words):
    (problem,) = release.problems(tag, checkout(**files))
    assert words in problem


def test_this_checkout_cites_its_own_version():
    assert not [text for text in release.problems("v0", ROOT) if "CITATION" in text]


def test_wheels_are_made_for_every_version_that_is_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [line.split(":: ")[-1] for line in project["classifiers"] if "Python :: 3." in line]
    assert list(release.VERSIONS) == promised
    assert sys.version.startswith(tuple(release.interpreters()))


@pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="needs a checkout")
def test_workflows_call_only_what_there_is():
    text = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    makefile = (ROOT / "Makefile").read_text()
    for target in ("test", "docs"):
        assert f"make {target}" in text
        assert f"\n{target}:" in makefile
    for script in ("tools/release.py", ".ci/run"):
        assert script in text
        assert (ROOT / script).exists()
