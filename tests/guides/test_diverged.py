"""A guide that a training has spoilt is refused by name, wherever it is handed over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    EnsembleGuide,
    HyperNetworkGuide,
    entropy_report,
    evaluate,
    fit,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.diagnostics import khat, stein_discrepancy
from pyro_implicit.exceptions import NonFiniteError

Y = torch.tensor([0.3, -0.5, 1.0])


def model(y: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def by_row(y: torch.Tensor) -> None:
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def spoilt(guide: Any, value: float = float("nan")) -> Any:
    guide(Y)
    with torch.no_grad():
        next(guide.parameters()).fill_(value)
    return guide


CALLS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda guide: fit(model, guide, Y, num_steps=3, progress=False),
    "predict": lambda guide: predict(model, guide, Y, num_samples=3),
    "evaluate": lambda guide: evaluate(model, guide, Y, num_samples=3),
    "log_predictive_density": lambda guide: log_predictive_density(model, guide, Y, num_samples=3),
    "to_arviz": lambda guide: to_arviz(model, guide, Y, num_samples=3),
    "refine": lambda guide: refine(model, guide, Y, num_steps=20, progress=False),
    "posterior_draws": lambda guide: posterior_draws(guide, 3),
    "stein_discrepancy": lambda guide: stein_discrepancy(model, guide, Y, num_samples=5),
    "khat": lambda guide: khat(model, guide, Y, num_samples=100),
    "entropy_report": entropy_report,
}


@pytest.mark.parametrize("call", CALLS)
def test_its_parameter_is_named(call: str) -> None:
    guide = spoilt(HyperNetworkGuide(model, init_from=None))
    with pytest.raises(NonFiniteError, match=r"parameter '.*' of the guide .* is NaN"):
        CALLS[call](guide)


def test_pyros_own_guides_and_members_are_looked_at() -> None:
    with pytest.raises(NonFiniteError, match="AutoNormal"):
        predict(model, spoilt(AutoNormal(model)), Y, num_samples=3)
    good, bad = HyperNetworkGuide(model, init_from=None), HyperNetworkGuide(model, init_from=None)
    good(Y), spoilt(bad)
    with pytest.raises(NonFiniteError, match="is NaN"):
        predict(model, EnsembleGuide([good, bad]), Y, num_samples=4)


@pytest.mark.parametrize("draw", ["sample", "median"])
def test_draws_of_finite_parameters_are_looked_at(draw: str) -> None:
    guide = HyperNetworkGuide(model, init_from=None)
    guide(Y)
    with torch.no_grad():
        guide.samplers[0].preconditioner.loc.fill_(3e38)
        for parameter in guide.parameters():
            parameter.mul_(1e30)
    with pytest.raises(NonFiniteError, match="numbers that HyperNetworkGuide drew are not finite"):
        guide.sample(50) if draw == "sample" else guide.median()


def test_draws_of_rows_are_looked_at() -> None:
    guide = spoilt(ConditionalHyperNetworkGuide(by_row))
    with pytest.raises(NonFiniteError, match=r"parameter '.*' of the guide"):
        guide.sample(3, Y)


def test_infinite_masks_and_layers_that_were_never_run_pass() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = nn.Parameter(torch.tensor([-math.inf]), requires_grad=False)
            self.unused = nn.LazyLinear(3)

        def forward(self, y: torch.Tensor) -> None:
            pyro.sample("w", dist.Normal(self.mask.exp().sum(), 1.0))

    assert posterior_draws(Masked(), 3, Y)["w"].isfinite().all()
    assert predict(model, Masked(), Y, num_samples=3)["y"].shape == (3, 3)
