"""
Whether the sdist and the wheel in a folder hold what they should, and nothing else.

python .ci/check_packages.py dist
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pyro_implicit"
#: what an sdist has beside the package
BESIDE = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


def files_of(archive: Path) -> set[str]:
    """Names of all files of an archive, without the folder that an sdist puts them in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(archive) as sdist:
        return {one.name.partition("/")[2] for one in sdist.getmembers() if one.isfile()}


def package_files() -> set[str]:
    """What of the checkout belongs to the package."""
    found = (path for path in (ROOT / PACKAGE).rglob("*") if path.suffix in (".py", ".typed"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def faults_of(archive: Path) -> list[str]:
    """What is wrong with one archive, in words."""
    names, wanted = files_of(archive), package_files()
    is_wheel = archive.suffix == ".whl"
    metadata = {name for name in names if ".dist-info/" in name or ".egg-info/" in name}
    allowed = set() if is_wheel else BESIDE
    missing = sorted((wanted | allowed) - names)
    spare = sorted(names - wanted - allowed - metadata)
    faults = [f"{archive.name} lacks {name}" for name in missing]
    faults += [f"{archive.name} should not have {name}" for name in spare]
    if not any(name.endswith("LICENSE") for name in names):
        faults.append(f"{archive.name} lacks a licence")
    return faults


def check(folder: Path) -> list[str]:
    """What is wrong with the packages of a folder; one sdist and one wheel are expected."""
    faults = []
    for ending in ("*.whl", "*.tar.gz"):
        archives = sorted(folder.glob(ending))
        if len(archives) != 1:
            faults.append(f"{folder} has {len(archives)} files {ending}; expected one")
        faults += [fault for archive in archives for fault in faults_of(archive)]
    return faults


if __name__ == "__main__":
    found = check(Path(sys.argv[1]))
    print("\n".join(found) or "sdist and wheel hold what they should")
    sys.exit(bool(found))
