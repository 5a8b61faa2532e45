"""What is a latent of the guide must be one of the model, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate

from pyro_implicit import (
    AlphaEnergy,
    HyperNetworkGuide,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LinearisedELBO,
    MixtureDensityGuide,
    PosteriorPredictiveLoss,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import SiteError
from pyro_implicit.generators import ResidualGenerator
from pyro_implicit.objectives import IWAE
from pyro_implicit.objectives.checks.latent_pairing import check_same_weight

Make = Callable[..., Any]
Y = torch.tensor([-1.0, 0.5, 2.0])
OBJECTIVES: list[Make] = [
    LinearisedELBO,
    lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, **o),
    lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, contrast="prior", **o),
    lambda n, **o: AlphaEnergy(n, alpha=0.5, **o),
]


# ---- marks for enumeration


def test_marks_that_change_nothing_are_left_alone() -> None:
    """Of observed sites, and of continuous ones that the guide draws."""

    def model() -> None:
        p = pyro.sample("p", dist.Beta(2.0, 2.0), infer={"enumerate": "parallel"})
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Bernoulli(p), obs=Y.sign().clamp(0))

    marked_all: Any = config_enumerate(model)
    guide = HyperNetworkGuide(marked_all).setup()
    assert LinearisedELBO(2, vectorize_particles=True).loss(marked_all, guide) < float("inf")


# ---- latents of the guide that the model skips


def switch(on: bool = True) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    if on:
        pyro.sample("b", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(a, 1.0), obs=Y)


@pytest.mark.parametrize("make", OBJECTIVES)
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_latent_that_the_model_skips_is_refused(make: Make, vectorised: bool) -> None:
    guide = HyperNetworkGuide(switch, scale=0.1).setup()
    objective = make(2, vectorize_particles=vectorised)
    assert objective.loss(switch, guide) < float("inf")
    message = r"guide draws 'b', which the model does not sample in this call.*hide=\['b'\]"
    observed = pyro.condition(switch, {"b": torch.tensor(1.0)})
    for validate in (True, False):
        with pyro.validation_enabled(validate):
            with pytest.raises(SiteError, match=message):
                objective.loss(switch, guide, False)
            with pytest.raises(SiteError, match="guide draws 'b', which the model observes"):
                objective.loss(observed, guide)


def test_latents_told_by_name_alone_are_seen() -> None:
    generator = ResidualGenerator(2, 2)

    def guide(on: bool = True) -> None:
        site: Any = sample_implicit("ab", ImplicitDistribution(generator), latents=("a", "b"))
        pyro.sample("a", dist.Delta(site[..., 0]))
        if on:
            pyro.sample("b", dist.Delta(site[..., 1].exp(), -site[..., 1]))

    with pytest.raises(SiteError, match="guide draws 'b', which the model does not sample"):
        LinearisedELBO().loss(switch, guide, False)


def test_an_explicit_site_and_an_auxiliary_one() -> None:
    generator = ResidualGenerator(1, 1)

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))

    def guide(infer: Any) -> Callable[[], None]:
        def run() -> None:
            sample_implicit("w", ImplicitDistribution(generator))
            pyro.sample("extra", dist.Normal(0.0, 1.0), infer=infer)

        return run

    with pytest.raises(SiteError, match=r"'extra', which the model.*'is_auxiliary': True"):
        LinearisedELBO().loss(model, guide({}))
    assert LinearisedELBO().loss(model, guide({"is_auxiliary": True})) < float("inf")


def test_an_objective_without_entropy_does_not_mind() -> None:
    guide = HyperNetworkGuide(switch, scale=0.1).setup()
    with pytest.warns(UserWarning, match="vars in guide but not model"):
        assert PosteriorPredictiveLoss(2).loss(switch, guide, False) > 0


# ---- supports


def within_another_latent() -> None:
    scale = pyro.sample("scale", dist.Gamma(2.0, 1.0))
    share = pyro.sample("share", dist.Uniform(0.0, scale))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(share, 1.0), obs=Y)


def above_a_parameter() -> None:
    least = pyro.param("least", lambda: torch.tensor(0.1))
    with pyro.plate("data", 3):
        z = pyro.sample("z", dist.Pareto(least.expand(3), 2.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=Y)


def below_the_data(y: torch.Tensor = Y) -> None:
    z = pyro.sample("z", dist.Uniform(torch.zeros(2), y.max()).to_event(1))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=y)


@pytest.mark.long
@pytest.mark.parametrize("make", [*OBJECTIVES, PosteriorPredictiveLoss])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_support_that_moves_is_refused(make: Make, vectorised: bool) -> None:
    """The guide's draws stay in the support that they were mapped on when it was built."""
    objective = make(2, vectorize_particles=vectorised)
    guide = HyperNetworkGuide(within_another_latent)
    message = r"'share' has the support Interval\(.*it depends on another latent, a parameter or"
    with pytest.raises(SiteError, match=message):
        objective.loss_and_grads(within_another_latent, guide)
    pyro.clear_param_store()
    guide = HyperNetworkGuide(above_a_parameter).setup()
    assert objective.loss(above_a_parameter, guide) < float("inf")
    pyro.param("least").data.fill_(0.3)
    with pytest.raises(SiteError, match=r"'z' .*GreaterThan(Eq)?\(lower_bound=.*and had"):
        objective.loss(above_a_parameter, guide)
    guide = HyperNetworkGuide(below_the_data).setup()
    assert objective.loss(below_the_data, guide) < float("inf")
    with pytest.raises(SiteError, match=r"'z' .*support Interval\(lower_bound=\[0.0, 0.0\]"):
        objective.loss(below_the_data, guide, 2 * Y)


def test_another_kind_of_support_is_refused() -> None:
    def model(positive: bool) -> None:
        prior = dist.HalfNormal if positive else dist.Cauchy
        z = pyro.sample("z", prior(*[1.0] if positive else [0.0, 1.0]))
        pyro.sample("y", dist.Normal(z, 1.0), obs=Y[0])

    guide = HyperNetworkGuide(model).setup(True)
    LinearisedELBO().loss(model, guide, True)
    with pytest.raises(SiteError, match=r"support Real here and had GreaterThanEq\(lower"):
        LinearisedELBO().loss(model, guide, False)


def test_bounds_of_another_precision_are_the_same() -> None:
    def model(y: torch.Tensor = Y) -> None:
        ones = y.new_ones(7)
        z = pyro.sample("z", dist.Uniform(0.1 * ones, 0.7 * ones).to_event(1))
        pyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=y[0])

    guide = HyperNetworkGuide(model).setup().to(torch.float64)
    assert LinearisedELBO(2).loss(model, guide, Y.double()) < float("inf")

    def other(y: torch.Tensor = Y) -> None:
        pyro.sample("z", dist.Uniform(torch.zeros(7), 0.7 * torch.ones(7)).to_event(1))

    with pytest.raises(SiteError, match=r"upper_bound=a tensor of shape \(7,\)"):
        LinearisedELBO(2).loss(other, guide, Y)


# ---- rows that weigh more on one side


def _rows(x: torch.Tensor, y: torch.Tensor) -> None:
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)


@pytest.mark.parametrize(
    "objective", [AlphaEnergy(20, alpha=0.0), IWAE(20), AlphaEnergy(20, alpha=0.5)]
)
def test_rows_of_an_explicit_guide_weigh_as_in_the_model(objective: Any) -> None:
    x, y = torch.randn(2, 12)
    guide = MixtureDensityGuide(_rows)
    guide(x, y)
    assert objective.loss(_rows, guide, x, y) < float("inf")
    with pytest.raises(SiteError, match=r"'z' is in plate 'rows', which has 6 rows in all in the"):
        objective.loss(_rows, guide, x[:6], y[:6])


def _cut_guide(x: torch.Tensor, y: torch.Tensor) -> None:
    with pyro.plate("others", 60, subsample_size=len(x)):
        pyro.sample("z", dist.Normal(0.5 * (y - x), 0.5))


@pytest.mark.filterwarnings("ignore:Found plate statements in guide")
def test_a_plate_of_another_name_that_counts_more_in_the_guide_is_refused() -> None:
    x, y = torch.randn(2, 12)
    with pytest.raises(SiteError, match=r"in plate 'others', which has 60 rows in all there.* 12:"):
        IWAE(20).loss(_rows, _cut_guide, x, y)


@pytest.mark.filterwarnings("ignore:Found plate statements in guide")
def test_rows_of_one_number_that_show_others_are_refused() -> None:
    def half(x: torch.Tensor, y: torch.Tensor) -> None:
        with pyro.plate("rows", 24, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)

    nodes = {}
    for size in (12, 6):
        x, y = torch.randn(2, size)
        trace = poutine.trace(half).get_trace(x, y)
        trace.compute_log_prob()
        nodes[size] = {"z": trace.nodes["z"]}
    with pytest.raises(SiteError, match="in plates of other sizes, and has another weight"):
        check_same_weight(nodes[12], nodes[6])


def test_points_have_no_entropy_that_could_weigh() -> None:
    def half(x: torch.Tensor, y: torch.Tensor) -> None:
        with pyro.plate("rows", 24, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)

    def points(x: torch.Tensor, y: torch.Tensor, log_density: float = 0.0) -> None:
        with pyro.plate("rows", len(x)):
            pyro.sample("z", dist.Delta(0.5 * y, log_density=log_density))

    x, y = torch.randn(2, 12)

    def latent(program: Any, *args: Any) -> dict[str, Any]:
        return {"z": poutine.trace(program).get_trace(x, y, *args).nodes["z"]}

    check_same_weight(latent(half), latent(points))
    with pytest.raises(SiteError, match="24 rows in all in the model and 12 in the guide"):
        check_same_weight(latent(half), latent(points, -1.0))


@pytest.mark.filterwarnings("ignore:Found plate statements in guide")
def test_an_annealed_prior_in_a_plate_of_another_name_is_not_another_weight() -> None:
    def annealed(x: torch.Tensor, y: torch.Tensor) -> None:
        with pyro.plate("rows", 60, subsample_size=len(x)):
            with poutine.scale(scale=0.3):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)

    x, y = torch.randn(2, 12)
    AlphaEnergy(20, alpha=0.0).loss(annealed, _cut_guide, x, y)
