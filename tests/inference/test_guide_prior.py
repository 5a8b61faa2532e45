"""A fitted guide as the prior of the next data: the same draws, and updates by Bayes' theorem."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    MMNNGuide,
    fit,
    predict,
)
from pyro_implicit.diagnostics import log_density
from pyro_implicit.exceptions import ArgumentError, GuideError, ShapeError, SiteError, StateError
from pyro_implicit.inference import GuidePrior, prior_from
from tests.inference.line import DESIGN, X, Y, line


def grouped(n: int = 6) -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("groups", n):
        theta = pyro.sample("theta", dist.Normal(0.0, scale))
        share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
        pyro.sample("y", dist.Normal(theta + share[..., 0], 1.0), obs=torch.zeros(n))


def bent(guide: HyperNetworkGuide) -> HyperNetworkGuide:
    """A guide whose parameters all moved at random, so that it is no start."""
    torch.manual_seed(1)
    with torch.no_grad():
        for param in guide.parameters():
            param.add_(0.02 * torch.randn_like(param))
    return guide


@pytest.mark.long
def test_the_density_of_the_new_model_is_the_guides_times_the_likelihood() -> None:
    """By the guide's density and a Jacobian of automatic differentiation."""
    guide = bent(HyperNetworkGuide(line, init_from=None).setup(X[:20], Y[:20]))
    prior = GuidePrior(guide)

    def flat(z: Tensor) -> Tensor:
        values = prior.transform_sample(z)
        return torch.cat([values["w"], values["b"][None]])

    for z in torch.randn(5, 4):
        fixed = poutine.condition(prior(line), {"prior_noise": z})
        joint = poutine.trace(fixed).get_trace(X[20:], Y[20:]).log_prob_sum()
        theta = flat(z)
        jacobian = torch.autograd.functional.jacobian(flat, z)
        by_guide = log_density(guide, {"w": theta[None, :3], "b": theta[3:]}).value
        likelihood = dist.Normal(DESIGN[20:] @ theta, 0.5).log_prob(Y[20:]).sum()
        expected = by_guide + jacobian.slogdet().logabsdet + likelihood
        torch.testing.assert_close(joint, expected.reshape(()).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(["default", "factorized", "output noise", "learned", "matrix"]),
    batch=st.sampled_from([(), (3,), (2, 3)]),
    seed=st.integers(0, 99),
)
def test_the_new_sites_are_what_the_guide_makes_of_the_noise(
    kind: str, batch: tuple[int, ...], seed: int
) -> None:
    guide = bent(_guide(kind))
    torch.manual_seed(seed)
    prior = GuidePrior(guide)
    z = torch.randn(*batch, prior.noise_dim)
    values = prior.transform_sample(z)
    for i in range(max(1, z[..., 0].numel())):
        one = z.reshape(-1, prior.noise_dim)[i]
        trace = poutine.trace(poutine.condition(prior(grouped), {"prior_noise": one})).get_trace()
        for site in guide.sites:
            node = trace.nodes[site.name]
            flat = values[site.name].reshape(-1, *site.shape)[i]
            torch.testing.assert_close(node["value"], flat)
            assert float(node["fn"].log_prob(node["value"]).sum()) == 0.0  # its prior is gone
        left = [name for name, _ in trace.iter_stochastic_nodes()]  # but the noise, given
        assert left == ["groups"]  # a plate's rows


def _guide(kind: str) -> HyperNetworkGuide:
    options: dict[str, Any] = {
        "default": {},
        "factorized": {"factorized": True},
        "output noise": {"scale": 0.3, "hidden_dims": (5,), "noise_dim": 2},
        "learned": {"scale": 0.3, "learn_scale": "diagonal", "hidden_dims": (5,), "noise_dim": 2},
        "matrix": {},
    }
    make = MMNNGuide if kind == "matrix" else HyperNetworkGuide
    return make(grouped, init_from=None, **options[kind]).setup()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["default", "factorized", "learned", "matrix"])
def test_draws_are_those_of_the_guide(kind: str) -> None:
    guide = bent(_guide(kind))
    prior = GuidePrior(guide)
    torch.manual_seed(2)
    drawn = guide.sample(20_000)
    made = prior.transform_sample(torch.randn(20_000, prior.noise_dim))
    for name, value in drawn.items():
        flat, other = value.reshape(20_000, -1), made[name].reshape(20_000, -1)
        for level in (0.1, 0.3, 0.5, 0.7, 0.9):  # a share's error is at most 0.0035
            share = (other < flat.quantile(level, 0)).float().mean(0)
            torch.testing.assert_close(share, torch.full_like(share, level), rtol=0, atol=0.025)


@pytest.mark.long
def test_both_modes_stay_until_data_tell_them_apart() -> None:
    """Yesterday the square was seen, today the sign: moments would leave a wide middle."""

    def square(y: Tensor) -> None:
        x = pyro.sample("x", dist.Normal(0.0, 2.0))
        pyro.sample("y", dist.Normal(x**2, 1.0), obs=y)

    guide = HyperNetworkGuide(square)
    fit(square, guide, torch.tensor(2.0), seed=0, num_steps=300, progress=False)
    x = guide.sample(4000)["x"]
    assert 0.3 < float((x > 0).float().mean()) < 0.7
    prior = GuidePrior(guide)
    z = torch.randn(20_000, prior.noise_dim)
    made = prior.transform_sample(z)["x"]
    weights = torch.softmax(dist.Normal(made, 1.0).log_prob(torch.tensor(2.0)), 0)
    grid = torch.linspace(-4, 4, 4001)
    density = dist.Normal(0.0, 2.0).log_prob(grid) + dist.Normal(grid**2, 1.0).log_prob(
        torch.tensor(2.0)
    )
    density = torch.softmax(density + dist.Normal(grid, 1.0).log_prob(torch.tensor(2.0)), 0)
    mean = float((density * grid).sum())
    assert float((weights * made).sum()) == pytest.approx(mean, abs=0.1)
    moments = prior_from(guide, seed=0)
    assert abs(float(moments.loc)) < 0.3  # between the modes


@pytest.mark.long
def test_a_network_goes_on_and_on() -> None:
    pyro.set_rng_seed(0)
    net = BayesianModule(
        nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), dist.Normal(0.0, 1.0)
    )

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        mean = net(x).squeeze(-1)
        with pyro.plate("data", x.shape[-2]):
            return pyro.sample("y", dist.Normal(mean, 0.3), obs=y)

    x = torch.linspace(-1, 1, 20).unsqueeze(-1)
    y = x.squeeze(-1).sin()
    names = []
    last: Any = model
    for step in range(4):
        guide = HyperNetworkGuide(last, init_from=None)
        result = fit(last, guide, x[step::4], y[step::4], seed=0, num_steps=10, progress=False)
        assert result.num_steps == 10
        assert not [w for w in result.warnings if "vectoris" in w]
        prior = GuidePrior(guide)
        names.append(prior.noise_name)
        draws = predict(last, guide, x, num_samples=5)
        assert draws["y"].shape == (5, 20)
        last = prior(last)
    assert names == ["prior_noise", "prior_noise_2", "prior_noise_3", "prior_noise_4"]


@pytest.mark.long
def test_vectorised_particles_give_the_same_loss_as_a_loop() -> None:
    prior = GuidePrior(bent(_guide("learned")))
    model = prior(grouped)
    guide = HyperNetworkGuide(model, init_from=None).setup()
    torch.manual_seed(0)
    found = []
    for vectorize in (True, False):
        elbo = LinearisedELBO(num_particles=20, vectorize_particles=vectorize)
        with torch.no_grad():
            found.append(torch.tensor([elbo.loss(model, guide) for _ in range(20)]))
    one, other = (losses.mean() for losses in found)
    error = sum(losses.var() / len(losses) for losses in found).sqrt()
    assert abs(one - other) < 4 * error < 0.2 * one


def test_it_is_a_copy_and_a_module() -> None:
    guide = _guide("default")
    prior = GuidePrior(guide)
    z = torch.randn(5, prior.noise_dim)
    before = prior.transform_sample(z)["theta"]
    bent(guide)
    torch.testing.assert_close(prior.transform_sample(z)["theta"], before)
    assert not any(param.requires_grad for param in prior.parameters())
    other = copy.deepcopy(GuidePrior(guide))
    other.load_state_dict(prior.state_dict())
    torch.testing.assert_close(other.transform_sample(z)["theta"], before)
    assert "3 sites of 19 entries of noise" in repr(prior)


def test_other_guides_are_refused() -> None:
    with pytest.raises(GuideError, match="found AutoNormal"):
        GuidePrior(AutoNormal(line))  # type: ignore[arg-type]
    with pytest.raises(StateError, match="not built yet"):
        GuidePrior(HyperNetworkGuide(line))


def test_conditional_guides_are_refused() -> None:
    def local(y: Tensor) -> None:
        with pyro.plate("data", 5):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(GuideError, match="found ConditionalHyperNetworkGuide"):
        GuidePrior(ConditionalHyperNetworkGuide(local))  # type: ignore[arg-type]


def test_other_models_are_refused() -> None:
    prior = GuidePrior(_guide("default"))

    def none() -> None:
        pyro.sample("other", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match="samples none of them"):
        prior(none)()

    def some() -> None:
        pyro.sample("scale", dist.HalfNormal(1.0))

    with pytest.warns(UserWarning, match=r"\['theta', 'share'\], which the model does not sample"):
        prior(some)()
    with pytest.raises(SiteError, match=r"'theta' has event shape \(\) and plates \{-1: 7\}"):
        prior(grouped)(7)
    with pytest.raises(ArgumentError, match="model"):
        prior(None)  # type: ignore[arg-type]


def test_noise_of_another_size_is_refused() -> None:
    prior = GuidePrior(_guide("default"))
    with pytest.raises(ShapeError, match=r"noise of shape \(3, 2\); expected \(..., 19\), such"):
        prior.transform_sample(torch.zeros(3, 2))
    with pytest.raises(ArgumentError, match="noise"):
        prior.transform_sample([1.0])  # type: ignore[arg-type]


def test_latents_of_rows_that_were_not_seen_are_refused() -> None:
    def model() -> None:
        with pyro.plate("rows", 6, subsample_size=3) as i:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(6)[i])

    def plates() -> pyro.plate:
        return pyro.plate("rows", 6, subsample_size=3)

    guide = HyperNetworkGuide(model, create_plates=plates, init_from=None).setup()
    with pytest.raises(SiteError, match="showed 3 of its 6 rows"):
        GuidePrior(guide)


def test_a_wider_prior_is_wider_in_the_noise() -> None:
    prior = GuidePrior(_guide("default"), widen=1.5)
    trace = poutine.trace(prior(grouped)).get_trace()
    z = trace.nodes["prior_noise"]["value"]
    expected = dist.Normal(0.0, 1.5).log_prob(z).sum()
    torch.testing.assert_close(trace.nodes["prior_noise"]["fn"].log_prob(z), expected)
    with pytest.raises(ArgumentError, match="widen"):
        GuidePrior(_guide("default"), widen=0.0)


def shifted(like: Any = None, event: int = 0, plate: int = 0) -> None:
    """A model of one site, in a plate or not, with another prior or event shape."""
    fn = dist.LogNormal(0.0, 1.0) if like is None else like
    if event:
        fn = fn.expand([event]).to_event(1)
    with pyro.plate("rows", plate) if plate else nullcontext():
        pyro.sample("t", fn)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"like": dist.Uniform(5.0, 6.0)}),
        ({}, {"like": dist.Normal(0.0, 1.0)}),
        ({"like": dist.Uniform(5.0, 6.0)}, {"like": dist.Uniform(5.0, 7.0)}),
        ({"event": 3}, {"event": 1}),
        ({"event": 3}, {}),
        ({"plate": 6}, {}),
        ({}, {"plate": 6}),
        ({"plate": 6}, {"event": 6}),
        ({"plate": 6}, {"plate": 1}),
        ({"plate": 1}, {"plate": 6}),
    ],
)
def test_sites_on_another_support_or_of_another_shape_are_refused(before: Any, after: Any) -> None:
    guide = HyperNetworkGuide(partial(shifted, **before), init_from=None).setup()
    prior = GuidePrior(guide)
    prior(partial(shifted, **before))()
    with pytest.raises(SiteError, match="'t' has"):
        prior(partial(shifted, **after))()


def test_a_site_with_a_value_is_refused() -> None:
    """Else the value would be dropped, and what was observed with it."""

    def model(t: Tensor | None = None) -> None:
        t = pyro.sample("t", dist.Normal(0.0, 1.0), obs=t)
        pyro.sample("y", dist.Normal(t, 1.0), obs=torch.tensor(0.5))

    prior = GuidePrior(HyperNetworkGuide(model, init_from=None).setup())
    value = {"t": torch.tensor(2.0)}
    for told in (partial(model, value["t"]), poutine.condition(model, value)):
        with pytest.raises(SiteError, match="'t' has a value in this model"):
            prior(told)()
    with pytest.raises(SiteError, match="'t' was given a value .*: condition 'prior_noise'"):
        poutine.condition(prior(model), value)()
    trace = poutine.trace(poutine.do(prior(model), value)).get_trace()  # an intervention is none
    assert float(trace.nodes["y"]["fn"].loc) == 2.0


@pytest.mark.parametrize("rows", [[3, 2, 1, 0], [2, 0], [1]])
def test_rows_are_known_by_their_numbers(rows: list[int]) -> None:
    def model(rows: Tensor | None = None) -> None:
        with pyro.plate("g", 4, subsample=rows) as i:
            t = pyro.sample("t", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(t, 0.01), obs=torch.arange(4.0)[i])

    prior = GuidePrior(bent(HyperNetworkGuide(model, init_from=None).setup()))
    z = {"prior_noise": torch.randn(4)}
    whole = poutine.trace(poutine.condition(prior(model), z)).get_trace()
    some = poutine.trace(poutine.condition(prior(model), z)).get_trace(torch.tensor(rows))
    densities = [t.nodes["y"]["fn"].log_prob(t.nodes["y"]["value"]) for t in (whole, some)]
    torch.testing.assert_close(densities[1], densities[0][rows])


def test_two_priors_of_one_model() -> None:
    def one() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))

    def other() -> None:
        pyro.sample("b", dist.LogNormal(0.0, 1.0))

    def both() -> None:
        one(), other()

    first = GuidePrior(HyperNetworkGuide(one, init_from=None).setup())
    second = GuidePrior(HyperNetworkGuide(other, init_from=None).setup(), noise_name="more")
    latents = HyperNetworkGuide(second(first(both)), init_from=None).setup().sites
    assert [site.name for site in latents] == ["more", "prior_noise"]
    with pytest.raises(ArgumentError, match="noise_name"):
        GuidePrior(HyperNetworkGuide(one, init_from=None).setup(), noise_name=3)  # type: ignore[arg-type]


def test_a_state_of_other_sites_is_refused_and_widen_is_kept() -> None:
    guide = _guide("default")
    prior = GuidePrior(guide)
    prior.load_state_dict(GuidePrior(guide, widen=2.0).state_dict())
    assert float(prior.widen) == 2.0
    other = GuidePrior(HyperNetworkGuide(line, init_from=None).setup(X, Y))
    with pytest.raises(
        StateError, match=r"has sites \['scale', 'theta', 'share'\]; this prior has"
    ):
        other.set_extra_state(prior.get_extra_state())


def test_no_prior_of_a_guide_or_for_a_part_of_a_network() -> None:
    prior = GuidePrior(_guide("default"))
    for wrong in (prior, AutoNormal(grouped)):
        with pytest.raises(ArgumentError, match=r"expected the model .*HyperNetworkGuide\(prior"):
            prior(wrong)
    with pytest.raises(ArgumentError, match=r"is a module.*prior\(model\)"):
        BayesianModule(nn.Linear(2, 1), prior=prior)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["laplace", "hessian", "full-rank"])
def test_starts_by_curvature_take_the_model_of_a_default_guide(start: str) -> None:
    """Second derivatives of the guide's own density, many directions at once."""
    model = GuidePrior(bent(HyperNetworkGuide(line, init_from=None).setup(X[:20], Y[:20])))(line)
    guide = HyperNetworkGuide(model, init_from=start).setup(X[20:], Y[20:])
    assert all(bool(value.isfinite().all()) for value in guide.sample(3).values())
