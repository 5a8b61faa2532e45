"""Supports of transformed distributions: where their draws are, and no wider."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.distributions import transforms as T
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit, predict, refine
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.supports.own_support import hidden_vector, own_support

Of = dist.TransformedDistribution


@pytest.mark.parametrize(
    ("fn", "low", "high"),
    [
        (Of(dist.Exponential(1.0), [T.AffineTransform(5.0, 2.0)]), 5.0, None),
        (Of(dist.Exponential(1.0), [T.AffineTransform(5.0, -2.0)]), None, 5.0),
        (Of(dist.Uniform(0.0, 1.0), [T.AffineTransform(5.0, -2.0)]), 3.0, 5.0),
        (Of(dist.Beta(2.0, 2.0), [T.AffineTransform(torch.ones(3), 2.0)]), 1.0, 3.0),
        (Of(dist.Exponential(1.0), [T.ExpTransform()]), 1.0, None),
        (Of(dist.HalfNormal(1.0), [T.AffineTransform(1.0, 1.0), T.ExpTransform()]), 2.718282, None),
        (Of(dist.Gamma(2.0, 1.0), [T.SigmoidTransform()]), 0.5, 1.0),
        (
            Of(dist.HalfNormal(1.0).expand([3]), [T.AffineTransform(5.0, 1.0)]).to_event(1),
            5.0,
            None,
        ),
        (Of(dist.LogNormal(0.0, 1.0), [T.AffineTransform(5.0, 1.0)]).mask(True), 5.0, None),
        (Of(dist.Normal(0.0, 1.0), [T.ExpTransform(), T.AffineTransform(5.0, 2.0)]), 5.0, None),
        (Of(dist.Normal(0.0, 2.0), [T.SigmoidTransform(), T.AffineTransform(-1, 2)]), -1.0, 1.0),
        (Of(dist.HalfNormal(1.0), [T.PowerTransform(2.0), T.AffineTransform(1, 3)]), 1.0, None),
        (
            Of(
                dist.Normal(0.0, 1.0),
                [T.ComposeTransform([T.ExpTransform(), T.AffineTransform(5.0, -2.0)])],
            ),
            None,
            5.0,
        ),
        (Of(dist.LogNormal(0.0, 1.0), [T.AffineTransform(5.0, 1.0)]).expand_by([4]), 5.0, None),
    ],
)
def test_bounds_go_through_the_transforms(fn: Any, low: float | None, high: float | None) -> None:
    support: Any = own_support(fn)
    draws = fn.sample((1000,))
    assert bool(support.check(draws).all())
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    for name, bound in {"lower_bound": low, "upper_bound": high}.items():
        found = getattr(support, name, None)
        assert (found is None) == (bound is None)
        if bound is not None:
            assert float(torch.as_tensor(found).max()) == pytest.approx(bound)
            assert float((draws - bound).abs().min()) < 0.1 * float(draws.std()) + 0.1


@pytest.mark.parametrize(
    "fn",
    [
        dist.Normal(0.0, 1.0),
        dist.LogNormal(0.0, 1.0),
        dist.Pareto(1.0, 1.0),
        dist.Weibull(1.0, 1.0),
        Of(dist.Normal(0.0, 1.0), [T.AffineTransform(1.0, 2.0)]),
        Of(dist.Normal(0.0, 1.0), [T.ExpTransform()]),
        Of(dist.Uniform(0.0, 1.0), [T.SigmoidTransform().inv]),
        Of(dist.Gamma(1.0, 1.0), [T.ExpTransform().inv]),
        Of(dist.Normal(torch.zeros(3), 1.0).to_event(1), [T.OrderedTransform()]),
        Of(
            dist.HalfNormal(torch.ones(2)).to_event(1),
            [T.LowerCholeskyAffine(torch.zeros(2), torch.eye(2))],
        ),
        Of(dist.HalfNormal(1.0), [T.AbsTransform()]),
        Of(dist.HalfNormal(1.0), [T.AffineTransform(0.0, torch.tensor([1.0, -1.0]))]),
    ],
)
def test_others_are_what_they_state(fn: Any) -> None:
    """Also where nothing can be told, as of what mixes entries."""
    stated, found = fn.support, own_support(fn)
    assert type(found) is type(stated) and str(found) == str(stated)


def shifted(y: Tensor, low: Any = 5.0) -> None:
    moved = [T.AffineTransform(low() if callable(low) else low, 1.0)]
    x = pyro.sample("x", Of(dist.Exponential(1.0), moved))
    pyro.sample("y", dist.Normal(x, 0.5), obs=y)


@pytest.mark.long
def test_chains_and_guides_stay_inside() -> None:
    """A shifted exponential, of which torch says that it is on the whole line."""
    y = torch.tensor(4.8)
    grid = torch.linspace(5.0, 9.0, 40_001)
    weights = (dist.Normal(grid, 0.5).log_prob(y) - grid).softmax(0)
    mean = float((weights * grid).sum())
    deviation = float((weights * (grid - mean).square()).sum().sqrt())
    chains = refine(shifted, 4, y, num_steps=4000, kernel="hmc", seed=0, progress=False)
    assert float(chains.draws["x"].min()) > 5
    assert float(chains.draws["x"].mean()) == pytest.approx(mean, abs=0.03)
    assert float(chains.draws["x"].std()) == pytest.approx(deviation, abs=0.03)
    guide = HyperNetworkGuide(shifted)
    fit(shifted, guide, y, num_steps=300, seed=0, progress=False)
    draws = guide.sample(4000)["x"]
    assert float(draws.min()) > 5
    assert float(draws.mean()) == pytest.approx(mean, abs=0.05)
    predict(shifted, guide, y, num_samples=3)


def test_a_shift_that_is_a_latent_is_refused() -> None:
    def model(y: Tensor) -> None:
        shifted(y, lambda: pyro.sample("a", dist.Normal(0.0, 1.0)))

    with pytest.raises(SiteError, match="'x' is computed from latent 'a'"):
        refine(model, 2, torch.tensor(1.5), num_steps=0, seed=0, progress=False)
    with pytest.raises(SiteError, match="'x' has the support"):
        fit(model, HyperNetworkGuide(model), torch.tensor(1.5), num_steps=5, progress=False)


@pytest.mark.parametrize(
    "fn",
    [
        Of(dist.Uniform(0.0, 1.0), [T.SigmoidTransform().inv, T.AffineTransform(0.0, 0.4)]),
        Of(dist.Gamma(2.0, 1.0), [T.ExpTransform().inv, T.AffineTransform(0.0, 1.0)]),
        Of(dist.Exponential(1.0), [T.ExpTransform().inv, T.AffineTransform(0.0, -1.0)]),
        Of(dist.Uniform(-1.0, 1.0), [T.TanhTransform().inv, T.AffineTransform(0.0, 1.0)]),
        Of(dist.Normal(0.0, 1.0), [T.ComposeTransform([])]),
    ],
    ids=["logistic", "log-gamma", "Gumbel", "of a hyperbolic tangent", "nothing"],
)
def test_the_end_of_a_domain_is_no_bound(fn: Any) -> None:
    """Torch has numbers for it that are not where draws end, as of the logit of 0."""
    support: Any = own_support(fn)
    assert isinstance(support, type(constraints.real))
    assert bool(support.check(1e6 * torch.randn(10)).all())


def test_bounds_of_events_are_those_of_all_their_entries() -> None:
    base = dist.Normal(torch.zeros(3), 1.0).to_event(1)
    support: Any = own_support(Of(base, [T.ExpTransform(), T.AffineTransform(1.0, 1.0)]))
    assert support.event_dim == 1 and support.base_constraint.lower_bound == 1.0
    assert support.check(torch.tensor([[2.0, 3.0, 4.0], [0.0, 3.0, 4.0]])).tolist() == [True, False]


VECTOR = dist.Normal(torch.zeros(3), 1.0).to_event(1)


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (Of(VECTOR, [T.OrderedTransform(), T.AffineTransform(2.0, 1.0)]), "OrderedTransform"),
        (Of(VECTOR, [T.StickBreakingTransform(), T.ExpTransform()]), "StickBreakingTransform"),
        (
            Of(VECTOR, [T.ComposeTransform([T.OrderedTransform(), T.ExpTransform()])]),
            "OrderedTransform",
        ),
        (Of(dist.Dirichlet(torch.ones(3)), [T.AffineTransform(0.0, 10.0)]), "Dirichlet"),
    ],
)
def test_a_support_that_nobody_knows_is_refused(fn: Any, what: str) -> None:
    def model() -> None:
        pyro.sample("a", fn)

    with pytest.raises(SiteError, match=f"support is not known: other transforms follow {what}"):
        HyperNetworkGuide(model).setup()


@pytest.mark.parametrize(
    "fn",
    [
        Of(VECTOR, [T.AffineTransform(0.0, 2.0), T.OrderedTransform()]),
        Of(VECTOR, [T.Permute(torch.tensor([1, 0, 2])), T.AffineTransform(1.0, 2.0)]),
        Of(VECTOR, [T.LowerCholeskyAffine(torch.zeros(3), torch.eye(3)), T.ExpTransform()]),
        Of(dist.MultivariateNormal(torch.zeros(3), torch.eye(3)), [T.ExpTransform()]),
        Of(VECTOR, []),
        Of(VECTOR, [T.OrderedTransform(), T.OrderedTransform().inv, T.AffineTransform(1.0, 2.0)]),
        Of(dist.Dirichlet(torch.ones(3)), [T.StickBreakingTransform().inv]),
        Of(dist.LKJCholesky(3, 1.0), [T.CorrCholeskyTransform().inv, T.ExpTransform()]),
        Of(
            VECTOR,
            [
                T.CatTransform([T.DiscreteCosineTransform()] * 2, -1, [2, 1]),
                T.AffineTransform(1.0, 2.0),
            ],
        ),
    ],
)
def test_one_that_is_known_is_not(fn: Any) -> None:
    assert hidden_vector(fn) is None
