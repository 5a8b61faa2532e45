"""What the hook of an objective is given: looped and vectorised alike, by brute force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import GuideError
from pyro_implicit.objectives import ParticleBatch, ParticleObjective, Terms

pytestmark = pytest.mark.usefixtures("double")
Y = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=torch.float64)
MASK = torch.tensor([True, True, False, True])


def model(rows: Any = None) -> None:
    scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.1), 0.5))
    with pyro.plate("groups", 2, dim=-2):
        level = pyro.sample("level", dist.Normal(torch.zeros(()), scale))
    with (
        pyro.plate("data", 4, subsample=rows, dim=-1) as shown,
        pyro.poutine.mask(mask=MASK[shown]),
    ):
        mean = level.sum(-2, keepdim=True)
        pyro.sample("y", dist.Normal(mean, 1.0), obs=Y[shown])


class Look(ParticleObjective):
    """Keeps the batch."""

    pools = True
    needs_score = True

    def terms_of(self, batch: ParticleBatch) -> Terms:
        self.batch = batch
        self.score = batch.score()
        return {"joint": batch.log_joint.mean()}


def looked(vectorised: bool, rows: Any = None, count: int = 3) -> SimpleNamespace:
    guide = HyperNetworkGuide(model, scale=0.1, init_loc_fn=pyro.infer.autoguide.init_to_sample)
    guide.setup().double()
    objective = Look(count, vectorize_particles=vectorised, max_plate_nesting=2)
    loss = objective.loss(model, guide, rows)
    return SimpleNamespace(guide=guide, batch=objective.batch, score=objective.score, loss=loss)


def by_hand(u: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Likelihood, prior at the constrained latents, and log-Jacobian of one flat draw."""
    shown = torch.arange(4) if rows is None else rows
    scale, level = u[0].exp(), u[1:]
    likelihood = dist.Normal(level.sum(), 1.0).log_prob(Y[shown])[MASK[shown]].sum()
    prior = dist.LogNormal(0.1, 0.5).log_prob(scale) + dist.Normal(0.0, scale).log_prob(level).sum()
    return likelihood * 4 / len(shown), prior, u[0]


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 0])], ids=["all", "minibatch"])
@pytest.mark.parametrize("vectorised", [False, True], ids=["looped", "vectorised"])
def test_densities_and_scores(vectorised: bool, rows: Tensor | None) -> None:
    found = looked(vectorised, rows)
    (values,) = found.batch.values.values()
    (score,) = found.score.values()
    assert values.reshape(3, -1).shape == (3, 3) == score.reshape(3, -1).shape
    for index, flat in enumerate(values.reshape(3, 3).detach()):
        u = flat.clone().requires_grad_()
        likelihood, prior, jacobian = by_hand(u, rows)
        torch.testing.assert_close(found.batch.log_likelihood[index], likelihood)
        torch.testing.assert_close(found.batch.log_density_of_latents()[index], prior)
        torch.testing.assert_close(found.batch.log_jacobian[index], jacobian)
        torch.testing.assert_close(found.batch.log_prior[index], prior + jacobian)
        joint = likelihood + prior + jacobian
        torch.testing.assert_close(found.batch.log_joint[index], joint)
        (expected,) = torch.autograd.grad(joint, u)
        torch.testing.assert_close(score.reshape(3, 3)[index], expected)
    assert found.loss == pytest.approx(-found.batch.log_joint.mean().item())
    assert found.batch.explicit_entropy.tolist() == [0.0] * 3


@pytest.mark.parametrize("vectorised", [False, True], ids=["looped", "vectorised"])
def test_draws_their_noise_and_new_means(vectorised: bool) -> None:
    found = looked(vectorised)
    (site,) = found.batch.sites.values()
    (noise,) = found.batch.noise.values()
    assert noise.reshape(3, -1).unique(dim=0).shape[0] == 3  # each draw has its own
    near = site.distribution.given(noise).mean
    assert ((site.value - near).abs() < 6 * 0.1).all()
    (means,) = found.batch.means(5).values()
    assert means.reshape(5, -1).unique(dim=0).shape == (5, 3)
    assert len(found.batch) == 3 and found.batch.share == 1
    assert found.batch.leading(2, site).value.shape[0] == 2
    assert found.batch.leading(0, site) is None


@pytest.mark.parametrize("vectorised", [False, True], ids=["looped", "vectorised"])
@pytest.mark.parametrize("explicit", [False, True], ids=["implicit", "and explicit"])
def test_the_known_entropy_is_the_sum_of_its_parts(explicit: bool, vectorised: bool) -> None:
    """Bit for bit, and without a sum where there is one part."""
    parts = AutoGuideList(model) if explicit else HyperNetworkGuide(model, init_from=None)
    if explicit:
        parts.append(HyperNetworkGuide(poutine.block(model, hide=["scale"]), init_from=None))
        parts.append(AutoNormal(poutine.block(model, expose=["scale"])))
    objective = Look(3, vectorize_particles=vectorised, max_plate_nesting=2)
    objective.loss(model, parts)
    batch = objective.batch
    assert batch.known_entropy.equal(batch.explicit_entropy + batch.log_jacobian)
    assert bool(batch.explicit_entropy.any()) is explicit


def test_draws_that_nothing_trains_have_no_score() -> None:
    guide = HyperNetworkGuide(model).setup().double().requires_grad_(False)
    with pytest.raises(GuideError, match="requires_grad_"):
        Look(2).loss(model, guide)
