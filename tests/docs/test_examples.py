"""Examples of docstrings run, on a small model and with small numbers."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pyro
import pytest
from pyro.infer import ELBO, MCMC
from pyro.infer.autoguide import AutoGuide

import pyro_implicit as pi
from pyro_implicit import diagnostics, guides, objectives
from tests.docs.pages import ROOT

BLOCK = re.compile(r"Example::\n\n(.*?)(?=\n\S|\Z)", re.DOTALL)
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
PREPARED = re.compile(r"goes on where these lines end.*?::\n\n(.*)", re.DOTALL)


def examples() -> Iterator[tuple[str, str]]:
    """The code of every example of the package, with the file that it is in."""
    for path in sorted((ROOT / "pyro_implicit").rglob("*.py")):
        texts = [inspect.cleandoc(text) for text in DOCSTRING.findall(path.read_text())]
        codes = [code for text in texts for code in BLOCK.findall(text)]
        for number, code in enumerate(codes):
            yield f"{path.relative_to(ROOT / 'pyro_implicit')}-{number}", textwrap.dedent(code)


EXAMPLES = list(examples())
SLOW = {
    "arviz/to_arviz.py-0",
    "chains/ensemble.py-0",
    "chains/refine.py-0",
    "diagnostics/stein_discrepancy.py-0",
    "diagnostics/vsbc.py-0",
    "training/recorded.py-0",
}
CASES = [
    pytest.param(code, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, code in EXAMPLES
]


def names() -> dict[str, Any]:
    """What examples go on from: the lines in the docstring of the package, with short fits."""
    pyro.set_rng_seed(0)
    prepared = PREPARED.findall(inspect.cleandoc(pi.__doc__ or ""))[0]
    code = re.sub(r"(seed=\d)\)", r"\1, num_steps=3, progress=False)", textwrap.dedent(prepared))
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(pi.__path__, "pyro_implicit."):
        if info.ispkg and "._" not in info.name:
            package = importlib.import_module(info.name)
            found |= {name: getattr(package, name) for name in getattr(package, "__all__", ())}
    exec(compile(code, "prepared", "exec"), found)
    return found | {
        "fit": partial(pi.fit, num_steps=3, progress=False),
        "refine": partial(pi.refine, mode_steps=5, progress=False),
        "MCMC": partial(MCMC, warmup_steps=5, disable_progbar=True),
        "vsbc": lambda *args, num_processes, **options: diagnostics.vsbc(
            *args, num_simulations=10, progress=False, **options
        ),
    }


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three steps are not enough, and things say so
        return names()


def small(code: str) -> str:
    """Numbers of three and more digits are of draws and steps, a 16 alone of modes."""
    code = code.replace("model, 16,", "model, 2,").replace("num_steps=5000", "num_steps=96")
    return re.sub(r"(?<![\w.])[1-9]\d{2,}\b", "16", code)


def with_an_example() -> dict[str, Any]:
    """What a user begins with: all names at the root, and every objective and guide."""
    found = {name: getattr(pi, name) for name in pi.__all__ if name != "__version__"}
    for package in (objectives, guides):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value) and issubclass(value, (ELBO, AutoGuide)):
                found[name] = value
    return found


def test_each_of_the_names_to_begin_with_has_an_example() -> None:
    found = with_an_example()
    assert len(found) > 35
    lacking = []
    for name, value in found.items():
        codes = BLOCK.findall(inspect.cleandoc(value.__doc__ or ""))
        if not any(re.search(rf"\b{name}\b", code) for code in codes):
            lacking.append(name)
    assert not lacking, lacking


def test_examples_are_found() -> None:
    assert len(EXAMPLES) >= 45
    assert small("f(1000, 2e-3, num=500, 16, x1000)") == "f(16, 2e-3, num=16, 16, x1000)"
    assert SLOW < {name for name, _ in EXAMPLES}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # three steps are not enough, and things say so
@pytest.mark.parametrize("code", CASES)
def test_example_runs(
    code: str, namespace: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    pyro.set_rng_seed(0)
    exec(compile(small(code), "example", "exec"), dict(namespace))
    plt.close("all")
