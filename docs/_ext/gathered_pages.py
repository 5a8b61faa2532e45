"""Pages that live elsewhere in the repository, copied in as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]

#: from the root of the repository to the page, without its ending
PAGES = {
    "benchmarks/RESULTS.md": "results/index",
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
} | {
    f"tutorials/{path.name}": f"tutorials/{path.stem}"
    for path in sorted((ROOT / "tutorials").glob("*.ipynb"))
}


def gather(app: Sphinx, config: Config) -> None:
    """Copies what has changed."""
    for source, page in PAGES.items():
        origin = ROOT / source
        target = Path(app.srcdir) / (page + origin.suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != origin.read_bytes():
            shutil.copyfile(origin, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tells Sphinx of it."""
    app.connect("config-inited", gather)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
