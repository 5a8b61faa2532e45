"""
What a user writes who has everything checked: ``mypy --strict`` must find no fault with it.

``mistakes`` is never run. Each line of it is one that the checker must find: where the package's
types were lost on the way, its comment would be one too many, which ``--strict`` tells.
"""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

import pyro_implicit as pi
from pyro_implicit.chains import Chains
from pyro_implicit.generators import Generator
from pyro_implicit.guides import ImplicitGuide
from pyro_implicit.inference import EvaluationReport
from pyro_implicit.objectives import ParticleBatch, Terms
from pyro_implicit.training import FitResult


class BestDraw(pi.ParticleObjective):
    """An objective of one's own."""

    pools = True

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """See :class:`ParticleObjective`."""
        return {"log_joint": batch.log_joint.max()}


class Shifted(Generator):
    """A generator of one's own."""

    full_rank = True

    def __init__(self, output_dim: int) -> None:
        super().__init__((output_dim,), output_dim)
        self.loc = nn.Parameter(torch.zeros(output_dim))

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        return self.loc + 0.1 * z

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {"type": "Shifted", "output_dim": self.output_dim}


network = pi.BayesianModule(nn.Linear(1, 1), dist.Normal(0.0, 1.0))


def model(x: Tensor, y: Tensor | None = None) -> None:
    """A Bayesian network with one deviation."""
    sigma = pyro.sample("sigma", dist.Gamma(2.0, 4.0))
    f: Tensor = network(x).squeeze(-1)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, sigma), obs=y)


def guides() -> list[ImplicitGuide]:
    """Every guide of daily use."""
    return [
        pi.HyperNetworkGuide(model, hidden_dims=(8,)),
        pi.HyperNetworkGuide(model, generator=Shifted),
        pi.MMNNGuide(model),
        pi.CMMNNGuide(model),
        pi.MixtureDensityGuide(model, num_components=2),
    ]


def objectives() -> list[pi.ParticleObjective]:
    """Objectives, one's own among them."""
    return [
        pi.LinearisedELBO(2),
        pi.LanczosELBO(2, num_steps=3),
        pi.SemiImplicitELBO(2, num_inner=4),
        BestDraw(2),
    ]


def main(num_steps: int, num_samples: int) -> Any:
    """From the data to ArviZ."""
    x = torch.linspace(-1.0, 1.0, 20).unsqueeze(-1)
    y = 0.5 * x.squeeze(-1)
    guide = guides()[0]
    result: FitResult = pi.fit(
        model, guide, x, y, objective=objectives()[0], num_steps=num_steps, progress=False, seed=0
    )
    result = pi.fit(model, guide, x, y, num_steps=2 * num_steps, progress=False, resume=result)
    report: EvaluationReport = pi.evaluate(model, guide, x, y, num_samples=num_samples)
    error: float = report.rmse.value
    predicted: dict[str, Tensor] = pi.predict(model, guide, x, num_samples=num_samples)
    draws: dict[str, Tensor] = pi.posterior_draws(guide, num_samples)
    density: Tensor = pi.log_predictive_density(model, guide, x, y, num_samples=num_samples)
    chains: Chains = pi.refine(model, guide, x, y, num_chains=2, num_steps=32, progress=False)
    assert error > 0
    assert predicted["y"].shape == (num_samples, 20)
    assert draws["sigma"].shape == (num_samples,)
    assert density.shape == (20,)
    assert len(chains.split()) == 2
    return pi.to_arviz(model, [guide, guide], x, y, num_samples=num_samples)


def mistakes(x: Tensor) -> None:
    """Each is found."""
    guide: pi.MMNNGuide = pi.HyperNetworkGuide(model)  # type: ignore[assignment]
    pi.fit(model, guide, x, num_steps="many")  # type: ignore[arg-type]
    pi.fit(x, guide)  # type: ignore[arg-type]
    pi.evaluate(model, guide, x).log_density + "nats"  # type: ignore[operator]
    pi.predict(model)  # type: ignore[call-arg]
    pi.predict(model, guide, x, num_samples=5).mean()  # type: ignore[attr-defined]
    pi.refine(model, guide, x, num_chains=0.5)  # type: ignore[arg-type]
    pi.to_arviz(model, guide, x, groups=5)  # type: ignore[arg-type]
    pi.LinearisedELBO("eight")  # type: ignore[arg-type]
