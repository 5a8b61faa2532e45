"""Discrete latents that no draw of a guide fixes: whose they are decides what is said of them."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate, infer_discrete
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, evaluate, fit, predict, to_arviz
from pyro_implicit.exceptions import SiteError

N = 40
X = torch.linspace(-1.0, 1.0, N)


def _guide(model: Any, *args: Any) -> HyperNetworkGuide:
    pyro.clear_param_store()
    return HyperNetworkGuide(model, init_from=None, init_scale=1e-6).setup(*args)


def test_choices_of_groups_are_told_where_they_are_drawn() -> None:
    """Rows point at their group: what they tell of its choice is in no guide."""
    group = torch.arange(N) % 4

    @config_enumerate
    def model(group: Tensor, y: Any = None) -> None:
        means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 9.0]), 1e-3).to_event(1))
        with pyro.plate("groups", 4):
            choice = pyro.sample("choice", dist.Bernoulli(0.5))
        mean = Vindex(means)[..., Vindex(choice)[..., group].long()]
        with pyro.plate("rows", len(group)):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=y)

    y = 9.0 * (group > 1)
    guide = _guide(lambda group, y: poutine.block(model, hide=["choice", "y"])(group), group, y)
    with pytest.warns(UserWarning, match=r"latents \['choice'\] are those of groups, and predict"):
        predict(model, guide, group, num_samples=5)
    held = poutine.condition(model, data={"choice": torch.tensor([0.0, 0.0, 1.0, 1.0])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = predict(held, guide, group, num_samples=5)["y"]
    torch.testing.assert_close(draws.mean(0), y, rtol=0, atol=0.5)


def test_choices_of_rows_are_not() -> None:
    @config_enumerate
    def model(x: Tensor, y: Any = None) -> None:
        means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 9.0]), 1e-3).to_event(1))
        with pyro.plate("rows", len(x)):
            choice = pyro.sample("choice", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(Vindex(means)[..., choice.long()], 0.1), obs=y)

    guide = _guide(model, X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(model, guide, X, num_samples=5)
        to_arviz(model, guide, X, X, num_samples=5)


@config_enumerate
def rows_in_groups(x: Tensor, y: Any = None) -> None:
    means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 9.0]), 1e-3).to_event(1))
    with pyro.plate("groups", 4, dim=-1):
        choice = pyro.sample("choice", dist.Bernoulli(0.5))
        with pyro.plate("rows", len(x), dim=-2):
            pyro.sample("y", dist.Normal(Vindex(means)[..., choice.long()], 0.1), obs=y)


@config_enumerate
def groups_of_times(x: Tensor, y: Any = None) -> None:
    means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 9.0]), 1e-3).to_event(1))
    with pyro.plate("groups", len(x), dim=-2):
        choice = pyro.sample("choice", dist.Bernoulli(0.5))
        with pyro.plate("times", 4, dim=-1):
            pyro.sample("y", dist.Normal(Vindex(means)[..., choice.long()], 0.1), obs=y)


@pytest.mark.long
def test_choices_of_groups_around_the_rows_are_told() -> None:
    """Predictions are of new rows of these groups; where the groups are the rows, of new ones."""
    x = torch.zeros(N, 4)
    guide = _guide(rows_in_groups, x, x)
    for use, args in ((predict, (x,)), (to_arviz, (x, x))):
        with pytest.warns(UserWarning, match=r"latents \['choice'\] are those of groups"):
            use(rows_in_groups, guide, *args, num_samples=3)
    guide = _guide(groups_of_times, x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(groups_of_times, guide, x, num_samples=3)
        to_arviz(groups_of_times, guide, x, x, num_samples=3)
        evaluate(groups_of_times, guide, x, x, num_samples=3)


def test_an_evaluation_tells_them_and_prints_the_density_that_a_sum_joins() -> None:
    x = torch.zeros(N, 4)
    guide = _guide(rows_in_groups, x, x)
    with pytest.warns(UserWarning, match=r"latents \['choice'\] are those of groups"):
        report = evaluate(rows_in_groups, guide, x, x, num_samples=3)
    assert "log_density" not in report["y"].scores
    assert "all sites  log density" in str(report)


@pytest.mark.long
def test_a_value_for_each_draw_as_the_error_says_gives_the_exact_prediction() -> None:
    """Spike and slab of one slope, its predictive moments by quadrature."""
    pyro.set_rng_seed(1)
    x = torch.randn(30)
    y = 0.35 * x + torch.randn(30)

    @config_enumerate
    def spike(x: Tensor, y: Any = None) -> None:
        inside = pyro.sample("inside", dist.Bernoulli(0.5))
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(inside * slope * x, 1.0), obs=y)

    guide = HyperNetworkGuide(spike)
    fit(spike, guide, x, y, seed=0, num_steps=600, progress=False)
    with pytest.raises(SiteError, match=r"one value for each draw of the guide.*discrete.md"):
        predict(spike, guide, x, num_samples=2)

    def with_choices(*args: Any, **kwargs: Any) -> None:
        drawn = poutine.trace(guide).get_trace(x, y)
        assigned = infer_discrete(poutine.replay(spike, drawn), first_available_dim=-2)
        with poutine.block():
            chosen = poutine.trace(assigned).get_trace(x, y).nodes["inside"]["value"]
        pyro.sample("inside", dist.Delta(chosen))

    grid = torch.linspace(-6.0, 6.0, 4001)
    inside = dist.Normal(grid[:, None] * x, 1.0).log_prob(y).sum(-1)
    inside = inside + dist.Normal(0.0, 1.0).log_prob(grid)
    evidence = inside.logsumexp(0) + (grid[1] - grid[0]).log()
    share = torch.sigmoid(evidence - dist.Normal(0.0, 1.0).log_prob(y).sum())
    density = (inside - inside.logsumexp(0)).exp()
    mean = share * (density * 2 * grid).sum()
    variance = share * (density * (2 * grid) ** 2).sum() - mean**2 + 1
    draws = predict(spike, with_choices, torch.tensor([2.0]), num_samples=2000, seed=0)["y"]
    assert abs(float(draws.mean() - mean)) < 4 * float(variance / 2000) ** 0.5
    assert abs(float(draws.var() / variance) - 1) < 4 * (2 / 2000) ** 0.5
