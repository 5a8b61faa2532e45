"""Scales that many latents share, in guides without full rank."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, fit
from pyro_implicit.training.fitting import fit as module
from pyro_implicit.training.fitting.checks.shared_scales import warning_of_shared_scales


def groups() -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("groups", 300):
        pyro.sample("effect", dist.Normal(0.0, scale))


def alike() -> None:
    with pyro.plate("groups", 300):
        pyro.sample("effect", dist.Normal(0.0, 1.0))


NET = BayesianModule(
    nn.Sequential(nn.Linear(60, 6), nn.Tanh(), nn.Linear(6, 1)), dist.Normal(0.0, 1.0)
)


def network() -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    mean = NET(torch.ones(3, 60)).squeeze(-1)
    with pyro.plate("rows", 3):
        pyro.sample("y", dist.Normal(mean, scale), obs=torch.zeros(3))


@pytest.mark.parametrize(
    ("model", "options", "is_told"),
    [
        (groups, {"hidden_dims": (5,), "noise_dim": 20}, True),
        (groups, {}, False),  # a bijection
        (alike, {"hidden_dims": (5,), "noise_dim": 20}, False),
        (network, {}, False),
    ],
)
def test_it_is_told_where_a_perceptron_is_left_with_them(model, options, is_told) -> None:
    guide = HyperNetworkGuide(model, init_from=None, **options).setup()
    said = warning_of_shared_scales(guide)
    assert bool(said) is is_told
    if is_told:
        assert "('scale')" in said[0] and "generator=AutoregressiveGenerator" in said[0]


def test_other_guides_are_not_looked_at() -> None:
    assert warning_of_shared_scales(AutoNormal(groups)) == []
    assert warning_of_shared_scales(HyperNetworkGuide(groups)) == []  # not built


def test_a_fit_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_STEPS_TO_JUDGE_GUIDE", 2)
    guide = HyperNetworkGuide(
        groups, init_from=None, hidden_dims=(5,), noise_dim=20, learn_scale="diagonal", scale=0.5
    )
    objective = LinearisedELBO(2, vectorize_particles=True)
    result = fit(groups, guide, objective=objective, num_steps=2, progress=False, seed=0)
    assert any("that many others share ('scale')" in text for text in result.warnings)
