"""Peers of a process: several networks as one mixture, and normal weights by a bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from benchmarks.papers.vip._vip_fits import train
from benchmarks.papers.vip._vip_peers import Ensemble, MeanField


def test_an_ensemble_has_the_moments_of_its_mixture() -> None:
    torch.manual_seed(0)
    fit = Ensemble(lambda: nn.Linear(2, 1), 3, 0.3)
    with torch.no_grad():
        fit.log_noise.copy_(torch.tensor([[0.1], [0.2], [0.4]]).log())
        x, y, new = torch.randn(5, 2), torch.randn(5), torch.randn(4, 2)
        mean, sd = fit.predict(x, y, new)
        f = torch.stack([net(new)[:, 0] for net in fit.prior])
        drawn = f + fit.noise * torch.randn(100_000, 3, 1)
        torch.testing.assert_close(mean, f.mean(0))
        torch.testing.assert_close(sd, drawn.flatten(0, 1).std(0), rtol=0.02, atol=0)
        outputs = torch.stack([net(x)[:, 0] for net in fit.prior])
        each = -Normal(outputs, fit.noise).log_prob(y).mean(1)
        assert fit.loss(x, y, 5).item() == pytest.approx(each.sum().item(), rel=1e-5)


@pytest.mark.long
def test_mean_field_finds_the_posterior_of_a_slope() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 50)[:, None]
    y = 0.7 * x[:, 0] + 0.3 * torch.randn(50)
    fit = MeanField(
        nn.Linear(1, 1, bias=False), 0.3, num_particles=100, num_draws=2000, prior=1.0, spread=0.1
    )
    fit.log_noise.requires_grad_(False)
    before = fit.divergence().item()
    train(fit, (x, y), range(600), rate=0.01)
    precision = 1 + x.square().sum() / 0.09
    loc, scale = fit.prior.loc[0].item(), fit.prior.log_scale[0].exp().item()
    assert loc == pytest.approx(float((x[:, 0] * y).sum() / 0.09 / precision), abs=0.03)
    assert scale == pytest.approx(float(precision**-0.5), rel=0.15)
    assert fit.divergence().item() > 0 and before > 0
    with torch.no_grad():
        _, sd = fit.predict(x, y, torch.ones(1, 1))
    assert float(sd) == pytest.approx(math.hypot(0.3, scale), rel=0.05)
