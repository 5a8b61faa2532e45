"""A peak that a fitted guide leaves out is told; nothing is said where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, fit
from pyro_implicit._random import RandomStream
from pyro_implicit.guides import ImplicitGuide
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.training.fitting import fit as module
from pyro_implicit.training.fitting.checks import missed_peaks as searching
from pyro_implicit.training.fitting.checks.missed_peaks import missed_peaks
from pyro_implicit.training.fitting.checks.screened_starts import screened_starts


def mixture(weight: float, apart: float) -> Any:
    """Two normal distributions of deviation 0.5 in the plane."""

    def model() -> None:
        locs = torch.tensor([[-apart, 0.0], [apart, 1.0]])
        parts = dist.Normal(locs, 0.5).to_event(1)
        weights = dist.Categorical(torch.tensor([1 - weight, weight]))
        pyro.sample("x", dist.MixtureSameFamily(weights, parts))

    return model


def at_one(model: Any, where: tuple[float, float], scale: float) -> ImplicitGuide:
    guide = HyperNetworkGuide(
        model,
        init_from=None,
        init_scale=scale,
        init_loc_fn=lambda site: torch.tensor(where),
    )
    guide()
    return guide


@pytest.mark.parametrize("weight", [0.02, 0.3, 0.7])
def test_a_mode_left_out_is_told_with_its_mass_and_place(weight: float) -> None:
    pyro.set_rng_seed(0)
    model = mixture(weight, 3.0)
    guide = at_one(model, (-3.0, 0.0), 0.5)
    told = missed_peaks(guide, model, (), {}, math.log(1 - weight)).text
    assert "a peak that the guide does not reach" in told
    assert "x = (3, 1)" in told
    # of the evidence, of which the bound knows one part: w / (w + (1 - w))
    assert f"about {weight:.0%} of the mass" in told


@pytest.mark.long
def test_a_peak_without_mass_about_it_is_not_told() -> None:
    """In the neck of a funnel Laplace's method is wrong by a factor of hundreds."""

    def funnels() -> None:
        y = torch.tensor([0.0, 0.1, -0.2, 2.0, 0.3, -0.1, 1.0, 0.0])
        with pyro.plate("pairs", 8):
            scale = pyro.sample("scale", dist.HalfCauchy(1.0))
            b = pyro.sample("b", dist.Normal(0.0, 0.1 * scale))
            pyro.sample("y", dist.Normal(b, 0.5), obs=y)

    guide = HyperNetworkGuide(funnels, init_from=None, init_scale=0.3)
    guide()
    told = missed_peaks(guide, funnels, (), {}, -9.135)  # the evidence, by grids
    assert not told.text and told.share == 0


@pytest.mark.parametrize("most", [60, 90, 120])
def test_peaks_that_were_found_count_where_the_search_runs_out(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_MAX_DENSITY_EVALUATIONS", most)
    pyro.set_rng_seed(0)
    model = mixture(0.7, 3.0)
    guide = at_one(model, (-3.0, 0.0), 0.5)
    told = missed_peaks(guide, model, (), {}, math.log(0.3)).text
    assert "x = (3, 1)" in told


def test_a_start_that_leads_nowhere_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pyro.set_rng_seed(0)
    model = mixture(0.7, 3.0)
    guide, search, count = at_one(model, (-3.0, 0.0), 0.5), searching.maximise, [0]

    def fails_first(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 1:
            raise RuntimeError("no")
        return search(*args)

    monkeypatch.setattr(searching, "maximise", fails_first)
    told = missed_peaks(guide, model, (), {}, math.log(0.3)).text
    assert "x = (3, 1)" in told


@pytest.mark.parametrize(
    ("model", "where", "scale"),
    [
        (mixture(0.5, 0.3), (0.0, 0.5), 0.6),  # one peak
        (mixture(0.5, 1.5), (0.0, 0.5), 2.0),  # both are reached
        (mixture(0.005, 3.0), (-3.0, 0.0), 0.5),  # hardly any mass
    ],
)
def test_nothing_is_told_where_nothing_is_left_out(model: Any, where: Any, scale: float) -> None:
    pyro.set_rng_seed(0)
    assert missed_peaks(at_one(model, where, scale), model, (), {}, 0.0).text == ""


def _far_and_narrow() -> None:
    """Nine tenths at 0, one tenth six deviations off in each of five dimensions, of width 0.3."""
    z = pyro.sample("z", dist.Normal(torch.zeros(5), 5.0).to_event(1))

    def part(weight: float, loc: float, scale: float) -> Any:
        return math.log(weight) + dist.Normal(loc, scale).log_prob(z).sum(-1)

    both = torch.logaddexp(part(0.9, 0.0, 1.0), part(0.1, 6.0, 0.3))
    pyro.factor("both", both - dist.Normal(0.0, 5.0).log_prob(z).sum(-1))


def _one_at_a_time() -> None:
    """The same with a branch on a value, which cannot be run for many draws at once."""
    _far_and_narrow()
    pyro.factor("branch", torch.tensor(0.0 if bool(torch.ones(1) > 0) else 1.0))
    z = pyro.sample("other", dist.Normal(0.0, 1.0))
    pyro.factor("none", 0.0 * z if float(z) < 1e9 else z)


def _at_zero(model: Any) -> ImplicitGuide:
    guide = HyperNetworkGuide(
        model,
        init_from=None,
        init_scale=1.0,
        init_loc_fn=lambda site: torch.zeros(site["fn"].shape()),
    )
    guide()
    return guide


def test_a_peak_that_one_point_in_thousands_leads_to_is_found() -> None:
    """By most seeds: nineteen of twenty, and without screening by none."""
    guide = _at_zero(_far_and_narrow)
    told = []
    for seed in range(4):
        with RandomStream(seed):
            told.append(missed_peaks(guide, _far_and_narrow, (), {}, math.log(0.9)))
    found = [one for one in told if one.text]
    assert len(found) >= 3 and all("z = (6, 6, 6, ...)" in one.text for one in found)
    assert all(math.isclose(one.share, 0.1, rel_tol=0.05) for one in found)


def test_points_are_screened_where_all_can_be_run_at_once_alone() -> None:
    """Of a model that must be run for each, a dozen starts are all."""
    guide = _at_zero(_one_at_a_time)
    joint = LogJoint(_one_at_a_time, guide.sites, (), {})
    draws = torch.randn(50, guide.latent_dim)
    density = SearchDensity(joint)
    assert not list(screened_starts(density, draws, draws, [draws[0]]))
    assert density.most_at_once == 0


@pytest.mark.parametrize("kind", ["index", "matrix"])
def test_what_fails_at_one_of_the_points_ends_the_screening_alone(kind: str) -> None:
    """Peaks that were found before are told."""
    table = torch.linspace(-1.0, 1.0, 21)

    def fragile() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 3.0))
        r = pyro.sample("r", dist.Normal(0.0, 0.22))
        if kind == "index":  # safe up to some 45 deviations of the prior
            pyro.factor("f", 0.0 * table[r.round().long() % 11 + (r.abs() > 0.6).long() * 99])
        else:
            one = torch.ones_like(r)
            rows = torch.stack([torch.stack([one, r], -1), torch.stack([r, one], -1)], -2)
            torch.linalg.cholesky(rows)
        parts = [math.log(0.5) + dist.Normal(loc, 0.5).log_prob(z) for loc in (-4.0, 4.0)]
        pyro.factor("two", torch.logaddexp(*parts) - dist.Normal(0.0, 3.0).log_prob(z))

    guide = HyperNetworkGuide(
        fragile,
        init_from=None,
        init_scale=0.2,
        init_loc_fn=lambda site: torch.tensor(4.0 if site["name"] == "z" else 0.0),
    )
    guide()
    with RandomStream(0):
        told = missed_peaks(guide, fragile, (), {}, math.log(0.5))
    assert "a peak that the guide does not reach" in told.text


@pytest.mark.parametrize("seed", range(3))
def test_starts_are_parted_from_known_peaks_by_a_dip(seed: int) -> None:
    guide = at_one(mixture(0.5, 4.0), (-4.0, 0.0), 0.5)
    density = SearchDensity(LogJoint(mixture(0.5, 4.0), guide.sites, (), {}))
    draws = torch.tensor([-4.0, 0.0]) + 0.5 * torch.randn(50, 2)
    prior = torch.cat([draws, draws + torch.tensor([8.0, 1.0])])
    known = [torch.tensor([-4.0, 0.0])]
    with RandomStream(seed):
        starts = screened_starts(density, prior, draws, known)
        first = next(starts)
        assert first[0] > 0  # the half-plane of the other peak
        known.append(torch.tensor([4.0, 1.0]))
        assert not list(starts)


def test_a_mode_where_torch_has_no_second_derivative() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 5.0))
        peaks = (-2.0 * (x - place).square() for place in (6.0, -6.0))
        pyro.factor("two", torch.logaddexp(*peaks))

    guide = HyperNetworkGuide(
        model, init_from=None, init_scale=0.5, init_loc_fn=lambda site: torch.tensor(-6.0)
    )
    guide()
    # each peak is one of N(0, 25) times a normal density without its constant
    evidence = dist.Normal(0.0, 25.25**0.5).log_prob(torch.tensor(6.0)) + 0.5 * math.log(
        math.pi / 2
    )
    told = missed_peaks(guide, model, (), {}, float(evidence)).text
    assert "about 50% of the mass" in told and "x = 5.94" in told


def test_densities_of_other_rows_at_each_call_are_not_judged() -> None:
    y = torch.randn(200, generator=torch.Generator().manual_seed(0))

    def model() -> None:
        mixture(0.5, 3.0)()
        with pyro.plate("rows", 200, subsample_size=10) as rows:
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y[rows])

    guide = at_one(mixture(0.5, 3.0), (-3.0, 0.0), 0.5)
    assert missed_peaks(guide, model, (), {}, -280.0).text == ""


def test_a_spike_without_mass_is_no_matter() -> None:
    """Higher than the peak, and narrow."""

    def model() -> None:
        parts = dist.Normal(torch.tensor([0.0, 5.0]), torch.tensor([1.0, 1e-4]))
        pyro.sample(
            "x", dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.99, 0.01])), parts)
        )

    guide = HyperNetworkGuide(model, init_from=None, init_scale=1.0)
    guide()
    assert missed_peaks(guide, model, (), {}, 0.0).text == ""


def test_other_guides_larger_models_and_random_densities_are_not_looked_at() -> None:
    model = mixture(0.5, 3.0)
    assert missed_peaks(AutoNormal(model), model, (), {}, 0.0).text == ""
    guide = at_one(model, (-3.0, 0.0), 0.5)
    assert missed_peaks(guide, model, (), {}, math.inf).text == ""
    assert missed_peaks(HyperNetworkGuide(model), model, (), {}, 0.0).text == ""  # not built

    def wide() -> None:
        pyro.sample("x", dist.Normal(0.0, 1.0).expand([21]).to_event(1))

    large = HyperNetworkGuide(wide, init_from=None)
    large()
    assert missed_peaks(large, wide, (), {}, 0.0).text == ""

    def refusing() -> None:
        raise ValueError("no")

    assert missed_peaks(guide, refusing, (), {}, 0.0).text == ""


@pytest.mark.long
def test_fit_tells_after_a_long_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_STEPS_TO_JUDGE_GUIDE", 30)
    model = mixture(0.5, 4.0)
    for num_steps, count in ((20, 0), (30, 1)):
        guide = at_one(model, (-4.0, 0.0), 0.5)
        result = fit(model, guide, num_steps=num_steps, lr=1e-4, seed=0, progress=False)
        assert sum("does not reach" in text for text in result.warnings) == count


@pytest.mark.parametrize("seed", range(3))
def test_uniform_starts_are_on_both_sides(seed: int) -> None:
    """Of a few by themselves all may lead to the same of two peaks, whatever the fit's seed."""
    model = mixture(0.5, 4.0)
    guide = at_one(model, (-4.0, 0.0), 0.5)
    joint = LogJoint(model, guide.sites, (), {})
    with RandomStream(seed):
        prior = searching._prior_draws(joint, torch.zeros(guide.latent_dim))
        starts = list(searching._starts(prior))
    one, mirrored, other, again = starts[searching._NUM_STARTS_FROM_PRIOR :]
    assert torch.equal(mirrored, -one) and torch.equal(again, -other)
    assert not torch.equal(one, other)


def test_of_several_peaks_none_is_told_with_more_than_its_mass() -> None:
    pyro.set_rng_seed(0)
    places = torch.tensor([-9.0, -3.0, 3.0, 9.0])

    def model() -> None:
        fn = dist.MixtureSameFamily(
            dist.Categorical(torch.tensor([0.25, 0.4, 0.2, 0.15])), dist.Normal(places, 0.5)
        )
        pyro.sample("x", fn)

    guide = HyperNetworkGuide(
        model, init_from=None, init_scale=0.5, init_loc_fn=lambda site: torch.tensor(-9.0)
    )
    guide()
    told = missed_peaks(guide, model, (), {}, math.log(0.25))
    assert "3 peaks" in told.text and "about 40% of the mass" in told.text
    assert "x = -3" in told.text and abs(told.share - 0.75) < 0.02


def _two_balls(size: int) -> Callable[[], None]:
    """Two standard normals at 1 and -1 in each entry, of 60 and 40%: the evidence is 1."""

    def model() -> None:
        prior = dist.Normal(torch.zeros(size), 3.0).to_event(1)
        x = pyro.sample("x", prior)
        balls = [dist.Normal(at, 1.0).log_prob(x).sum(-1) for at in (1.0, -1.0)]
        both = torch.logaddexp(balls[0] + math.log(0.6), balls[1] + math.log(0.4))
        pyro.factor("both", both - prior.log_prob(x))

    return model


@pytest.mark.parametrize(("size", "is_told"), [(25, True), (60, True), (65, False)])
def test_a_mode_of_many_latents(size: int, is_told: bool) -> None:
    pyro.set_rng_seed(0)
    model = _two_balls(size)
    guide = HyperNetworkGuide(
        model, init_from=None, init_scale=1.0, init_loc_fn=lambda site: torch.ones(size)
    )
    guide()
    told = missed_peaks(guide, model, (), {}, math.log(0.6))
    assert ("about 40% of the mass" in told.text) == is_told
    assert bool(told.text) == is_told


def test_a_skewed_peak_of_many_latents_is_the_guides_own() -> None:
    """The mode of Gammas of concentration 1.5 is far from their draws."""
    pyro.set_rng_seed(0)

    def model() -> None:
        pyro.sample("x", dist.Gamma(torch.full((40,), 1.5), 1.0).to_event(1))

    made = HyperNetworkGuide(model, init_from="full-rank")
    fit(model, made, num_steps=300, seed=0, progress=False)
    assert missed_peaks(made, model, (), {}, 0.0).text == ""


def test_peaks_of_a_networks_weights_are_told_up_to_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.linspace(-1.0, 1.0, 8).unsqueeze(-1)
    network = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))
    net = BayesianModule(network, dist.Normal(0.0, 1.0))

    def model() -> None:
        mean = net(x).squeeze(-1)
        with pyro.plate("rows", 8):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=x[:, 0])

    guide = HyperNetworkGuide(model, init_from=None)
    guide()
    monkeypatch.setattr(searching, "_peaks", None)  # nothing is searched
    assert missed_peaks(guide, model, (), {}, 0.0).text == ""


@pytest.mark.long
def test_signs_that_data_do_not_tell_are_told_with_half_of_the_mass() -> None:
    generator = torch.Generator().manual_seed(23)
    loadings = torch.tensor([1.2, 1.0, 0.9, -1.1, 0.8])
    y = torch.randn(20, 1, generator=generator) * loadings
    y = y + 0.6 * torch.randn(20, 5, generator=generator)

    def model() -> None:
        weights = pyro.sample("weights", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        factors = pyro.sample("factors", dist.Normal(torch.zeros(20), 1.0).to_event(1))
        mean = factors.unsqueeze(-1) * weights.unsqueeze(-2)
        noise = scale.unsqueeze(-1).unsqueeze(-1)
        pyro.sample("y", dist.Normal(mean, noise).to_event(2), obs=y)

    result = fit(model, HyperNetworkGuide(model), seed=0, progress=False)
    assert any("% and 50% of the mass" in text for text in result.warnings)


def test_the_share_beside_a_skewed_peak_is_told_as_a_range() -> None:
    """Logarithms of Gammas of concentration 0.3, of 97%, and a normal peak of 3%."""
    pyro.set_rng_seed(0)

    def model() -> None:
        prior = dist.Normal(torch.zeros(25), 6.0).to_event(1)
        u = pyro.sample("u", prior)
        skewed = (0.3 * u - u.exp() - math.lgamma(0.3)).sum(-1) + math.log(0.97)
        narrow = dist.Normal(3.0, 0.2).log_prob(u).sum(-1) + math.log(0.03)
        pyro.factor("both", torch.logaddexp(skewed, narrow) - prior.log_prob(u))

    start = {"init_loc_fn": lambda site: torch.full((25,), -3.0)}
    guide = HyperNetworkGuide(model, init_from="full-rank", **start)
    fit(model, guide, num_steps=50, seed=0, progress=False)
    told = missed_peaks(guide, model, (), {}, math.log(0.97))
    assert "one of between 3% and" in told.text and abs(told.share - 0.03) < 0.005
