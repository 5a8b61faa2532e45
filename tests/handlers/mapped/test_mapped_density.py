"""Densities at many draws in one run: those of single runs, NaN where a distribution refuses."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import config_enumerate
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.mapped import mapped_density
from pyro_implicit.handlers.mapped.mapped_density import MappedDensity

Y = torch.tensor([0.3, -0.5, 1.0, 0.2])


def normal(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w.sum(), scale), obs=y)


def refusing(y: Tensor) -> None:
    """A probability that is no probability at many draws."""
    a = pyro.sample("a", dist.Normal(0.5, 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(a * torch.linspace(0.8, 1.2, len(y))), obs=(y > 0).float())


def covariances(y: Tensor) -> None:
    """A matrix that is no covariance at many draws, where a map cannot ask."""
    a = pyro.sample("a", dist.Normal(0.5, 1.0))
    matrix = torch.eye(2) + a * torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(2), matrix), obs=y[:2])


def writing(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    means = torch.zeros(len(y))
    for t in range(1, len(y)):
        means[t] = a * y[t - 1]
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(means, 1.0), obs=y)


@config_enumerate
def mixture(y: Tensor) -> None:
    with pyro.plate("kinds", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        pyro.sample("y", dist.Normal(loc[k.long()], 1.0), obs=y)


def branching(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a if a > 0 else 2 * a, 1.0), obs=y)


MODELS: dict[str, Any] = {
    model.__name__: model for model in (normal, refusing, covariances, writing, mixture, branching)
}


def density(model: Any) -> LogJoint:
    guide = HyperNetworkGuide(model, init_from=None)
    guide(Y)
    return LogJoint(model, list(guide.sites), (Y,), {})


@pytest.mark.long
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_it_is_that_of_single_runs(name: str, seed: int) -> None:
    joint = density(MODELS[name])
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(9, sum(site.numel for site in joint.sites), generator=generator)
    mapped, expected = MappedDensity(joint), torch.stack([joint.in_double(u) for u in draws])
    for some in (slice(None), slice(2, 8), slice(0, 1)):
        found = mapped(draws[some])
        assert torch.allclose(found.double(), expected[some].double(), rtol=1e-5, equal_nan=True)
    if name == "refusing":
        assert torch.equal(expected.isnan(), (draws[:, 0] < 0) | (1.2 * draws[:, 0] > 1))


@pytest.mark.long
def test_which_models_are_mapped() -> None:
    known = {"normal": True, "writing": True, "mixture": True, "branching": False}
    for name, is_mapped in known.items():
        joint = density(MODELS[name])
        mapped = MappedDensity(joint)
        mapped(0.1 * torch.randn(4, sum(site.numel for site in joint.sites)))
        assert bool(mapped._most) is is_mapped, name


def test_large_data_are_gone_through_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_density, "_MAX_NUMBERS_OF_A_TENSOR", 11)
    mapped = MappedDensity(density(normal))
    mapped(torch.randn(4, 3))
    assert mapped._most == 0


@pytest.mark.parametrize("what", ["infer", "poutine"])
def test_checks_are_those_of_single_runs_whatever_pyro_validates(what: str) -> None:
    module = {"infer": pyro.infer, "poutine": pyro.poutine}[what]
    joint, draws = density(refusing), torch.linspace(0.1, 1.9, 7)[:, None]
    module.enable_validation(False)
    try:
        expected = torch.stack([joint.in_double(u) for u in draws])
        found = MappedDensity(joint)(draws)
        assert not module.is_validation_enabled()
    finally:
        module.enable_validation(True)
    assert torch.allclose(found, expected, equal_nan=True) and bool(expected.isnan().any())
    MappedDensity(joint)(draws)
    assert module.is_validation_enabled()


def test_what_a_model_keeps_of_its_last_run_is_a_number() -> None:
    kept: list[Tensor] = []

    def keeping(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        kept.append(2 * a)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    MappedDensity(density(keeping))(torch.randn(5, 1))
    assert float(kept[-1]) == float(kept[-1])
