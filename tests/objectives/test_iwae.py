"""Importance-weighted bounds: Pyro's own for ordinary guides, the evidence in the mean for ours."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide
from pyro_implicit.distributions import ImplicitDistribution, sample_implicit
from pyro_implicit.exceptions import ArgumentError, GuideError, SiteError
from pyro_implicit.generators import Generator
from pyro_implicit.objectives import IWAE, KPG, KSIVI
from tests.objectives.gaussian_case import GaussianCase, close
from tests.objectives.gaussian_case import model as gaussian

Y = torch.tensor([0.2, 1.1, -0.4, 0.8])


def regression(y: Any = Y, size: int = 4) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", size, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(w[..., 0] + w[..., 1] ** 2, s), obs=y)


def local(y: Any = Y, size: int = 4) -> None:
    with pyro.plate("data", size, subsample_size=len(y)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.LogNormal(w, 0.5))
        pyro.sample("y", dist.Normal(w, s), obs=y)


def value(objective: Any, model: Any, guide: Any, *args: Any) -> float:
    pyro.set_rng_seed(4)
    return objective.loss(model, guide, *args)


@pytest.mark.parametrize("make_guide", [AutoNormal, AutoMultivariateNormal, HyperNetworkGuide])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_it_is_pyros_bound_where_the_guide_has_a_density(make_guide: Any, alpha: float) -> None:
    options = {"init_from": None} if make_guide is HyperNetworkGuide else {}
    guide = make_guide(regression, **options)
    guide()
    theirs = Trace_ELBO(5) if alpha == 1 else RenyiELBO(alpha=alpha, num_particles=5)
    found = value(IWAE(5, alpha=alpha), regression, guide)
    assert found == pytest.approx(value(theirs, regression, guide), rel=1e-4)
    one = value(IWAE(1, alpha=alpha), regression, guide)
    assert one == pytest.approx(value(Trace_ELBO(), regression, guide), rel=1e-5)
    grads = []
    for objective in (IWAE(5, alpha=alpha), theirs):
        guide.zero_grad()
        pyro.set_rng_seed(4)
        objective.loss_and_grads(regression, guide)
        grads.append(torch.cat([p.grad.flatten() for p in guide.parameters()]))
    if alpha == 1 or make_guide is not HyperNetworkGuide:
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("proposal", ["gauss-newton", "prior"])
def test_the_mean_weight_is_the_evidence(proposal: str) -> None:
    case = GaussianCase(scale=0.5)
    objective = IWAE(2000, num_inner=2, proposal=proposal, vectorize_particles=True)
    weights = [-objective.loss(gaussian, case.guide) for _ in range(8)]
    close(torch.tensor(weights).exp(), torch.ones(()))


class Times(Generator):
    """One number, times the noise."""

    def __init__(self, by: float) -> None:
        super().__init__((1,), 1)
        self.by = by

    def forward(self, z: Tensor) -> Tensor:
        return self.by * z


def test_rows_of_one_logarithm_have_inner_draws_of_their_own() -> None:
    """With the same for all, the mean of the product is above that of the factors."""
    generator, num_rows = Times(0.6), 20  # with the scale below: the prior itself

    def model() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))  # in no plate: one logarithm for all rows
        with pyro.plate("rows", num_rows):
            pyro.sample("t", dist.Normal(torch.zeros(1), 1.0).to_event(1))

    def guide() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", num_rows):
            sample_implicit("t", ImplicitDistribution(generator, scale=0.8))

    options: Any = {"vectorize_particles": True, "max_plate_nesting": 1}
    objective = IWAE(4000, num_inner=1, proposal="prior", **options)
    pyro.set_rng_seed(0)
    with torch.no_grad():
        values = [-objective.loss(model, guide) for _ in range(50)]
    assert float(torch.tensor(values).exp().mean()) < 1.3  # shared: 12, the evidence is 1


@pytest.mark.long
def test_more_draws_and_a_smaller_alpha_are_tighter_and_all_are_bounds() -> None:
    case = GaussianCase(-0.6, 0.5, 0.4)
    values = [
        -IWAE(count, alpha=alpha, vectorize_particles=True).loss(gaussian, case.guide)
        for count, alpha in ((4000, 1.0), (4000, 0.5), (4000, 0.0))
    ]
    assert values == sorted(values) and abs(values[-1]) < 0.2
    few = [-IWAE(3).loss(gaussian, case.guide) for _ in range(30)]
    assert values[0] < sum(few) / 30 < values[-1]
    assert IWAE().is_bound


@pytest.mark.parametrize("vectorised", [False, True])
def test_rows_have_a_logarithm_each_and_serve_minibatches(vectorised: bool) -> None:
    plates = lambda y=Y, size=4: pyro.plate("data", size, subsample_size=len(y), dim=-1)  # noqa: E731
    guide = AutoNormal(local, create_plates=plates)
    guide(Y)
    objective = IWAE(6, vectorize_particles=vectorised, max_plate_nesting=1)
    seen: list[Any] = []

    def recorded(program: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            seen.append(poutine.trace(program).get_trace(*args, **kwargs))
            return seen[-1].nodes["_RETURN"]["value"]

        return run

    with pyro.validation_enabled(False):  # which would run the model at single draws as well
        found = value(objective, recorded(local), recorded(guide), Y[:2])
    passes, seen = [], seen[-2:] if vectorised else seen[-12:]
    for guide_trace, model_trace in zip(seen[::2], seen[1::2], strict=True):
        passes.append(_rows(model_trace) - _rows(guide_trace))
    log_weights = torch.cat(passes)
    assert log_weights.shape == (6, 2)
    expected = -2 * (log_weights.logsumexp(0) - torch.tensor(6.0).log()).sum()
    assert found == pytest.approx(expected.item(), rel=1e-4)


def _rows(trace: Any) -> torch.Tensor:
    """The log-density of each of two rows, by draw, without the weight of the others."""
    trace.compute_log_prob()
    nodes = [n for n in trace.nodes.values() if n["type"] == "sample" and n["name"] != "data"]
    return sum(n["unscaled_log_prob"].reshape(-1, 2) for n in nodes)  # type: ignore[return-value]


def test_minibatches_are_refused_unless_each_row_has_its_own_logarithm() -> None:
    guide = AutoNormal(regression)
    guide()
    some = Y[:2]
    with pytest.raises(SiteError, match="plate 'data' shows 2 of its 4 rows"):
        IWAE(3).loss(regression, guide, some)
    for objective in (IWAE(1), IWAE(3, alpha=1.0)):
        assert torch.isfinite(torch.tensor(objective.loss(regression, guide, some)))
    one, elbo = (value(o, regression, guide, some) for o in (IWAE(1), Trace_ELBO()))
    assert one == pytest.approx(elbo, rel=1e-5)


def test_arguments_and_refusals() -> None:
    for name, wrong in (("alpha", 1.5), ("num_inner", 0), ("proposal", "flow")):
        with pytest.raises(ArgumentError, match=f"{name}="):
            IWAE(**{name: wrong})  # type: ignore[arg-type]
    assert IWAE(3, alpha=0.5).settings["alpha"] == 0.5
    guide = HyperNetworkGuide(regression, hidden_dims=(4,), init_from=None)
    with pytest.raises(GuideError, match="has scale 0"):
        IWAE(3).loss(regression, guide)


def enumerated(y: torch.Tensor = Y, size: int = 4) -> None:
    with pyro.plate("data", size, subsample_size=len(y)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        choice = dist.Categorical(torch.tensor([0.3, 0.7]))
        k = pyro.sample("k", choice, infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(w + k, 0.5), obs=y)


def by_hand(y: torch.Tensor = Y, size: int = 4) -> None:
    with pyro.plate("data", size, subsample_size=len(y)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        parts = dist.Normal(w[..., None] + torch.arange(2.0), 0.5)
        choice = dist.Categorical(torch.tensor([0.3, 0.7]))
        pyro.sample("y", dist.MixtureSameFamily(choice, parts), obs=y)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("make", [IWAE, KSIVI, KPG])
def test_discrete_latents_are_summed_out(make: Any, vectorised: bool) -> None:
    guide = ConditionalHyperNetworkGuide(by_hand, hidden_dims=(4,), scale=0.2).setup(Y)
    options: Any = {"proposal": "prior"} if make is IWAE else {}
    found = [
        value(
            make(4, vectorize_particles=vectorised, max_plate_nesting=1, **options), model, guide, Y
        )
        for model in (enumerated, by_hand)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
