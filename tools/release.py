"""Is this checkout ready to be tagged, and wheels of it for every Python of this machine.

python tools/release.py --check v0.2.0      # version, changelog and citation say the same
python tools/release.py --wheels            # `make wheels`: manylinux wheels in wheelhouse/, checked by auditwheel
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
WHEELHOUSE = "wheelhouse"


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """What keeps a tag from being a release of a checkout, in words; nothing if all is well."""
    found = re.search(r'__version__ = "([^"]+)"', (root / "dlbf" / "_version.py").read_text())
    version = found[1] if found else "?"
    wrong = []
    if tag != f"v{version}":
        wrong.append(f"the tag is {tag}, and dlbf/_version.py says {version}: expected v{version}")
    heading = re.search(r"^## (\S+) \(([^)]*)\)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or heading[1] != version:
        wrong.append(f"the newest entry of CHANGELOG.md is {heading[1] if heading else 'missing'}, expected {version}")
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        wrong.append(f"CHANGELOG.md says {version} ({heading[2]}): write the day of the release, such as (2027-01-31)")
    cited = re.search(r"^version: (\S+)", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        wrong.append(f"CITATION.cff says version {cited[1] if cited else 'nothing'}, expected {version}")
    return wrong


def interpreters() -> dict[str, str]:
    """A Python of each version that wheels are made for, as far as this machine has them."""
    found = {}
    for version in VERSIONS:
        installed = sorted(str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        candidates = [*reversed(installed), shutil.which(f"python{version}") or ""]
        if sys.version.startswith(version + "."):
            candidates.insert(0, sys.executable)
        for candidate in filter(None, candidates):
            code = "import sys; print('%d.%d' % sys.version_info[:2])"
            asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
            if asked.stdout.strip() == version:
                found[version] = candidate
                break
    return found


def build_wheel(python: str, out: Path, root: Path = ROOT) -> Path:
    """A manylinux wheel for one Python, checked and repaired by auditwheel, then installed and tried."""
    with tempfile.TemporaryDirectory(prefix="dlbf-wheel") as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        own = str(folder / "venv" / "bin" / "python")
        pip = [own, "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "build"], check=True)
        # From the sdist: what a checkout has lying around cannot get into it.
        subprocess.run([own, "-m", "build", "-q", "-o", str(folder / "dist"), str(root)], check=True)
        (wheel,) = (folder / "dist").glob("*.whl")
        repair = [sys.executable, "-m", "auditwheel", "repair", "-w", str(folder / "repaired"), str(wheel)]
        subprocess.run(repair, check=True)
        (repaired,) = (folder / "repaired").glob("*.whl")
        subprocess.run([*pip, "install", str(repaired)], check=True)
        trial = "import dlbf; f = dlbf.CuckooFilter(10); f.add(b'key'); assert b'key' in f and b'other' not in f"
        subprocess.run([own, "-c", trial], cwd=folder, check=True)
        out.mkdir(exist_ok=True)
        for source in (repaired, *(folder / "dist").glob("*.tar.gz")):
            shutil.copy(source, out)
        return out / repaired.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a tag, or build wheels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", metavar="TAG", help="say what keeps this tag from being a release; exits with 1")
    what.add_argument("--wheels", action="store_true", help=f"build wheels into {WHEELHOUSE}/")
    given = parser.parse_args(arguments)
    if given.check is not None:
        wrong = problems(given.check)
        print(*wrong, sep="\n") if wrong else print(f"{given.check}: ready")
        return 1 if wrong else 0
    pythons = interpreters()
    for version in VERSIONS:
        if version in pythons:
            print(f"{version}: {build_wheel(pythons[version], ROOT / WHEELHOUSE).name}", flush=True)
        else:
            print(f"{version}: not on this machine; the hosted workflow builds it", flush=True)
    return 0 if pythons else 1


if __name__ == "__main__":
    raise SystemExit(main())
