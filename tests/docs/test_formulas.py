"""KaTeX, which draws the formulas of the site, knows all that they are written with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

SCRIPT = """
const katex = require(process.argv[1]), read = require("fs").readFileSync;
for (const [place, formula, displayMode] of JSON.parse(read(0))) {
  const options = {displayMode, output: "mathml", throwOnError: true, strict: "error"};
  try { katex.renderToString(formula, options) }
  catch (error) { console.log(place + ": " + formula + ": " + error.message) }
}
"""


def formulas_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Formulas of a page or of docstrings, and whether they stand by themselves."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from ((found, False) for found in re.findall(r":math:`([^`]+)`", text))
        blocks = re.findall(r"^ *\.\. math::\n\n((?: +.*\n|\n)+)", text, re.MULTILINE)
        yield from ((block, True) for block in blocks)
        return
    for block in re.findall(r"^```\{math\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield re.sub(r"^:label:.*\n", "", block), True
    words = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    yield from ((found, False) for found in re.findall(r"(?<![\\$])\$([^$]+)\$", words))


def unknown(formulas: list[tuple[str, str, bool]]) -> list[str]:
    """Formulas that are not drawn, by the place that they are in, and why."""
    package = pytest.importorskip("sphinxcontrib.katex", reason="KaTeX is in the extra 'docs'")
    node = shutil.which("node")
    if node is None:
        pytest.skip("KaTeX needs Node.js to be run without a browser")
    library = Path(package.__file__).parent / "katex.min.js"
    done = subprocess.run(
        [node, "-e", SCRIPT, str(library)],
        input=json.dumps(formulas),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.splitlines()


def test_formulas_are_drawn() -> None:
    formulas = [
        (path.relative_to(ROOT).as_posix(), formula.strip(), alone)
        for path in [*PAGES, *sorted((ROOT / "pyro_implicit").rglob("*.py"))]
        for formula, alone in formulas_of(path)
    ]
    assert len(formulas) > 800
    faults = unknown(formulas)
    assert not faults, "\n".join(faults)


def test_what_is_not_known_is_told() -> None:
    (fault,) = unknown([("page", r"\tfrac12 x", False), ("page", r"\nonsense", True)])
    assert fault.startswith(r"page: \nonsense: ")
