"""A mixture density guide for the latents of rows beside an implicit one for those of all."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoGuideList
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, MixtureDensityGuide, fit
from pyro_implicit.exceptions import SiteError

NUM_ROWS = 20
X = torch.randn(NUM_ROWS, 2, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] + 0.3


def rows(x: Tensor, y: Tensor | None = None) -> Any:
    return pyro.plate("rows", NUM_ROWS, subsample_size=len(x))


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(w * x[:, 0] + 0.5 * z, 0.3), obs=y)


def test_a_fit_of_both_has_a_result() -> None:
    guide = AutoGuideList(model, create_plates=rows)
    guide.append(HyperNetworkGuide(poutine.block(model, hide=["z"]), init_from=None))
    part = MixtureDensityGuide(poutine.block(model, hide=["w"]))
    guide.append(part)
    result = fit(model, guide, X, Y, num_steps=3, progress=False, seed=0)
    assert len(result.history) == 3
    assert not part.is_bijective and not part.is_bijective_given_context
    assert LinearisedELBO().is_bound_for(guide) and "a lower bound" in str(result)


def both(num_components: int, **options: Any) -> AutoGuideList:
    guide = AutoGuideList(model, create_plates=rows)
    first = poutine.block(model, hide=["z"])
    guide.append(HyperNetworkGuide(first, init_from=None, **options))
    part = poutine.block(model, hide=["w"])
    guide.append(MixtureDensityGuide(part, num_components=num_components))
    guide(X, Y)
    return guide


def test_its_bound_is_that_of_the_densities() -> None:
    """Pyro's own loss, which asks each part for its density, and the evidence above both."""
    guide = both(1)
    pyro.set_rng_seed(0)
    ours = LinearisedELBO(500, vectorize_particles=True, max_plate_nesting=1)
    theirs = Trace_ELBO(500, vectorize_particles=True, max_plate_nesting=1)
    losses = []
    for loss in (ours, theirs):
        pyro.set_rng_seed(1)
        losses.append(loss.loss(model, guide, X, Y))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    x = X[:, :1]
    covariance = x @ x.mT + (0.25 + 0.09) * torch.eye(NUM_ROWS)
    evidence = dist.MultivariateNormal(torch.zeros(NUM_ROWS), covariance).log_prob(Y)
    assert -losses[0] < evidence


def test_components_that_are_chosen_are_trained_by_densities() -> None:
    """The objective by default; where the implicit part has none, nothing can train both."""
    result = fit(model, both(2), X, Y, num_steps=3, progress=False, seed=0)
    assert isinstance(result.objective, Trace_ELBO)
    assert any("trained by the scores of their draws" in text for text in result.warnings)
    with pytest.raises(SiteError, match="is not reparameterised"):
        fit(model, both(2, scale=0.1), X, Y, num_steps=3, progress=False, seed=0)
