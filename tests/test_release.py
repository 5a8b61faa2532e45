"""What is released: one version everywhere, and packages that hold the package and nothing else."""

from __future__ import annotations

import configparser
import io
import re
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from site import getsitepackages
from typing import Any

import pytest
from packaging.version import Version

from tests.test_typed_program import check_strictly

ROOT = Path(__file__).resolve().parents[1]
CHECK = ROOT / ".ci" / "check_packages.py"


@pytest.fixture(scope="module")
def checks() -> dict[str, Any]:
    return runpy.run_path(str(CHECK))


def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_one_version() -> None:
    version = config()["metadata"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version = {{{version}}}," in (ROOT / "docs/project/index.md").read_text()


def test_hosted_jobs_run_what_the_checkout_has() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for path in re.findall(r"(?<![\w/])(?:\.ci|tests)/[\w./]+", workflow):
        assert (ROOT / path).exists(), path
    lowest = config()["options"]["python_requires"].removeprefix(">=").strip()
    versions = re.findall(r'"(3\.\d+)"', workflow.partition("matrix:")[2].partition("steps:")[0])
    assert versions[0] == lowest
    for extra in re.findall(r'-e "\.\[([\w,]+)\]"', workflow):
        assert set(extra.split(",")) <= set(config()["options.extras_require"])


def requirements() -> dict[str, str]:
    """What installing needs: a package and the rest of its line."""
    lines = config()["options"]["install_requires"].split("\n")
    matches = [re.fullmatch(r"([\w-]+)(.*)", line) for line in lines if line]
    return {match[1]: match[2].strip() for match in matches if match}


def tried(which: str) -> dict[str, str]:
    """Packages and versions of a file of constraints."""
    lines = (ROOT / ".ci" / f"{which}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_newest_versions_that_were_tried_are_newer_than_the_oldest() -> None:
    oldest, newest = tried("oldest"), tried("newest")
    assert set(oldest) <= set(newest)
    for package, version in oldest.items():
        assert Version(newest[package]) >= Version(version), package


def test_lower_bounds_are_the_oldest_versions_that_were_tried() -> None:
    oldest, bounds = tried("oldest"), requirements()
    assert set(oldest) <= set(bounds)
    for package, bound in bounds.items():
        assert bound == (f">= {oldest[package]}" if package in oldest else "")  # and none above


def test_classifiers_name_the_versions_of_python_that_are_tested() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    tested = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert tested is not None
    told = re.findall(r"Python :: (3\.\d+)$", config()["metadata"]["classifiers"], re.MULTILINE)
    assert told == re.findall(r"3\.\d+", tested[1])


def test_forms_and_policies_are_there() -> None:
    for name in ("CODE_OF_CONDUCT.md", "SECURITY.md", "CITATION.cff", "LICENSE"):
        assert (ROOT / name).stat().st_size > 300
    assert len(list((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))) == 2


def make(folder: Path, names: set[str]) -> None:
    """A wheel and an sdist of empty files."""
    with zipfile.ZipFile(folder / "p-1-py3-none-any.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
        wheel.writestr("p-1.dist-info/licenses/LICENSE", "")
    beside = ("LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg")
    with tarfile.open(folder / "p-1.tar.gz", "w:gz") as sdist:
        for name in {*names, *beside}:
            sdist.addfile(tarfile.TarInfo(f"p-1/{name}"), io.BytesIO())


def test_packages_that_hold_what_they_should(checks: dict[str, Any], tmp_path: Path) -> None:
    assert checks["check"](tmp_path) == [
        f"{tmp_path} has 0 files *.whl; expected one",
        f"{tmp_path} has 0 files *.tar.gz; expected one",
    ]
    make(tmp_path, checks["package_files"]())
    assert checks["check"](tmp_path) == []


def test_packages_that_do_not(checks: dict[str, Any], tmp_path: Path) -> None:
    names = checks["package_files"]() | {"tests/test_a.py", "benchmarks/__init__.py"}
    make(tmp_path, names - {"pyro_implicit/py.typed"})
    faults = checks["check"](tmp_path)
    assert len(faults) == 6
    assert sum(fault.endswith("lacks pyro_implicit/py.typed") for fault in faults) == 2
    assert sum("should not have tests/test_a.py" in fault for fault in faults) == 2


def environment_with(wheel: Path, place: Path) -> Path:
    """The Python of a new virtual environment where the wheel is installed, and what is here."""
    venv.create(place, system_site_packages=True, with_pip=True)
    python = place / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", "--ignore-installed"]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, timeout=600)
    # Where tests run in a virtual environment themselves, dependencies are in theirs and not in the
    # system's. As plain paths, so that an editable installation there stays out of it.
    (site,) = place.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(getsitepackages()))
    return python


@pytest.mark.slow
def test_the_packages_are_built_as_they_should_be_and_install(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="packages are built by 'build'")
    clone, packages = tmp_path / "clone", tmp_path / "dist"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(packages)]
    subprocess.run(command, cwd=clone, check=True, capture_output=True, timeout=600)
    script = [sys.executable, str(clone / ".ci/check_packages.py"), str(packages)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    (wheel,) = packages.glob("*.whl")
    python = environment_with(wheel, tmp_path / "environment")
    smoke = subprocess.run(
        [str(python), str(clone / ".ci/smoke.py")],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert smoke.returncode == 0, smoke.stderr
    version, file = smoke.stdout.split()[:2]
    assert version == config()["metadata"]["version"]
    assert Path(file).is_relative_to(tmp_path / "environment")
    typed = check_strictly(tmp_path, Path(file).parents[1])
    assert typed.returncode == 0, typed.stdout
