"""The site is built without a warning, and the reference has every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_implicit
from tests.docs.pages import DOCS, ROOT


@pytest.mark.slow
def test_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("myst_nb", reason="the site needs the extra 'docs'")
    pytest.importorskip("sphinxcontrib.katex", reason="the site needs the extra 'docs'")
    pytest.importorskip("furo", reason="the site needs the extra 'docs'")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    names = {path.stem for path in (tmp_path / "html/reference/names").glob("*.html")}
    for name in ("guides.HyperNetworkGuide", "objectives.LinearisedELBO", "inference.predict"):
        assert f"pyro_implicit.{name}" in names
    formulas = (tmp_path / "html/theory/linearised.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|href)="https?:', formulas)  # read offline
    assert (tmp_path / "html/_static/katex.min.js").stat().st_size > 100_000
    start = (tmp_path / "html/start.html").read_text()
    assert "Ten minutes" in start
    reference = (tmp_path / "html/reference/index.html").read_text()
    missing = [n for n in pyro_implicit.__all__ if n[0] != "_" and f">{n}<" not in reference]
    assert not missing
