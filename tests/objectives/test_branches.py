"""Where a model asks for the value of a latent, and where it only seems to."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn

from pyro_implicit import BayesianModule, HyperNetworkGuide
from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives.branches import check_no_branch, why_it_branches

X = torch.ones(5)


def _model(ask: Any) -> Any:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0, validate_args=True))
        mean = w * x + ask(w, x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x)

    return model


ASKING = {
    "any": lambda w, x: 1.0 if (w > 0).any() else 0.0,
    "item": lambda w, x: w.detach().sum().item(),
    "float": lambda w, x: float(w.detach().sum()),
    "list": lambda w, x: sum(w.detach().reshape(-1).tolist()),
    "int": lambda w, x: x[int((w > 0).sum() > 0)],
}
SILENT = {
    "where": lambda w, x: torch.where(w > 0, 1.0, 0.0),
    "of data": lambda w, x: 1.0 if (x > 0).all() else x.sum().item(),
    "shape": lambda w, x: float(w.dim()),
    "no rule": lambda w, x: torch.bincount(torch.zeros(2).long()).sum(),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_value_that_is_asked_for(name: str) -> None:
    model = _model(ASKING[name])
    for guide in (HyperNetworkGuide(model, init_from=None), AutoNormal(model)):
        guide(X)
        with pytest.raises(SiteError, match=r"asks for the value.*\(line \d+ of test_branches.py"):
            check_no_branch(model, guide, (X,), {})


@pytest.mark.parametrize("name", SILENT)
def test_what_is_no_value_of_a_latent(name: str) -> None:
    model = _model(SILENT[name])
    guide = HyperNetworkGuide(model, init_from=None)
    guide(X)
    state = torch.get_rng_state()
    check_no_branch(model, guide, (X,), {})
    assert torch.equal(state, torch.get_rng_state())


def test_a_program_that_cannot_be_mapped_is_not_judged() -> None:
    model = _model(ASKING["any"])
    guide = AutoMultivariateNormal(model)
    guide(X)
    assert why_it_branches(model, guide, (X,), {}) is None  # the guide has no rule under vmap

    def fails(x: Tensor) -> None:
        raise KeyError("of the model")

    assert why_it_branches(fails, HyperNetworkGuide(model, init_from=None), (X,), {}) is None


def test_networks_and_callables_without_code_are_told_without_a_line() -> None:
    net = BayesianModule(nn.Linear(1, 1), dist.Normal(0.0, 1.0))

    class Model(nn.Module):
        def __call__(self, x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            f = net(x[:, None]).squeeze(-1)
            if (w > 0).any():
                f = f + w
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(f, 1.0), obs=x)

    model = Model()
    guide = HyperNetworkGuide(model, init_from=None)
    guide(X)
    assert why_it_branches(model, guide, (X,), {}) == ""
