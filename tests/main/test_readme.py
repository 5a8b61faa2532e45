"""What README.md tells its reader to run, runs."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_example():
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    short, count = re.subn(r"range\(\d+\)", "range(3)", example)
    assert count == 1
    assert 'num_samples=500, batch_size=50)["y"]  # (500, 100)' in example
    short, count = re.subn(r"num_samples=\d+", "num_samples=20", short)
    assert count == 2
    plt.switch_backend("agg")
    namespace: dict[str, object] = {}
    exec(compile(short, "README.md", "exec"), namespace)
    plt.close("all")
    assert namespace["draws"].shape == (20, 100)


def test_commands_are_those_of_ci():
    """Each set-up command is one line of the README, and .ci/run runs the same."""
    for line in (
        'pip install -e ".[tutorials]" && python -m pyro_implicit',
        'pip install -e ".[test]" && pytest',
    ):
        assert line in README.splitlines()
        assert f"'{line}'" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing
