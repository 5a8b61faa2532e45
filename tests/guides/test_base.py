"""ImplicitGuide: what it builds, draws and refuses (saving: see test_state and the contract)."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal, init_to_value

from pyro_implicit import (
    HyperNetworkGuide,
    ImplicitDistribution,
    LinearisedELBO,
    fit,
    log_predictive_density,
    predict,
)
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError, StateError


def model():
    pyro.sample("a", dist.LogNormal(0.0, 1.0))
    with pyro.plate("p", 3):
        pyro.sample("b", dist.Dirichlet(torch.ones(4)))


def test_a_trace_has_the_noise_the_flat_latent_and_a_delta_per_site():
    guide = HyperNetworkGuide(model).setup()
    nodes = poutine.trace(guide).get_trace().nodes
    name = f"_{guide._pyro_name}_latent"
    assert [n for n, node in nodes.items() if node["type"] == "sample" and n != "p"] == [
        f"{name}_noise",
        name,
        "a",
        "b",
    ]
    flat = nodes[name]
    assert isinstance(flat["fn"], ImplicitDistribution)
    assert flat["infer"]["is_auxiliary"] and nodes[f"{name}_noise"]["infer"]["is_auxiliary"]
    assert flat["infer"]["implicit_latents"] == ("a", "b")
    assert flat["value"].shape == (guide.latent_dim,) == (1 + 3 * 3,)
    for site in ("a", "b"):
        assert isinstance(nodes[site]["fn"], dist.Delta)
    torch.testing.assert_close(nodes["a"]["value"], flat["value"][0].exp())
    torch.testing.assert_close(nodes["a"]["fn"].log_density, -flat["value"][0])


def test_a_factorised_trace_has_a_flat_latent_per_site():
    guide = HyperNetworkGuide(model, factorized=True).setup()
    nodes = poutine.trace(guide).get_trace().nodes
    implicit = [n for n, node in nodes.items() if isinstance(node.get("fn"), ImplicitDistribution)]
    prefix = f"_{guide._pyro_name}"
    assert implicit == [f"{prefix}_a_latent", f"{prefix}_b_latent"]
    assert nodes[f"{prefix}_b_latent"]["infer"]["implicit_latents"] == ("b",)


def test_masked_out_the_log_jacobian_is_left_out():
    guide = HyperNetworkGuide(model).setup()
    with poutine.mask(mask=False):
        nodes = poutine.trace(guide).get_trace().nodes
    assert nodes["a"]["fn"].log_density == 0.0


def test_it_starts_where_init_loc_fn_says():
    b = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).expand(3, 4)
    start = init_to_value(values={"a": torch.tensor(7.0), "b": b})
    guide = HyperNetworkGuide(model, init_loc_fn=start, init_scale=1e-3).setup()
    median = guide.median(num_samples=200)
    torch.testing.assert_close(median["a"], torch.tensor(7.0), rtol=0.01, atol=0)
    torch.testing.assert_close(median["b"], b, rtol=0.02, atol=0)


def test_sites_without_a_density_start_at_the_image_of_zero():
    def flat():
        pyro.sample("a", dist.ImproperUniform(constraints.positive, (), (2,)))
        pyro.sample("b", dist.ImproperUniform(constraints.simplex, (), (3,)))

    median = HyperNetworkGuide(flat, init_scale=1e-3).setup().median(num_samples=200)
    torch.testing.assert_close(median["a"], torch.ones(2), rtol=0.01, atol=0)
    torch.testing.assert_close(median["b"], torch.full((3,), 1 / 3), rtol=0.01, atol=0)


def test_setup_returns_the_guide_and_again_starts_anew():
    guide = HyperNetworkGuide(model)
    assert guide.setup() is guide
    first = list(guide.parameters())
    guide.setup()
    assert not {id(p) for p in first} & {id(p) for p in guide.parameters()}


def test_training_mode_reaches_what_is_built_later():
    guide = HyperNetworkGuide(model).eval().setup()
    assert not guide.samplers[0].training


def test_options_of_the_model_are_passed_to_it():
    def sized(n, *, scale=1.0):
        pyro.sample("w", dist.Normal(torch.zeros(n), scale).to_event(1))

    assert HyperNetworkGuide(sized).setup(3, scale=2.0).latent_dim == 3
    assert HyperNetworkGuide(sized)(2, scale=0.5)["w"].shape == (2,)


def test_pyros_call_returns_a_tuple():
    guide = HyperNetworkGuide(model)
    a, b = guide.call()
    assert (a.shape, b.shape) == ((), (3, 4))


@pytest.mark.long
def test_quantiles_are_those_of_a_known_distribution():
    guide = HyperNetworkGuide(model).setup()
    low, high = guide.quantiles([0.1, 0.9], num_samples=20_000)["a"].log()
    draws = guide.sample(20_000)["a"].log()
    assert ((draws > low) & (draws < high)).float().mean() == pytest.approx(0.8, abs=0.02)


def test_a_guide_that_is_not_built():
    guide = HyperNetworkGuide(model)
    for attempt in (
        lambda: guide.samplers,
        lambda: guide.sites,
        lambda: guide.latent_dim,
        lambda: guide.sample(2),
        lambda: guide.median(),
    ):
        with pytest.raises(StateError, match=r"HyperNetworkGuide is not built yet: .*\.setup\("):
            attempt()


@pytest.mark.parametrize("num_samples", [0, -3])
def test_a_number_of_draws_below_one(num_samples):
    with pytest.raises(ArgumentError, match=f"num_samples={num_samples}; expected an integer >= 1"):
        HyperNetworkGuide(model).setup().sample(num_samples)


def test_a_discrete_latent_is_refused_by_name():
    def mixed():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("k", dist.Categorical(torch.ones(3)))

    with pytest.raises(SiteError, match=r"'k' is discrete \(Categorical\).*hide=\['k'\]"):
        HyperNetworkGuide(mixed).setup()
    hidden = HyperNetworkGuide(poutine.block(mixed, hide=["k"])).setup()
    assert [site.name for site in hidden.sites] == ["a"]


def test_a_model_without_latents_is_refused():
    def observed():
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    with pytest.raises(SiteError, match="has no latent site to infer"):
        HyperNetworkGuide(observed).setup()


def test_a_latent_in_a_plate_without_a_size_is_refused():
    def model():
        with pyro.plate("data"):
            pyro.sample("z", dist.Normal(torch.zeros(3), 1.0))

    with pytest.raises(SiteError, match=r"'z' is in plate 'data'.*pyro.plate\('data', size\)"):
        HyperNetworkGuide(model, init_from=None)()
    guide = HyperNetworkGuide(model, init_from=None, create_plates=lambda: pyro.plate("data"))
    assert guide()["z"].shape == (3,)


@pytest.mark.parametrize("factorized", [False, True])
def test_the_flat_latents_of_one_draw(factorized):
    def model():
        pyro.sample("a", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
        pyro.sample("b", dist.LKJCholesky(3, 1.0))

    guide = HyperNetworkGuide(model, init_from=None, factorized=factorized)
    assert guide.sample_latent().shape == (5,)  # builds the guide
    trace = poutine.trace(guide).get_trace()
    names = [name for name in trace.nodes if name.endswith("_latent")]
    noise = {name: node for name, node in trace.nodes.items() if name.endswith("_noise")}
    flat = torch.cat([trace.nodes[name]["value"] for name in names])
    again = poutine.condition(guide.sample_latent, {n: x["value"] for n, x in noise.items()})()
    assert torch.equal(again, flat)


def test_a_forgotten_to_event_is_refused():
    def forgotten():
        pyro.sample("w", dist.Normal(torch.zeros(5), 1.0))

    with pytest.raises(ShapeError, match=r"'w' has batch_shape \(5,\).*\.to_event\(1\)"):
        HyperNetworkGuide(forgotten).setup()


def test_a_list_passes_its_plates_to_the_guide():
    data = torch.linspace(-1, 1, 10)

    def local(idx):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 10, subsample=idx, dim=-1):
            z = pyro.sample("z", dist.Normal(mean, 1.0))
            pyro.sample("y", dist.Normal(z, 0.1), obs=data[idx])

    guide = AutoGuideList(
        local, create_plates=lambda idx: pyro.plate("data", 10, subsample=idx, dim=-1)
    )
    guide.append(AutoNormal(poutine.block(local, expose=["mean"])))
    guide.append(HyperNetworkGuide(poutine.block(local, expose=["z"])))
    svi = SVI(local, guide, pyro.optim.Adam({"lr": 0.01}), LinearisedELBO())
    for idx in (torch.tensor([7, 2, 5]), torch.arange(10).roll(3)):  # all rows, shuffled, too
        svi.step(idx)
        pyro.set_rng_seed(0)
        everything = guide(torch.arange(10))["z"]
        pyro.set_rng_seed(0)
        assert torch.equal(guide(idx)["z"], everything[idx])


def test_rows_of_a_batch_with_random_numbers_are_refused() -> None:
    """The latents of other rows would be trained."""

    def model(x, y):
        with pyro.plate("data", 10, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(x, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def plate(x, y):
        return pyro.plate("data", 10, subsample_size=len(x))

    guide = HyperNetworkGuide(model, create_plates=plate)
    rows = torch.zeros(10)
    guide(rows, rows)  # all rows are in their order
    with pytest.raises(SiteError, match=r"latents of each row of plate 'data'.*subsample=rows"):
        guide(rows[:4], rows[:4])


def test_the_first_minibatch_starts_all_rows():
    data = torch.linspace(1, 2, 10)

    def local(idx):
        with pyro.plate("data", 10, subsample=idx, dim=-1):
            z = pyro.sample("z", dist.LogNormal(data[idx], 0.1))
            pyro.sample("y", dist.Normal(z, 0.1), obs=data[idx])

    guide = HyperNetworkGuide(
        local,
        init_scale=1e-3,
        create_plates=lambda idx: pyro.plate("data", 10, subsample=idx, dim=-1),
    )
    guide(torch.tensor([3, 4, 5]))
    median = guide.median(num_samples=100)["z"].log()
    assert median.shape == (10,)
    expected = data[[3, 4, 5]].repeat(4)[:10]  # Pyro's own rule: the rows repeat
    torch.testing.assert_close(median, expected, rtol=0, atol=0.15)


def test_the_users_model_is_evaluated_as_it_is_during_a_search():
    calls = []

    def counted(site):
        calls.append(site["name"])
        return torch.zeros(())

    def scalar():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w, 1.0), obs=torch.tensor(1.0))

    HyperNetworkGuide(scalar, init_loc_fn=counted, init_from="laplace").setup()
    assert calls == ["w"]


@pytest.mark.parametrize("family", [dist.Normal, dist.LogNormal])
def test_a_latent_with_a_mixture_as_prior(family: Any) -> None:
    """torch's biject_to knows nothing of a mixture's support; it is that of the components."""

    def model() -> None:
        shares = dist.Categorical(torch.ones(2))
        components = family(torch.tensor([-1.0, 1.0]), 0.5)
        pyro.sample("w", dist.MixtureSameFamily(shares, components))

    guide = HyperNetworkGuide(model).setup()
    draws = guide.sample(5)["w"]
    assert bool(family(0.0, 1.0).support.check(draws).all())
    assert math.isfinite(LinearisedELBO(2).loss(model, guide))
    clone = HyperNetworkGuide.from_state_dict(guide.state_dict())
    pyro.set_rng_seed(0)
    first = guide.sample(3)["w"]
    pyro.set_rng_seed(0)
    torch.testing.assert_close(clone.sample(3)["w"], first)


def in_turns(turns):
    """Latents and data of five groups, one turn of a loop each."""

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        for i in turns():
            level = pyro.sample(f"level_{i}", dist.Normal(mean, 1.0))
            with pyro.plate(f"rows_{i}", y.shape[1]):
                pyro.sample(f"y_{i}", dist.Normal(level, 1.0), obs=y[i])

    return model


@pytest.mark.long
def test_latents_in_a_sequential_plate_are_those_of_a_loop():
    """Pyro's own autoguides refuse them."""
    y = torch.linspace(-1.0, 3.0, 20).reshape(5, 4)
    found = []
    for turns in (lambda: range(5), lambda: pyro.plate("groups", 5)):
        program = in_turns(turns)
        pyro.set_rng_seed(0)
        guide = HyperNetworkGuide(program)
        result = fit(program, guide, y, num_steps=20, progress=False, seed=0)
        density = log_predictive_density(program, guide, y, num_samples=10, seed=0)
        drawn = predict(program, guide, y, num_samples=3, seed=0)
        found.append((torch.tensor(result.history), density, torch.stack([*drawn.values()])))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    loaded = HyperNetworkGuide.from_state_dict(guide.state_dict())
    assert [site.name for site in loaded.sites] == ["mean"] + [f"level_{i}" for i in range(5)]


def test_a_sequential_plate_that_takes_some_turns_is_refused():
    program = in_turns(lambda: pyro.plate("groups", 5, subsample_size=3))
    with pytest.raises(SiteError, match="sequential plate 'groups' .* takes 3 of its 5 turns"):
        HyperNetworkGuide(program).setup(torch.zeros(5, 4))
