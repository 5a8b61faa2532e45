"""posterior_draws: any guide, latent sites only, constrained, stacked."""

from __future__ import annotations

import gc

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoIAFNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from pyro_implicit import HyperNetworkGuide, predict
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.inference.posterior_draws import posterior_draws

X, Y = torch.linspace(-1, 1, 12), torch.linspace(0, 2, 12)


def model(x, y=None):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("group", 3):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", 100, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w.sum() * x, scale), obs=y)


def function_guide(x, y=None):
    pyro.sample("scale", dist.LogNormal(0.0, 0.1))
    pyro.factor("penalty", torch.tensor(1.0), has_rsample=False)
    z = pyro.sample("z", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
    with pyro.plate("group", 3):
        pyro.sample("w", dist.Normal(z, 1.0).expand([3, 2]).to_event(1))


def two_part_guide():
    guide = AutoGuideList(model)
    guide.append(AutoNormal(poutine.block(model, expose=["w"])))
    guide.append(AutoMultivariateNormal(poutine.block(model, expose=["scale"])))
    return guide


GUIDES = {
    "AutoNormal": lambda: AutoNormal(model),
    "AutoMultivariateNormal": lambda: AutoMultivariateNormal(model),
    "AutoIAFNormal": lambda: AutoIAFNormal(model),
    "AutoDelta": lambda: AutoDelta(model),
    "AutoGuideList": two_part_guide,
    "function": lambda: function_guide,
}


@pytest.mark.parametrize("name", GUIDES)
def test_any_guide_gives_its_latent_sites_stacked(name):
    draws = posterior_draws(GUIDES[name](), 5, X, Y)
    assert {k: tuple(v.shape) for k, v in draws.items()} == {"scale": (5,), "w": (5, 3, 2)}
    assert not any(v.requires_grad for v in draws.values())
    assert (draws["scale"] > 0).all()


def test_draws_are_the_ones_of_the_traced_guide():
    guide = AutoNormal(model)
    guide(X, Y)
    pyro.set_rng_seed(1)
    draws = posterior_draws(guide, 4, X, y=Y)
    pyro.set_rng_seed(1)
    for s in range(4):
        trace = poutine.trace(guide).get_trace(X, Y)
        for name, value in draws.items():
            assert torch.equal(value[s], trace.nodes[name]["value"])


@pytest.mark.long
def test_moments_of_a_known_guide():
    def guide():
        pyro.sample("a", dist.Normal(torch.tensor([3.0, -1.0]), 0.5).to_event(1))

    a = posterior_draws(guide, 4000)["a"]
    assert torch.allclose(a.mean(0), torch.tensor([3.0, -1.0]), atol=0.04)
    assert torch.allclose(a.std(0), torch.tensor([0.5, 0.5]), atol=0.03)


def test_dtype_of_a_site_is_kept():
    def guide():
        pyro.sample("a", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.sample("k", dist.Bernoulli(0.5))

    draws = posterior_draws(guide, 3)
    assert draws["a"].dtype == torch.float64


def test_a_guide_with_sample_is_asked_for_all_draws_at_once():
    class Guide:
        calls: list[int] = []

        def __call__(self, *args):
            raise AssertionError("not to be run")

        def sample(self, num_samples):
            self.calls.append(num_samples)
            return {"a": torch.zeros(num_samples, 2, requires_grad=True) + 1.0}

    guide = Guide()
    draws = posterior_draws(guide, 7, "any", "arguments")
    assert guide.calls == [7] and draws["a"].shape == (7, 2) and not draws["a"].requires_grad


def test_draws_leave_the_parameters_as_they_were():
    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    svi.step(X, Y)
    before = {k: v.clone() for k, v in guide.named_parameters()}
    posterior_draws(guide, 3, X, Y)
    assert all(torch.equal(v, before[k]) for k, v in guide.named_parameters())
    assert torch.is_grad_enabled()


def test_no_trace_is_kept():
    guide = AutoNormal(model)
    guide(X, Y)
    gc.collect()
    before = sum(type(o) is poutine.Trace for o in gc.get_objects())
    posterior_draws(guide, 20, X, Y)
    assert sum(type(o) is poutine.Trace for o in gc.get_objects()) == before


@pytest.mark.parametrize("num_samples", [0, -1, True, 2.0, None])
def test_num_samples_is_checked(num_samples):
    with pytest.raises(ArgumentError, match="expected an integer >= 1|number of draws is missing"):
        posterior_draws(function_guide, num_samples, X)


def test_a_guide_without_latents_is_an_error():
    with pytest.raises(SiteError, match="the guide has no latent sample site"):
        posterior_draws(lambda: pyro.sample("a", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0)), 2)


def test_changing_sites_are_an_error():
    names = iter("ab")
    with pytest.raises(SiteError, match=r"\['a', 'b'\] appear in some runs"):
        posterior_draws(lambda: pyro.sample(next(names), dist.Normal(0.0, 1.0)), 2)


def test_changing_shapes_are_an_error():
    sizes = iter([2, 3])

    def guide():
        pyro.sample("a", dist.Normal(0.0, 1.0).expand([next(sizes)]).to_event(1))

    with pytest.raises(ShapeError, match=r"'a' had shape \(2,\) in the first run .* \(3,\)"):
        posterior_draws(guide, 2)


def test_a_model_in_the_place_of_the_guide_is_told():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.deterministic("twice", 2 * w)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    with pytest.warns(UserWarning, match=r"the guide observes \['y'\], as a model does") as told:
        posterior_draws(model, 3, X, Y)
    assert told[0].filename == __file__
    posterior_draws(poutine.block(model, hide=["y"]), 3, X, Y)  # and no function


def test_a_seed_gives_the_same_draws_and_leaves_the_stream_alone():
    def model():
        pyro.sample("a", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    for guide in (HyperNetworkGuide(model, init_from=None), AutoNormal(model)):
        guide()
        before = torch.get_rng_state()
        one, other, third = (posterior_draws(guide, 5, seed=s)["a"] for s in (0, 0, 1))
        assert torch.equal(one, other) and not torch.equal(one, third)
        assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(ArgumentError, match="seed"):
        posterior_draws(guide, 5, seed=-1)


def test_a_guide_of_pyro_that_was_stored_without_its_model():
    guide = AutoNormal(lambda: pyro.sample("w", dist.Normal(0.0, 1.0)))
    guide()
    guide._model = None  # as pickles of it are
    assert posterior_draws(guide, 3)["w"].shape == (3,)


def test_what_a_condition_holds_for_a_guide_is_a_draw() -> None:
    """As for Pyro's ``Predictive``: the model is given it, and draws nothing from the prior."""

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w, 0.01))

    def guide() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    for value in (torch.tensor(5.0), 5.0):
        held = poutine.condition(guide, data={"w": value})
        assert torch.equal(posterior_draws(held, 3)["w"], torch.full((3,), 5.0))
        drawn = predict(model, held, num_samples=20, seed=0)["y"]
        torch.testing.assert_close(drawn, torch.full((20,), 5.0), atol=0.1, rtol=0.0)
