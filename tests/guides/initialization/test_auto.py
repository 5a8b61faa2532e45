"""The automatic start: as good as it says, within what it was asked, and seen by nothing else."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    CMMNNGuide,
    HyperNetworkGuide,
    LanczosELBO,
    LinearisedELBO,
    MMNNGuide,
)
from pyro_implicit._random import RandomStream
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.guides.initialization import auto, fits_from_prior
from pyro_implicit.guides.initialization.auto import auto_start
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.guides.initialization.start_report import StartReport
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.testing import MODELS, ROWS, Case

pytestmark = pytest.mark.automatic_start

GUIDES = {"hypernetwork": HyperNetworkGuide, "matrix": MMNNGuide, "branches": CMMNNGuide}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps, where how good the start is does not matter."""
    for name in ("_MODE_STEPS", "_MEAN_FIELD_STEPS", "_MEAN_FIELD_STEPS_LARGE"):
        monkeypatch.setattr(auto, name, 20)
    monkeypatch.setattr(auto, "_UPHILL_STEPS", 3)
    monkeypatch.setattr(fits_from_prior, "_NUM_STEPS", 20)
    monkeypatch.setattr(auto, "_NUM_BOUND_DRAWS", 8)


def _report(guide: Any) -> StartReport:
    assert guide.start_report is not None
    return guide.start_report


def _names(trials: Any) -> list[str]:
    return [trial.name for trial in trials]


# ---- as good as it says


@pytest.mark.long
@pytest.mark.parametrize("kind", [HyperNetworkGuide, MMNNGuide])
def test_it_is_the_posterior_of_an_ill_conditioned_gaussian(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = torch.logspace(-1.5, 1.5, 6)
    root = torch.linalg.qr(torch.randn(6, 6))[0] * scale
    truth = dist.MultivariateNormal(torch.randn(6), root @ root.mT)
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS", 100)
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS_LARGE", 100)
    guide = kind(lambda: pyro.sample("w", truth)).setup()
    assert _report(guide).taken in ("mode", "full rank")  # here the same
    draws = guide.sample(20_000)["w"]
    white = torch.linalg.solve(root, (draws - truth.loc).mT).mT
    # no generator is quite the identity at first
    assert (white.mT.cov() - torch.eye(6)).abs().max() < 0.25
    assert white.mean(0).abs().max() < 0.25


@pytest.mark.long
def test_it_is_not_the_peak_of_a_hierarchical_model_that_has_no_mass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the groups' deviation goes to zero the density has no bound, and uphill leads there."""
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS", 200)  # the other begins from afar
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS_LARGE", 250)
    own = torch.Generator().manual_seed(2026)
    levels = 1.0 + 0.7 * torch.randn(12, generator=own)
    group = torch.randint(12, (60,), generator=own)
    x = torch.randn(60, generator=own)
    y = levels[group] + 0.5 * x + 0.6 * torch.randn(60, generator=own)

    def model(group: Tensor, x: Tensor, y: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(1.0))
        slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("groups", 12):
            level = pyro.sample("level", dist.Normal(mu, tau))
        with pyro.plate("data", 60):
            pyro.sample("y", dist.Normal(level[..., group] + slope * x, sigma), obs=y)

    pyro.set_rng_seed(0)
    with RandomStream(int(torch.randint(2**31, ()))):
        tau = HyperNetworkGuide(model).setup(group, x, y).sample(500)["tau"]
    assert 0.3 < float(tau.median()) < 1.0  # by long chains 0.57, at the peak 0.001


def _many(num: int) -> tuple[Callable[..., Any], Tensor]:
    """``num`` independent latents with deviations of their own, no two alike."""
    scale = torch.logspace(-2, 0, num)
    return lambda: pyro.sample("w", dist.Normal(torch.linspace(-1, 1, num), scale).to_event(1)), (
        scale
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", [HyperNetworkGuide, CMMNNGuide])
def test_the_noise_of_many_latents_begins_as_the_mean_field(kind: Any) -> None:
    model, scale = _many(1100)
    guide = kind(model).setup()
    assert _report(guide).taken.startswith("mean field")
    sampler = guide.samplers[0]
    assert sampler.raw_scale.shape == (1100,) and sampler.preconditioner.shift is not None
    ratio = guide.sample(2000)["w"].std(0) / scale
    assert ratio.log().mean().abs() < 0.05 and ratio.log().std() < 0.2
    elbo = partial(LanczosELBO, num_steps=20) if kind is not HyperNetworkGuide else LinearisedELBO
    loss = elbo(64, vectorize_particles=True).loss(model, guide)
    assert loss == pytest.approx(-_report(guide).gaussians[-1].score, abs=16.0)  # 1100 latents


def test_what_is_not_settled_has_a_location_that_moves_in_units_of_its_own(quick: None) -> None:
    model, _ = _many(1100)
    unit = HyperNetworkGuide(model).setup().samplers[0].preconditioner.unit
    assert torch.equal(unit, torch.ones(1100))  # not level


@pytest.mark.long
def test_a_network_with_dead_units_begins_where_its_module_is(quick: None) -> None:
    layers = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU())
    net = BayesianModule(nn.Sequential(layers, nn.Linear(20, 1)), prior=dist.Normal(0.0, 1.0))
    x = torch.randn(200, 2)
    y = (x[:, 0] * x[:, 1] > 0).float()

    def model(x: Tensor) -> None:
        logits = net(x)[..., 0]
        with pyro.plate("data", 200, subsample_size=len(x)):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[: len(x)])

    for rows in (200, 50):
        report = _report(HyperNetworkGuide(model).setup(x[:rows]))
        assert report.location == "the module's values" and report.taken == "narrow"


def _in_turns() -> list[Any]:
    """Every guide and every model once by default, all of their pairs as slow tests."""
    rows = []
    for i, (guide, kind) in enumerate(GUIDES.items()):
        for j, (name, case) in enumerate(MODELS.items()):
            marks = [] if j % len(GUIDES) == i else [pytest.mark.slow]
            rows.append(pytest.param(kind, case, id=f"{guide}-{name}", marks=marks))
    return rows


@pytest.mark.long
@pytest.mark.parametrize("kind, case", _in_turns())
def test_it_is_no_worse_than_a_bare_one(quick: None, kind: Any, case: Case) -> None:
    model, (x, y) = case.make(torch.float64), case.data(dtype=torch.float64)
    objective = LinearisedELBO(32, vectorize_particles=True)

    losses, dtypes = [], []
    for options in ({}, {"init_from": None}):
        guide = kind(model, create_plates=case.create_plates(), **options)
        with torch.no_grad():
            losses.append(objective.loss(model, guide, x, y))
        dtypes.append({value.dtype for value in guide.samplers.parameters()})
    assert losses[0] < losses[1] + 0.5
    assert dtypes[0] == dtypes[1]


@pytest.mark.long
def test_a_factorised_guide_begins_as_the_best_gaussian_of_its_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS", 20)
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS_LARGE", 20)
    root = torch.randn(4, 4)
    precision = root @ root.mT + torch.eye(4)

    def model() -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        both = torch.cat([a, b], -1)
        pyro.factor("rest", -0.5 * both @ (precision - torch.eye(4)) @ both)

    guide = HyperNetworkGuide(model, factorized=True).setup()
    for sampler, block in zip(guide.samplers, (precision[:3, :3], precision[3:, 3:]), strict=True):
        factor = sampler.preconditioner.factor
        torch.testing.assert_close(factor @ factor.mT, block.inverse(), rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",  # the search is the same; its start in other guides is that of the tests above
    [
        HyperNetworkGuide,
        pytest.param(MMNNGuide, marks=pytest.mark.slow),
        pytest.param(CMMNNGuide, marks=pytest.mark.slow),
    ],
)
def test_a_regression_of_hundreds_of_weights_is_its_posterior(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conjugate: 270 weights, 90 rows. No network, though it is one module."""
    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS_LARGE", 20)
    net = BayesianModule(nn.Linear(270, 1, bias=False), prior=dist.Normal(0.0, 1.0))
    x = torch.randn(90, 270) / 5
    y = x @ torch.randn(270) + 0.5 * torch.randn(90)

    def model(x: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", 90):
            pyro.sample("y", dist.Normal(f, 0.5), obs=y)

    guide = kind(model).setup(x)
    assert _report(guide).taken in ("mode", "full rank")  # here the same
    wide = x.double()
    exact = torch.linalg.inv(torch.eye(270, dtype=torch.float64) + wide.mT @ wide / 0.25)
    deviation = guide.sample(2000)["weight"].double().reshape(-1, 270).std(0)
    assert (deviation / exact.diagonal().sqrt()).log().abs().max() < 0.1
    evidence = dist.MultivariateNormal(torch.zeros(90), x @ x.mT + 0.25 * torch.eye(90)).log_prob(y)
    loss = LinearisedELBO(64, vectorize_particles=True).loss(model, guide, x)
    assert loss == pytest.approx(-float(evidence), abs=8.0)  # noise of 270 latents


# ---- within what it was asked


def _regression(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        return pyro.sample("y", dist.Normal((w * x).sum(-1), 0.3), obs=y)


DATA = MODELS["regression"].data()
#: eight schools: effects and their deviations
EFFECTS = torch.tensor([[28.0, 8, -3, 7, -1, 1, 18, 12], [15.0, 10, 16, 11, 9, 11, 10, 18]])


def _at_three(site: Any) -> Tensor:
    return torch.full(site["fn"].shape(), 3.0)


@pytest.mark.long
@pytest.mark.parametrize("kind", GUIDES.values(), ids=GUIDES)
def test_a_location_that_is_given_stays(quick: None, kind: Any) -> None:
    guide = kind(_regression, init_loc_fn=_at_three).setup(*DATA)
    assert torch.equal(guide.samplers[0].preconditioner.centre, torch.full((2,), 3.0))
    assert "moved there" in _report(guide).reason and "mode" in _names(_report(guide).gaussians)
    found = kind(_regression).setup(*DATA).sample(1000)["w"].std(0)  # the widths without it
    assert torch.allclose(guide.sample(1000)["w"].std(0), found, rtol=0.2)


@pytest.mark.long
def test_a_location_that_is_given_has_the_widths_that_training_needs() -> None:
    """From deviations of a tenth the first steps at such a rate ended the fit, or lost it."""

    def schools() -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(5.0))
        with pyro.plate("schools", 8):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, EFFECTS[1]), obs=EFFECTS[0])

    guide = HyperNetworkGuide(schools, init_loc_fn=init_to_median)
    objective = LinearisedELBO(16, vectorize_particles=True)
    svi = SVI(schools, guide, pyro.optim.Adam({"lr": 0.01}), objective)
    losses = [svi.step() for _ in range(30)]
    assert sum(losses[-10:]) / 10 < 36.0  # AutoNormal at its best: 36.7


@pytest.mark.parametrize(
    "options",
    [{"init_scale": 0.2}, {"scale": 0.2}, {"generator": partial(MLPGenerator, 2), "scale": 0.1}],
    ids=str,
)
def test_units_that_are_given_stay(quick: None, options: dict[str, Any]) -> None:
    guide = HyperNetworkGuide(_regression, **options).setup(*DATA)
    assert guide.samplers[0].preconditioner.factor is None
    assert _report(guide).taken == "the location alone" and not _report(guide).gaussians
    both = HyperNetworkGuide(_regression, init_loc_fn=_at_three, **options).setup(*DATA)
    assert both.start_report is None
    assert torch.equal(both.samplers[0].preconditioner.loc, torch.full((2,), 3.0))


def test_units_of_matrix_guides_stay(quick: None) -> None:
    guide = MMNNGuide(_regression, init_scale=0.2).setup(*DATA)
    assert torch.equal(guide.samplers[0].preconditioner.factor, torch.ones(2))
    assert _report(guide).taken == "the location alone"


@pytest.mark.long
def test_noise_that_is_not_to_be_learned_is_not(quick: None) -> None:
    guide = MMNNGuide(_regression, learn_scale=False).setup(*DATA)
    assert guide.samplers[0].raw_scale is None and guide.samplers[0].scale == 0.01
    assert guide.samplers[0].generator(torch.randn(4000, 2, 2)).std() > 0.5  # so it has the width


def test_bare_classes_of_generators_take_it_too(quick: None) -> None:
    guide = HyperNetworkGuide(_regression, generator=ResidualGenerator).setup(*DATA)
    assert len(_report(guide).gaussians) == 5


# ---- some rows, hidden latents, and failures


def test_on_some_rows_nothing_is_fitted(quick: None) -> None:
    x, y = DATA
    guide = HyperNetworkGuide(_regression).setup(x[:3], y[:3])
    assert _names(_report(guide).gaussians) == ["deviations"]
    assert torch.equal(guide.samplers[0].preconditioner.factor, torch.eye(2))


def test_a_model_that_weights_its_rows_up_shows_some_of_them(quick: None) -> None:
    model = poutine.scale(_regression, scale=2.0)
    assert "some rows" in _report(HyperNetworkGuide(model).setup(*DATA)).reason


@pytest.mark.long
@pytest.mark.parametrize("weight", [1.01, torch.linspace(0.8, 1.4, 20)])
def test_weights_of_rows_are_no_minibatch(weight: Any) -> None:
    def weighed(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(y)), poutine.scale(scale=weight):
            pyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y)

    guide = HyperNetworkGuide(weighed)
    guide(torch.ones(20, 2))
    assert "some rows" not in _report(guide).reason and len(_report(guide).gaussians) > 1


def test_a_model_that_chooses_its_rows_is_judged_on_the_same_ones(quick: None) -> None:
    x, y = DATA

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample_size=2) as rows:
            pyro.sample("y", dist.Normal((w * x[rows]).sum(-1), 0.3), obs=y[rows])

    report = _report(HyperNetworkGuide(model).setup())
    assert "some rows" in report.reason and report.num_gradients > 0


@pytest.mark.parametrize("beside", [AutoNormal, HyperNetworkGuide])
def test_latents_of_another_guide_leave_it_bare(quick: None, beside: Any) -> None:
    model, data = MODELS["regression"].make(), MODELS["regression"].data()
    guide = AutoGuideList(model)
    guide.append(HyperNetworkGuide(poutine.block(model, hide=["scale"])))
    guide.append(beside(poutine.block(model, hide=["w"])))
    guide(*data)
    assert "random at given latents" in _report(guide[0]).reason
    assert torch.isfinite(torch.tensor(LinearisedELBO(2).loss(model, guide, *data)))


@pytest.mark.long
def test_rows_of_local_latents(quick: None) -> None:
    case = MODELS["local"]
    model, (x, y) = case.make(), case.data()
    some = HyperNetworkGuide(model, create_plates=case.create_plates())
    some(x[:2], y[:2], torch.tensor([0, 1]))
    assert "shows some of its rows" in _report(some).reason
    every = HyperNetworkGuide(model, create_plates=case.create_plates()).setup(x, y)
    assert "full rank" in _names(_report(every).gaussians)


@pytest.mark.long
def test_candidates_that_fail_are_dropped_by_name(quick: None) -> None:
    def unbounded() -> None:  # where s is small the mode is a spike
        s = pyro.sample("s", dist.ImproperUniform(dist.constraints.positive, (), ()))
        if bool(s < 0.5):
            raise ValueError("too small")
        pyro.sample("y", dist.Normal(0.0, s), obs=torch.tensor(0.0))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("never below", torch.where(w > -0.5, 0.0, torch.nan))

    report = _report(HyperNetworkGuide(unbounded).setup())
    dropped = [t for t in (*report.locations, *report.gaussians) if "dropped" in t.note]
    assert dropped and all(trial.score == -torch.inf for trial in dropped)
    assert "dropped" in str(report)


def test_where_nothing_is_finite_it_is_bare(quick: None) -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("nothing", w * torch.nan)

    with pyro.validation_enabled(False):
        guide = HyperNetworkGuide(model).setup()
    assert "no finite density" in _report(guide).reason
    assert torch.equal(guide.samplers[0].preconditioner.factor, torch.eye(1))


@pytest.mark.long
def test_where_no_gaussian_is_finite_it_is_bare(quick: None) -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("a point", torch.where((w == 0).all(), 0.0, torch.nan) * w.sum())

    with pyro.validation_enabled(False):
        assert "no Gaussian has a finite" in _report(MMNNGuide(model).setup()).reason


@pytest.mark.long
def test_errors_that_are_no_number_drop_a_candidate(quick: None) -> None:
    calls: list[Tensor] = []

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        calls.append(w)
        if w == 0 and len(calls) > 3:  # the runs that read the sites go well
            raise RuntimeError("no such thing\nand more")
        pyro.sample("y", dist.Normal(w, 1.0), obs=torch.tensor(-3.0))

    report = _report(MMNNGuide(model).setup())
    assert report.locations[0].name == "the default"
    assert report.locations[0].note == "RuntimeError: no such thing: dropped"
    assert report.location != "the default"


def test_more_latents_than_a_fit_serves(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_MAX_MEAN_FIELD_LATENTS", 10)
    report = _report(HyperNetworkGuide(_many(300)[0]).setup())
    assert report.reason == "too many latents for a fit"
    assert report.num_gradients <= 5 * auto._UPHILL_STEPS_LARGE


# ---- networks of many weights


def _net(*layers: nn.Module, prior: Any = None) -> BayesianModule:
    return BayesianModule(nn.Sequential(*layers), prior=prior or dist.Normal(0.0, 1.0))


def _fits(net: Callable[..., Any], num_inputs: int) -> tuple[Callable[..., Any], tuple[Tensor]]:
    x = torch.randn(20, num_inputs)

    def model(x: Tensor) -> None:
        noise = pyro.sample("noise", dist.LogNormal(-2.0, 1.0))
        f = net(x)[..., 0]
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, noise), obs=x[:, 0])

    return model, (x,)


@pytest.mark.long
@pytest.mark.parametrize("kind", GUIDES.values(), ids=GUIDES)
def test_a_network_begins_narrow_at_its_own_values(quick: None, kind: Any) -> None:
    net = _net(nn.Linear(40, 10), nn.Tanh(), nn.Linear(10, 1))
    model, data = _fits(net, 40)
    guide = kind(model).setup(*data)
    report, sampler = _report(guide), guide.samplers[0]
    assert report.location == auto._MODULE_LOCATION
    assert (report.taken, report.gaussians) == ("narrow", ())
    draws = guide.sample(2000)
    for name, value in net.module.state_dict().items():
        weights = kind is not HyperNetworkGuide and value.dim() > 1
        unit = value.shape[1] ** -0.5 if weights else 1.0
        shift = draws[name].mean(0) - value
        assert shift.abs().max() < 0.01 * unit
        # noise, and a part of the generator's own
        ratio = draws[name].std(0).square().mean().sqrt() / (0.01 * unit)
        assert ratio == pytest.approx(2**0.5, rel=0.25)
    assert sampler.raw_scale.shape == (guide.latent_dim,)
    assert sampler.preconditioner.shift is None  # the generator's last bias is the location


@pytest.mark.long
@pytest.mark.parametrize("num_matrices", [1, 2])
def test_weights_that_a_model_draws_itself_make_a_network_too(
    quick: None, num_matrices: int
) -> None:
    """One matrix alone is that of a regression."""

    def net(x: Tensor) -> Tensor:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([300, 4]).to_event(2))
        if num_matrices == 1:
            return (x @ w.mT).sum(-1, keepdim=True)
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([1, 300]).to_event(2))
        return (x @ w.mT).tanh() @ v.mT

    model, data = _fits(net, 4)
    report = _report(HyperNetworkGuide(model).setup(*data))
    assert (report.taken == "narrow") == (num_matrices == 2) and len(report.locations) > 2


@pytest.mark.long
@pytest.mark.parametrize("num_inputs", [30, 300])
def test_a_small_network_is_fitted(quick: None, num_inputs: int) -> None:
    model, data = _fits(_net(nn.Linear(num_inputs, 1), nn.Linear(1, 1)), num_inputs)
    taken = _report(HyperNetworkGuide(model).setup(*data)).taken
    assert (taken == "narrow") == (num_inputs == 300)
    model, data = _fits(_net(nn.Linear(num_inputs, 1)), num_inputs)  # a regression
    assert _report(HyperNetworkGuide(model).setup(*data)).taken != "narrow"


FROM_PRIOR = "mean field, fitted from draws of the prior"


@pytest.mark.parametrize("kind", ["deep", "shallow", "branching", "linear"])
def test_a_small_network_is_fitted_from_draws_of_its_prior_too(quick: None, kind: str) -> None:
    if kind == "branching":  # which vectorises no draws: the candidate is dropped by name

        def net(x: Tensor) -> Tensor:
            for name, shape in (("u", [3, 2]), ("v", [3, 3]), ("w", [1, 3])):
                weights = pyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(2))
                x = x.tanh() @ weights.mT * (1.0 if float(weights.sum()) > 0 else 2.0)
            return x

    else:
        hidden = [nn.Linear(3, 3)] if kind == "deep" else []
        net = _net(nn.Linear(2, 3), *hidden, nn.Linear(3, 1))
        if kind == "linear":
            net = _net(nn.Linear(2, 1))
    model, data = _fits(net, 2)
    gaussians = _report(HyperNetworkGuide(model).setup(*data)).gaussians
    found = [trial for trial in gaussians if trial.name == FROM_PRIOR]
    assert len(found) == (kind != "linear")
    if kind == "branching":
        assert found[0].score == -math.inf and found[0].note.endswith("dropped")
    elif found:
        assert math.isfinite(found[0].score)
        assert found[0].note.startswith("not level after 20 steps")


def test_of_many_rows_no_draws_of_the_prior_are_fitted(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would take minutes."""
    model, data = _fits(_net(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)), 2)
    for most, why in (
        (399, "few draws in one run, of so many rows"),
        (0, "not take several draws"),
    ):
        monkeypatch.setattr(SearchDensity, "most_at_once", most)
        gaussians = _report(HyperNetworkGuide(model).setup(*data)).gaussians
        (found,) = (trial for trial in gaussians if trial.name == FROM_PRIOR)
        assert why in found.note and found.note.endswith("dropped")


def test_rows_in_double_precision_lose_no_fit(quick: None) -> None:
    """Numbers of NumPy, beside inputs in single precision."""
    net = _net(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x)[..., 0]
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.5), obs=y)

    x = torch.randn(20, 2)
    gaussians = _report(HyperNetworkGuide(model).setup(x, x[:, 0].double())).gaussians
    (found,) = (trial for trial in gaussians if trial.name == FROM_PRIOR)
    assert math.isfinite(found.score)


def test_a_deep_network_may_have_a_prior_that_depends_on_what_is_summed_out(quick: None) -> None:
    """Of a spike and slab, whose weights are in no sum of log-densities of their own."""
    x = torch.randn(20, 2)

    def model(x: Tensor, y: Tensor) -> None:
        slab = pyro.sample("slab", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        h = x
        for name, n in (("u", 2), ("v", 3)):
            h = (h @ pyro.sample(name, dist.Normal(torch.zeros(n, 3), 1.0).to_event(2))).tanh()
        scale = torch.where(slab > 0, 2.0, 0.3)[..., None, None]
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 1), scale).to_event(2))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal((h @ w)[..., 0], 0.3), obs=y)

    report = _report(HyperNetworkGuide(model).setup(x, x[:, 0].sin()))
    (found,) = (trial for trial in report.gaussians if trial.name == FROM_PRIOR)
    assert math.isfinite(found.score)
    assert "with that of its copies" in report.reason


def test_draws_of_the_prior_without_a_density_are_passed_over(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = _fits(_net(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)), 2)
    drawn = auto.prior_draws
    for whole, expected in ((1, "not level after 20 steps"), (0, "no draw of the prior has a")):
        factors = [1.0] * whole + [math.inf] * (5 - whole)

        def some(*args: Any, factors: list[float] = factors) -> list[Tensor]:
            return [u * factor for u, factor in zip(drawn(*args), factors, strict=True)]

        monkeypatch.setattr(auto, "prior_draws", some)
        report = _report(HyperNetworkGuide(model).setup(*data))
        (found,) = (trial for trial in report.gaussians if trial.name == FROM_PRIOR)
        assert expected in found.note


@pytest.mark.long
def test_a_deep_network_does_not_begin_where_it_is_given_up() -> None:
    """
    Weights of four layers: with one draw a step, and from small weights, fits end near the prior,
    where nothing is known of the rows.
    """
    torch.manual_seed(5)
    x = torch.randn(150, 3)
    y = (2 * x[:, 0] * x[:, 1]).tanh() + x[:, 2].sin() + 0.2 * torch.randn(150)
    sizes = (3, 8, 8, 8, 1)

    def model(x: Tensor, y: Tensor) -> None:
        for index, (n, k) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            prior = dist.Normal(0.0, 1.5 / n**0.5)
            w = pyro.sample(f"w{index}", prior.expand([n, k]).to_event(2))
            b = pyro.sample(f"b{index}", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
            x = (x if index == 0 else x.tanh()) @ w + b
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(x[..., 0], sigma), obs=y)

    pyro.set_rng_seed(0)
    report = _report(HyperNetworkGuide(model).setup(x, y))
    scores = {trial.name: trial.score for trial in report.gaussians}
    others = [score for name, score in scores.items() if "prior" not in name and "full" not in name]
    assert scores[FROM_PRIOR] > max(others) + 2.0
    assert report.taken.startswith(("full rank", FROM_PRIOR))


@pytest.mark.long
def test_a_network_begins_where_all_copies_of_what_it_has_learned_are_likelier_than_none() -> None:
    """
    A sine by 1-8-8-1 under unit priors: what has learned it is 15 nats below what has learned
    nothing, and has 8! orders and as many signs of units more in each layer.
    """
    random = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(60, 1, generator=random) - 2
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(60, generator=random)
    sizes = (1, 8, 8, 1)

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        for index, (n, k) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            w = pyro.sample(f"w{index}", dist.Normal(0.0, 1.0).expand([n, k]).to_event(2))
            b = pyro.sample(f"b{index}", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
            x = (x if index == 0 else x.tanh()) @ w + b[..., None, :]
        f = pyro.deterministic("f", x[..., 0], event_dim=1)
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        with pyro.plate("data", len(f)):
            pyro.sample("y", dist.Normal(f, sigma), obs=y)
        return f

    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model).setup(x, y)
    report = _report(guide)
    taken = next(trial for trial in report.gaussians if trial.name == report.taken)
    assert "more with its copies" in taken.note and "with that of its copies" in report.reason
    draws = [poutine.replay(model, poutine.trace(guide).get_trace(x, y))(x) for _ in range(50)]
    error = (torch.stack(draws).mean(0) - y).square().mean()
    assert float(error.detach()) < 0.5 * float(y.var())


@pytest.mark.long
def test_a_small_network_whose_location_is_given_has_one_of_four_deviations(quick: None) -> None:
    """Those of a fit elsewhere are not those of a network."""
    net = BayesianModule(
        nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)), prior=dist.Normal(0.0, 1.0)
    )

    def model() -> None:
        x = torch.linspace(-1.0, 1.0, 20)
        mean = net(x[:, None])[..., 0]
        with pyro.plate("data", 20):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=x.square())

    guide = HyperNetworkGuide(model, init_loc_fn=net.init_to_module).setup()
    assert _names(_report(guide).gaussians) == ["deviations"]
    assert _report(guide).reason == "the location of a network is given"


@pytest.mark.long
def test_what_is_given_of_a_network_stays(quick: None) -> None:
    model, data = _fits(_net(nn.Linear(300, 1), nn.Tanh(), nn.Linear(1, 1)), 300)

    def two(site: Any) -> Tensor:
        return torch.full(site["fn"].shape(), 2.0)

    guide = HyperNetworkGuide(model, init_loc_fn=two).setup(*data)
    assert _report(guide).taken == "narrow"
    assert float((guide.sample(50)["0.weight"] - 2).abs().max()) < 0.1
    guide = HyperNetworkGuide(model, scale=0.2).setup(*data)
    assert _report(guide).taken == "the location alone" and guide.samplers[0].raw_scale is None


@pytest.mark.parametrize("factorized", [True, "layer"])
def test_parts_of_a_network_begin_narrow(quick: None, factorized: Any) -> None:
    net = _net(nn.Linear(40, 10), nn.Tanh(), nn.Linear(10, 1))
    model, data = _fits(net, 40)
    guide = HyperNetworkGuide(model, factorized=factorized).setup(*data)
    drawn = guide.sample(20)
    gap = (drawn["0.weight"] - net.module.state_dict()["0.weight"]).abs().max()
    assert _report(guide).taken == "narrow" and gap < 0.1


@pytest.mark.long
def test_a_generator_of_full_rank_begins_narrow(quick: None) -> None:
    model, data = _fits(_net(nn.Linear(300, 1), nn.Tanh(), nn.Linear(1, 1)), 300)
    guide = HyperNetworkGuide(model, generator=ResidualGenerator).setup(*data)
    drawn = guide.sample(500)["0.weight"].std(0)
    assert guide.samplers[0].raw_scale is None
    assert drawn.mean() == pytest.approx(0.01, rel=0.2)


class _Noise(nn.Module):
    """In evaluation mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_a_random_network_begins_narrow_too(quick: None) -> None:
    model, data = _fits(_net(_Noise(), nn.Linear(300, 1), nn.Linear(1, 1)), 300)
    report = _report(HyperNetworkGuide(model).setup(*data))
    assert report.taken == "narrow" and "random" in report.reason


def test_values_of_no_density_are_no_start(quick: None) -> None:
    net = _net(nn.Linear(300, 1), nn.Tanh(), nn.Linear(1, 1))
    data = (torch.randn(20, 300),)

    def spoiled(x: Tensor) -> None:
        f = net(x)
        at_own = (f - net.module(x)).abs().max() < 1e-3
        pyro.factor("spoiled", torch.where(at_own, torch.nan, 0.0) + 0 * f.sum())

    report = _report(HyperNetworkGuide(spoiled).setup(*data))
    assert report.location != auto._MODULE_LOCATION


# ---- seen by nothing else


@pytest.mark.long
def test_it_is_the_same_from_the_same_seed_and_costs_one_number(quick: None) -> None:
    sites = HyperNetworkGuide(_regression, init_from=None).setup(*DATA).sites
    starts = []
    for seed in (1, 1, 2):
        pyro.set_rng_seed(seed)
        log_joint = LogJoint(_regression, sites, DATA, {})
        starts.append(auto_start(log_joint, _regression, torch.zeros(2))[1].gaussians)
        after = torch.rand(3), random.random(), np.random.rand()
        pyro.set_rng_seed(seed)
        torch.randint(2**31, ())
        assert torch.equal(after[0], torch.rand(3))
        assert after[1:] == (random.random(), np.random.rand())
    assert starts[0] == starts[1] != starts[2]


class _Watched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.long
def test_nothing_but_the_guide_changes(quick: None) -> None:
    net = _Watched()
    x, y = DATA

    def model(x: Tensor, y: Tensor) -> None:
        bias = pyro.param("bias", torch.tensor(0.3))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(w * net(x)[..., 0] + bias, 0.3), obs=y)

    poutine.trace(model).get_trace(x, y)  # which makes the parameter
    store = copy.deepcopy(pyro.get_param_store().get_state())
    before = copy.deepcopy(net.state_dict())
    HyperNetworkGuide(model).setup(x, y)
    assert net.training and all(p.grad is None for p in net.parameters())
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)  # statistics, too
    now = pyro.get_param_store().get_state()
    assert store["params"].keys() == now["params"].keys()
    assert torch.equal(store["params"]["bias"], now["params"]["bias"])


@pytest.mark.long
def test_a_first_call_in_an_objective_builds_it(quick: None) -> None:
    objective = LinearisedELBO(4, vectorize_particles=True)
    guide = HyperNetworkGuide(_regression)
    svi = SVI(_regression, guide, pyro.optim.Adam({"lr": 1e-3}), objective)
    assert np.isfinite(svi.evaluate_loss(*DATA)) and np.isfinite(svi.step(*DATA))
    assert len(_report(guide).gaussians) == 5


@pytest.mark.long
@pytest.mark.parametrize("num", [2, 1100])
def test_another_start_loads_into_a_guide_that_is_built(quick: None, num: int) -> None:
    model, _ = _many(num)
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model).setup()
    bare = poutine.scale(model, scale=1.0)
    other = HyperNetworkGuide(bare, init_loc_fn=_at_three).setup()
    other.load_state_dict(guide.state_dict())
    loaded = HyperNetworkGuide.from_state_dict(guide.state_dict())
    copied = pickle.loads(pickle.dumps(guide)), copy.deepcopy(guide)
    expected = None
    for one in (guide, other, loaded, *copied):
        torch.manual_seed(3)
        draws = one.sample(5)["w"]
        expected = draws if expected is None else expected
        assert torch.equal(draws, expected)
    assert loaded.start_report is None and copied[0].start_report == guide.start_report
    if num == 1100:
        assert loaded.samplers[0].preconditioner.shift.requires_grad


def test_it_is_the_default() -> None:
    for kind in GUIDES.values():
        assert kind(_regression)._init_from == ["auto"]
