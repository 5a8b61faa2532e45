"""
Three objectives of the literature, each written in one short file with public names only: that the
seam suffices is shown by what they do with every guide, and against closed forms.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.guides import ImplicitGuide
from pyro_implicit.objectives import ParticleObjective
from tests.contract.registry import GUIDES, MODELS
from tests.objectives.examples.amortised_svgd import AmortisedSVGD
from tests.objectives.examples.importance_weighted import ImportanceWeighted
from tests.objectives.examples.kernel_stein import KernelStein

EXAMPLES: dict[str, type[ParticleObjective]] = {
    "amortised SVGD": AmortisedSVGD,
    "importance weighted": ImportanceWeighted,
    "kernel Stein": KernelStein,
}
Y = torch.tensor([0.3, 1.1, 0.9])


def conjugate() -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(w, 0.5), obs=Y)


VARIANCE = 1 / (1 + 3 / 0.25)
MEAN = VARIANCE * Y.sum().item() / 0.25
EVIDENCE = dist.MultivariateNormal(torch.zeros(3), 0.25 * torch.eye(3) + 1).log_prob(Y).item()


class _Shift(torch.nn.Module):
    """A generator whose draws have a location and a deviation of their own, and nothing else."""

    def __init__(self, loc: float, deviation: float) -> None:
        super().__init__()
        self.loc = torch.nn.Parameter(torch.tensor(loc))
        self.deviation = torch.nn.Parameter(torch.tensor(deviation))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.loc + self.deviation * z


def gaussian(loc: float, deviation: float, scale: float = 0.05) -> HyperNetworkGuide:
    inner = math.sqrt(deviation**2 - scale**2)
    guide = HyperNetworkGuide(
        conjugate,
        generator=lambda m: _Shift(loc, inner),
        noise_dim=1,
        scale=scale,
        init_loc_fn=lambda site: torch.zeros(()),
    )
    return guide.setup()


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
def test_it_is_short_and_uses_public_names_alone(example: type) -> None:
    source = inspect.getsource(inspect.getmodule(example))  # type: ignore[arg-type]
    assert len(source.splitlines()) <= 60
    assert not re.findall(r"(?:self|batch|site|import)[. ]_(?!_)\w+", source)


def _square() -> Iterator[Any]:
    """Every example with every guide, by default looped and vectorised in turns."""
    for i, name in enumerate(EXAMPLES):
        for j, kind in enumerate(GUIDES):
            for vectorised, how in enumerate(("looped", "vectorised")):
                marks = [] if (i + j) % 2 == vectorised else [pytest.mark.slow]
                values = (EXAMPLES[name], kind, bool(vectorised))
                yield pytest.param(*values, id=f"{name}-{kind}-{how}", marks=marks)


@pytest.mark.long
@pytest.mark.parametrize(("example", "kind", "vectorised"), list(_square()))
def test_every_guide_is_served(example: Any, kind: str, vectorised: bool) -> None:
    case = MODELS["regression"]
    x, y = case.data()
    model = case.make()
    guide: ImplicitGuide = partial(GUIDES[kind], scale=0.05)(model)
    objective = example(4, vectorize_particles=vectorised)
    loss = objective.loss_and_grads(model, guide, x, y)
    grads = [p.grad for p in guide.parameters() if p.grad is not None]
    assert math.isfinite(loss) and grads
    assert all(grad.isfinite().all() for grad in grads) and any(grad.any() for grad in grads)
    assert math.isfinite(objective.loss(model, guide, x, y))


def test_importance_weights_bound_the_evidence_and_reach_it_at_the_posterior() -> None:
    right = ImportanceWeighted(20, num_inner=400, vectorize_particles=True)
    value = -right.loss(conjugate, gaussian(MEAN, math.sqrt(VARIANCE), 0.15))
    assert value == pytest.approx(EVIDENCE, abs=0.15)
    wrong = gaussian(MEAN + 0.6, math.sqrt(VARIANCE), 0.15)
    bounds = [
        -ImportanceWeighted(n, num_inner=100, vectorize_particles=True).loss(conjugate, wrong)
        for n in (2, 2, 2, 200)
    ]
    assert sum(bounds[:3]) / 3 < bounds[3] < EVIDENCE + 0.2


@pytest.mark.long
def test_the_stein_discrepancy_is_zero_at_the_posterior_alone() -> None:
    objective = KernelStein(600, vectorize_particles=True)

    def values(guide: Any) -> torch.Tensor:
        return torch.tensor([objective.loss(conjugate, guide) for _ in range(12)])

    right = values(gaussian(MEAN, math.sqrt(VARIANCE)))
    assert abs(right.mean()) < 4 * right.std() / math.sqrt(12)
    for wrong in (gaussian(MEAN + 0.3, math.sqrt(VARIANCE)), gaussian(MEAN, 0.5)):
        found = values(wrong)
        assert found.mean() > 4 * found.std() / math.sqrt(12)


@pytest.mark.long
def test_draws_follow_the_stein_direction_to_the_posterior() -> None:
    guide = gaussian(-1.0, 1.0)
    objective = AmortisedSVGD(60, vectorize_particles=True)
    svi = SVI(conjugate, guide, pyro.optim.Adam({"lr": 0.06}), objective)
    for _ in range(120):
        svi.step()
    draws = guide.sample(4000)["w"]
    assert draws.mean().item() == pytest.approx(MEAN, abs=0.1)
    assert draws.std().item() == pytest.approx(math.sqrt(VARIANCE), rel=0.35)  # few draws: narrow
