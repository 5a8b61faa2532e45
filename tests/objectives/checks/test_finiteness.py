"""Losses that are not finite name the site to blame."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import ImplicitDistribution, ImplicitELBO, LinearisedELBO
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.objectives.implicit_site import ImplicitSite

pytestmark = pytest.mark.usefixtures("double")


class _Joint(LinearisedELBO):
    """Reads all particles at once."""

    replaces = "kl"

    def estimate(self, site: ImplicitSite) -> Tensor:
        return site.value.square().mean()


def _guide_of(site: str) -> Callable[[], None]:
    generator = MLPGenerator(2, 2, skip=True)

    def guide() -> None:
        sample_implicit(site, ImplicitDistribution(generator))

    return guide


def _blame(objective: ImplicitELBO, model: Any, guide: Any) -> str:
    messages = []
    for way in (objective.loss, objective.differentiable_loss, objective.loss_and_grads):
        with pytest.raises(NonFiniteError) as caught:
            way(model, guide)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1
    return messages[0]


@pytest.mark.parametrize("particles", [1, 2])
@pytest.mark.parametrize("likelihood", ["expected", "per_datum"])
def test_a_site_of_the_model_is_named(particles: int, likelihood: str) -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("fine", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))
        pyro.sample("broken", dist.Normal(0.0, 1e-200), obs=torch.tensor(1.0))

    message = _blame(LinearisedELBO(particles, likelihood=likelihood), model, _guide_of("w"))
    term = "log_likelihood" if likelihood == "expected" else "log_predictive"
    assert message.startswith(f"{term} is not finite (-inf). Look at site 'broken' of the model.")
    assert "likelihood scale that reached zero" in message


def test_a_site_of_a_later_particle_is_named_too() -> None:
    calls = itertools.count()

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        bad = next(calls) % 3 == 2
        pyro.factor("penalty", torch.tensor(-math.inf if bad else 0.0))

    message = _blame(_Joint(3), model, _guide_of("w"))
    assert "Look at site 'penalty' of the model." in message


def test_the_implicit_site_is_named_if_its_entropy_is_to_blame() -> None:
    generator = MLPGenerator(2, 2, skip=True)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.zero_()

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    def guide() -> None:
        sample_implicit("w", ImplicitDistribution(generator))

    message = _blame(LinearisedELBO(), model, guide)
    assert message.startswith("entropy is not finite (-inf). Every log-density is finite")
    assert "look at the scale of ['w']" in message
    assert "the Jacobian of the generator is singular there" in message


def test_several_terms_are_named_together() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1e-200).to_event(1))
        pyro.factor("penalty", torch.tensor(-math.inf))

    message = _blame(LinearisedELBO(), model, _guide_of("w"))
    assert message.startswith("log_likelihood and log_prior are not finite (-inf, -inf).")
    assert "site 'w' of the model, 'penalty' of the model" in message
