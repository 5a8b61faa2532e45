"""Guides that leave directions to their output noise are found, and no others."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, MMNNGuide, fit
from pyro_implicit.diagnostics import entropy_report
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.guides.sampler import Sampler
from pyro_implicit.guides.unfilled_directions import unfilled

M = 6


def made(generator, scale, factor=None, learn_scale=False):
    return Sampler(generator, Preconditioner(torch.zeros(M), factor), scale, learn_scale)


ROTATION = torch.linalg.qr(torch.randn(M, M, generator=torch.Generator().manual_seed(0)))[0]


@pytest.mark.parametrize("factor", [None, torch.full((M,), 10.0), 3 * ROTATION])
def test_what_is_left_to_a_small_noise(factor):
    torch.manual_seed(0)
    thin = made(MLPGenerator(2, M, (8,)), 1e-3, factor)
    found = unfilled([thin])
    assert found is not None and (found.directions, found.latents) == (M - 2, M)
    assert 3e-4 < found.share < 3e-3  # whatever the units
    full = made(ResidualGenerator(M, 4), 0.0)
    both = unfilled([full, thin])
    assert both is not None and (both.directions, both.latents) == (M - 2, 2 * M)


def test_what_is_filled():
    torch.manual_seed(0)
    assert unfilled([]) is None
    assert unfilled([made(ResidualGenerator(M, 4), 0.0)]) is None
    assert unfilled([made(MLPGenerator(M, M, (8,)), 1e-3)]) is None
    assert unfilled([made(MLPGenerator(2, M, (8,)), 0.5, None, "diagonal")]) is None


def line(y):
    w = pyro.sample("w", dist.Normal(torch.zeros(M), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w.sum(-1), 1.0), obs=y)


@pytest.mark.long
def test_fit_and_report_tell(monkeypatch):
    monkeypatch.setattr("pyro_implicit.training.fitting.fit._MIN_STEPS_TO_JUDGE_GUIDE", 20)
    guide = HyperNetworkGuide(line, noise_dim=2, scale=1e-3, init_from=None)
    result = fit(line, guide, torch.zeros(5), num_steps=20, progress=False, seed=0)
    text = "fill 2 of 6 directions: in the other 4 its draws have nothing but the output noise"
    assert any(text in warning for warning in result.warnings)
    tempered = LinearisedELBO(2, kl_weight=2.0)  # a guide that is too thin for any target
    guide = HyperNetworkGuide(line, noise_dim=2, scale=1e-3, init_from=None)
    result = fit(line, guide, torch.zeros(5), objective=tempered, num_steps=20, progress=False)
    assert any(text in warning for warning in result.warnings)
    with pytest.warns(UserWarning, match=text):
        report = entropy_report(guide, num_samples=20, num_inner=5, num_starts=1)
    assert "of 2 noises, for 6 latents" in str(report)
    for free in (HyperNetworkGuide(line, init_from=None), MMNNGuide(line, init_from=None)):
        result = fit(line, free, torch.zeros(5), num_steps=20, progress=False, seed=0)
        assert not any("directions" in warning for warning in result.warnings)
