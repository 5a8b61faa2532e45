"""Examples of docstrings run, on a small model and with small numbers."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_implicit as pi
from pyro_implicit import diagnostics, processes
from pyro_implicit.diagnostics import plots
from tests.docs.pages import ROOT

BLOCK = re.compile(r"Example::\n\n(.*?)(?=\n\S|\Z)", re.DOTALL)
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)


def examples() -> Iterator[tuple[str, str]]:
    """The code of every example of the package, with the file that it is in."""
    for path in sorted((ROOT / "pyro_implicit").rglob("*.py")):
        for text in DOCSTRING.findall(path.read_text()):
            for number, code in enumerate(BLOCK.findall(inspect.cleandoc(text))):
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
    """What examples speak of: a fitted guide, data, and the names that users import."""
    pyro.set_rng_seed(0)
    x = torch.linspace(-1.0, 1.0, 24).unsqueeze(-1)
    y = 0.5 * x[:, 0] + 0.1 * torch.randn(24)

    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, sigma), obs=y)

    network = nn.Sequential(nn.Linear(1, 1, bias=False))
    net = pi.BayesianModule(network, dist.Normal(0.0, 1.0))
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(pi.__path__, "pyro_implicit."):
        if info.ispkg and "._" not in info.name:
            package = importlib.import_module(info.name)
            found |= {name: getattr(package, name) for name in getattr(package, "__all__", ())}
    guides = [pi.HyperNetworkGuide(model).setup(x, y) for _ in range(2)]
    data = {
        f"{name}{kind}": v for name, v in (("x", x), ("y", y)) for kind in ("", "_test", "_val")
    }
    mcmc = MCMC(NUTS(model), num_samples=30, warmup_steps=5, disable_progbar=True)
    mcmc.run(x, y)
    return {
        **found,
        **data,
        **{"pyro": pyro, "torch": torch, "dist": dist, "nn": nn, "az": az, "plots": plots},
        **{"MCMC": partial(MCMC, warmup_steps=5, disable_progbar=True), "NUTS": NUTS, "SVI": SVI},
        **{"AutoNormal": AutoNormal, "Adam": pyro.optim.Adam, "mcmc": mcmc},
        **{"model": model, "guide": guides[0], "other_guide": guides[1], "network": network},
        **{"batches": [(x, y)], "optim": pyro.optim.Adam({"lr": 1e-3})},
        **{"prior": processes.NeuralSampler(1), "noise_scale": 0.1, "objective": None},
        "fit": partial(pi.fit, num_steps=3, progress=False),
        "refine": partial(pi.refine, mode_steps=5, progress=False),
        "vsbc": lambda *args, num_processes, **options: diagnostics.vsbc(
            *args, num_simulations=10, progress=False, **options
        ),
        "net": net,
    }


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    return names()


def small(code: str) -> str:
    """Numbers of three and more digits are of draws and steps, a 16 alone of modes."""
    code = code.replace("model, 16,", "model, 2,").replace("num_steps=5000", "num_steps=96")
    return re.sub(r"(?<![\w.])[1-9]\d{2,}\b", "16", code)


def test_examples_are_found() -> None:
    assert len(EXAMPLES) >= 15
    assert small("f(1000, 2e-3, num=500, 16, x1000)") == "f(16, 2e-3, num=16, 16, x1000)"
    assert SLOW < {name for name, _ in EXAMPLES}


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
