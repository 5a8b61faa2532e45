"""Where chains begin: modes, guides, lists of guides, draws; and what cannot be a start."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import HyperNetworkGuide, refine
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, SiteError
from tests.chains.models import X, Y, line, local

#: a density with parameters, not a model of data
of_no_data = pytest.mark.filterwarnings("ignore:the model observes nothing:UserWarning")


def begun(start, model=line, args=(X, Y), **options):
    options = {"num_chains": 4, "num_steps": 0, "seed": 0, "progress": False} | options
    return refine(model, start, *args, **options)


def delta(value: float):
    def guide(*args):
        pyro.sample("w", dist.Delta(torch.full((2,), value), event_dim=1))
        pyro.sample("sigma", dist.Delta(torch.tensor(value)))

    return guide


@pytest.mark.long
def test_modes_of_few_latents_are_maxima():
    chains = begun(4)
    u = chains.by_chain[:, 0]
    assert (u - u[0]).abs().max() < 1e-2  # there is one mode
    density = chains._program.density(chains.sites, torch.float32)
    with density.ready(u):
        assert density(u)[1].abs().max() < 0.1
    assert chains.num_gradients > 0 and chains.num_steps == 0


def wide(x):
    with pyro.plate("wide", 40):
        pyro.sample("z", dist.Normal(x, 0.1))


def test_data_that_were_forgotten_are_told():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x, 1.0).to_event(1), obs=y)

    with pytest.warns(UserWarning, match=r"observes nothing.*'w', 'y', is a latent.*refine\("):
        begun(2, model, (X,), mode_steps=1)


@pytest.mark.long
@of_no_data
def test_modes_of_many_latents_by_adam_with_early_stop():
    x = torch.linspace(-1, 1, 40)
    chains = begun(2, wide, (x,), num_chains=3, mode_steps=1200)
    torch.testing.assert_close(chains.draws["z"][:, 0], x.expand(3, 40), atol=0.02, rtol=0)
    assert torch.equal(chains.by_chain[0], chains.by_chain[2])  # they take turns
    assert chains.num_gradients < 2 * 1200  # it did not take them all


@of_no_data
def test_few_steps_are_few():
    chains = begun(2, wide, (torch.zeros(40),), mode_steps=7)
    assert chains.num_gradients < 2 * 7 + 20


@of_no_data
def test_starts_differ_and_lie_between_median_and_prior():
    chains = begun(4, wide, (torch.zeros(40),), mode_steps=1, dispersion=1.0)
    spread = chains.by_chain.std().item()
    assert 0.05 < spread < 0.2
    assert begun(4, wide, (torch.zeros(40),), mode_steps=1, dispersion=0.0).by_chain.std() < 0.06


def improper():
    pyro.sample("x", dist.ImproperUniform(dist.constraints.positive, (), ()))
    pyro.sample("y", dist.Normal(0.0, 1.0))
    pyro.factor("f", torch.tensor(0.0))


@pytest.mark.long
def test_latents_that_cannot_be_drawn_are_dispersed_all_the_same():
    chains = begun(4, improper, (), mode_steps=1)
    assert bool(chains.by_chain.isfinite().all())


def test_a_guide_gives_its_draws():
    guide = HyperNetworkGuide(line, hidden_dims=(4,)).setup(X, Y)
    chains = begun(guide, num_chains=6)
    assert chains.draws["w"].shape == (6, 1, 2) and chains.draws["sigma"].shape == (6, 1)
    assert len(chains.draws["w"].flatten(1).unique(dim=0)) == 6
    assert bool((chains.draws["sigma"] > 0).all())


def test_guides_take_turns():
    chains = begun([delta(0.5), AutoNormal(line), delta(1.5)], num_chains=5)
    sigma = chains.draws["sigma"][:, 0]
    torch.testing.assert_close(sigma[[0, 2, 3]], torch.tensor([0.5, 1.5, 0.5]))


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_draws_by_site(count):
    given = {"w": torch.randn(count, 2), "sigma": torch.rand(count) + 0.1}
    chains = begun(given)
    places = [i * count // 4 for i in range(4)] if count >= 4 else [i % count for i in range(4)]
    torch.testing.assert_close(chains.draws["w"][:, 0], given["w"][places])
    torch.testing.assert_close(chains.draws["sigma"][:, 0], given["sigma"][places])


def test_unconstrained_draws():
    u = torch.randn(4, 3)
    torch.testing.assert_close(begun(u).by_chain[:, 0], u)


@pytest.mark.long
def test_chains_are_a_start_too():
    first = begun(4)
    again = begun(first)
    torch.testing.assert_close(again.by_chain.sum(), first.by_chain.sum())


@pytest.mark.parametrize(
    ("start", "error", "text"),
    [
        (0, ArgumentError, "start=0"),
        (5, ArgumentError, "start=5; expected an integer >= 1 and <= 4"),
        (True, ArgumentError, "a number of modes to search for"),
        (None, ArgumentError, "a number of modes to search for"),
        ("laplace", ArgumentError, "a number of modes to search for"),
        ([], ArgumentError, "a list of 0 guides for 4 chains"),
        ([3], ArgumentError, r"start\[0\]"),
        (AutoNormal, ArgumentError, "is the class AutoNormal"),
        (torch.zeros(4), ShapeError, r"unconstrained draws \(n, m\)"),
        (torch.zeros(4, 5), ShapeError, r"unconstrained draws\s+\(n, 3\), the sites in the order"),
        (torch.zeros(0, 3), ShapeError, r"unconstrained draws\s+\(n, 3\)"),
        (torch.full((4, 3), math.nan), ArgumentError, "NaN"),
        (
            {"w": torch.zeros(3, 2)},
            SiteError,
            r"start has values of sites \['w'\].*may be data that",
        ),
        ({"w": torch.zeros(3, 2), "sigma": torch.ones(2)}, ShapeError, "same n >= 1"),
        ({"w": torch.zeros(3, 2), "sigma": -torch.ones(3)}, SiteError, "outside of its support"),
    ],
)
def test_what_is_no_start(start, error, text):
    with pytest.raises(error, match=text):
        begun(start)


@pytest.mark.long
def test_a_start_without_a_density():
    with pytest.raises(NonFiniteError, match="not finite at the start of 2 of 2 chains.*'y'"):
        begun(2, args=(X, Y * math.nan))
    given = {"w": torch.full((2, 2), 1e30), "sigma": torch.ones(2)}
    with pytest.raises(NonFiniteError, match="or give other starts"):
        begun(given)


# ---- models that chains cannot sample


def test_a_plate_that_shows_some_rows_is_refused():
    with pytest.raises(SiteError, match="shows 5 of its 12 rows.*the density of all data.*fit"):
        begun(2, args=(X[:5], Y[:5]))

    def random_rows(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y), subsample_size=3) as rows:
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    with pytest.raises(SiteError, match="'rows' around site .* shows 3 of its 12 rows"):
        begun(2, random_rows, (Y,))


@pytest.mark.parametrize("kernel", ["hmc", "mclmc"])
def test_supports_that_another_latent_decides_are_refused(kernel):
    """Chains would not leave the support of the run that they were read off."""

    def model(y):
        top = pyro.sample("top", dist.HalfNormal(2.0))
        low = pyro.sample("low", dist.Uniform(0.0, top))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(low, 1.0), obs=y)

    with pytest.raises(SiteError, match="'low' .* depends on another latent"):
        begun(2, model, (Y,), num_steps=100, kernel=kernel)


def test_a_support_that_the_data_decide_is_taken():
    def model(y):
        low = pyro.sample("low", dist.Uniform(0.0, y.abs().max()))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(low, 1.0), obs=y)

    begun(2, model, (Y,), kernel="hmc")


def test_draws_of_a_prior_that_the_model_refuses_are_no_reason_to_refuse_it():
    calls = []

    def model(y):
        low = pyro.sample("low", dist.Normal(0.0, 1.0))
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("this draw is not for me")
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(low, 1.0), obs=y)

    begun({"low": torch.zeros(4)}, model, (Y,), kernel="hmc")
    assert len(calls) > 2


def test_discrete_latents_are_refused():
    def mixture():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("x", dist.Normal(z, 1.0))

    with pytest.raises(
        SiteError, match="'z' is discrete.*enumerate.*sum it out in the model"
    ) as told:
        begun(2, mixture, ())
    assert "guide" not in str(told.value)


def test_a_model_without_latents():
    def observed():
        pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5))

    with pytest.raises(SiteError, match="no latent site to sample"):
        begun(2, observed, ())


@pytest.mark.long
def test_latents_of_every_row_are_fine_in_full_batches():
    chains = begun(torch.zeros(3, 13), local, (Y,), num_steps=60)
    assert chains.draws["mean"].shape == (4, 3, 12) and chains.draws["scale"].shape == (4, 3)


def test_latents_without_a_number():
    def empty():
        pyro.sample("a", dist.Normal(torch.zeros(0), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5))

    with pytest.raises(SiteError, match="latents 'a' of the model have no numbers"):
        begun(2, empty, ())


def test_a_latent_that_some_runs_leave_out():
    runs = itertools.count()

    def varying():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        if next(runs) == 0:
            pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5))

    with pytest.raises(SiteError, match="latent 'b' in some of its runs alone"):
        begun(2, varying, ())


def test_data_in_the_place_of_a_start_are_told() -> None:
    with pytest.raises(
        ArgumentError, match=r"come after start, which is a tensor of shape \(12, 2"
    ):
        refine(line, torch.ones(12, 2), torch.ones(3, 3), num_steps=0, progress=False)


def test_too_few_steps_are_told_before_the_model_is_run() -> None:
    def never(*_):
        raise AssertionError

    with pytest.raises(ArgumentError, match="15 gradients per chain left no draw"):
        refine(never, 2, X, Y, num_steps=15, progress=False)


@pytest.mark.parametrize(
    ("fn", "y"),
    [
        (lambda w: dist.Bernoulli(logits=w), torch.tensor([0.0, 2.0, 1.0])),
        (lambda w: dist.Poisson(w.exp()), torch.tensor([0.5, 1.0, 2.0])),
    ],
)
def test_data_outside_of_their_support_are_refused(fn, y):
    def model(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", fn(w[..., :1]), obs=y)

    for start in (2, torch.zeros(2, 2)):
        with pytest.raises(ArgumentError, match="outside of the support of"):
            refine(model, start, y, num_chains=2, num_steps=0, progress=False)


def test_what_is_deterministic_in_a_plate_observes_nothing():
    """Its value is an event of all rows, unlike data that count once for each."""

    def model(x, y):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            mean = pyro.deterministic("mean", slope * x)
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    x = torch.linspace(-1.0, 1.0, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refine(model, 2, x, x, kernel="hmc", num_steps=0, progress=False)


@pytest.mark.parametrize("num_steps", [0, 20])
def test_a_density_without_a_gradient_is_no_start(num_steps: int) -> None:
    """Masked NaN leave the density finite: modes would be starts, and no chain would move."""
    y = torch.tensor([1.0, torch.nan, 2.0])

    def model(y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 3), poutine.mask(mask=~y.isnan()):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    for start in (2, {"w": torch.zeros(2)}):
        with pytest.raises(
            NonFiniteError, match=r"gradient with respect to \['w'\] is not.*NaN in"
        ):
            refine(model, start, y, num_chains=2, num_steps=num_steps, progress=False)


@pytest.mark.long
def test_latents_whose_prior_depends_on_one_that_is_summed_out() -> None:
    """A mixture as a prior, by its choices: means by quadrature."""
    weights, locs, y = torch.tensor([0.3, 0.7]), torch.tensor([-2.0, 2.0]), torch.linspace(-1, 1, 4)

    def model(y: Any = None) -> None:
        with pyro.plate("rows", 4):
            z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
            t = pyro.sample("t", dist.Normal(locs[z], 1.0))
            pyro.sample("y", dist.Normal(t, 1.0), obs=y)

    start = 3.0 * torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    options: Any = {"num_chains": 32, "kernel": "hmc", "num_steps": 2000}
    chains = refine(model, start, y, seed=0, progress=False, **options)
    grid = torch.linspace(-9.0, 9.0, 4001)[:, None]
    prior = (weights.log() + dist.Normal(locs, 1.0).log_prob(grid)).logsumexp(-1, keepdim=True)
    mass = (prior + dist.Normal(grid, 1.0).log_prob(y)).softmax(0)
    mean = (mass * grid).sum(0)
    deviation = ((mass * grid.square()).sum(0) - mean.square()).sqrt()
    found = chains.draws["t"].flatten(0, 1)
    torch.testing.assert_close((found.mean(0) - mean) / deviation, torch.zeros(4), atol=0.1, rtol=0)
    torch.testing.assert_close(found.std(0) / deviation, torch.ones(4), atol=0.1, rtol=0)
