"""vsbc: uniform for the exact posterior of a conjugate model, and not for wrong ones."""

from __future__ import annotations

import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from scipy import stats

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide
from pyro_implicit.diagnostics import vsbc
from pyro_implicit.diagnostics._uniformity import (
    asymmetry_p_values,
    num_bins,
    uniformity_p_values,
)
from pyro_implicit.diagnostics.vsbc import Calibration
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, SiteError

ROWS = 4


def model(y=None):
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", ROWS):
        pyro.sample("y", dist.Normal(mean[..., :1].expand(ROWS), 0.5), obs=y)


def fit_with(width=1.0, bias=0.0):
    """The exact posterior, its standard deviation times ``width``, shifted by ``bias`` of them."""

    def fit(data):
        precision = 1 + ROWS / 0.25
        loc, sd = data["y"].sum() / 0.25 / precision, precision**-0.5
        first = loc + sd * (bias + width * torch.randn(99))
        return {"mean": torch.stack([first, torch.randn(99)], -1)}

    return fit


def calibrate(fit, **options):
    defaults = {"num_simulations": 200, "observed": ["y"], "progress": False}
    return vsbc(model, fit, **{**defaults, **options})


@pytest.mark.parametrize(
    ("draws", "verdict"),
    [
        (lambda u: u, "nothing found against the fits"),
        (lambda u: u * 0.5, "most of all 'w' is too narrow"),
        (lambda u: u * 2.0, "most of all 'w' is too wide"),
        (lambda u: u + 0.7, "most of all 'w' is too high"),
        (lambda u: u - 0.7, "most of all 'w' is too low"),
    ],
)
def test_what_is_printed_says_which_way_the_fits_are_wrong(draws, verdict):
    """Ranks of standard normals among draws of others; the second of two entries is wrong."""
    generator = torch.Generator().manual_seed(1)
    truth, own = (torch.randn(n, 400, 2, generator=generator) for n in (1, 99))
    own = torch.stack([own[..., 0], draws(own[..., 1])], -1)
    right = (own[..., :1] < truth[..., :1]).sum(0)
    told = str(Calibration({"v": right, "w": (own < truth).sum(0)}, 99))
    assert told.startswith("ranks of 2 quantities in 400 simulations, among 99 draws each; ")
    assert told.endswith(verdict)


@pytest.mark.long
def test_the_exact_posterior_is_calibrated():
    found = calibrate(fit_with())
    assert found.ranks["mean"].shape == (200, 2)
    assert found.ranks["mean"].min() >= 0 and found.ranks["mean"].max() <= 99
    assert found.p_value > 0.05
    assert found.bins == 20 and found.num_simulations == 200


@pytest.mark.long
def test_wrong_ones_are_told_and_how():
    few = {"num_simulations": 100}
    narrow, wide = calibrate(fit_with(width=0.5), **few), calibrate(fit_with(width=2.0), **few)
    for found, in_the_middle in ((narrow, False), (wide, True)):
        assert found.uniformity()["mean"][0] < 1e-4
        assert found.asymmetry()["mean"][0] > 1e-3
        ranks = found.ranks["mean"][:, 0].float()
        assert ((ranks - 49.5).abs().mean() < 25) == in_the_middle
    biased = calibrate(fit_with(bias=0.7), **few)
    assert biased.asymmetry()["mean"][0] < 1e-4
    for found in (narrow, wide, biased):
        assert found.p_value < 1e-3
        assert found.uniformity()["mean"][1] > 1e-3  # the second entry is right in all of them


@pytest.mark.long
def test_a_fit_that_ignores_the_data_needs_a_quantity_that_does_not():
    def prior(data):
        return {"mean": torch.randn(99, 2)}

    def log_likelihood(values, data):
        return dist.Normal(values["mean"][0], 0.5).log_prob(data["y"]).sum()

    options = {"num_samples": 19, "quantities": {"log-likelihood": log_likelihood}}
    found = calibrate(prior, num_simulations=100, **options)
    tests = found.uniformity()
    assert tests["mean"].min() > 1e-3
    assert tests["log-likelihood"] < 1e-4
    assert calibrate(fit_with(), num_simulations=100, **options).p_value > 0.01


@pytest.mark.long
def test_processes_change_nothing():
    alone = calibrate(fit_with(), num_simulations=10)
    together = calibrate(fit_with(), num_simulations=10, num_processes=2)
    other = calibrate(fit_with(), num_simulations=10, seed=1)
    assert torch.equal(alone.ranks["mean"], together.ranks["mean"])
    assert not torch.equal(alone.ranks["mean"], other.ranks["mean"])


@pytest.mark.long
def test_a_guide_that_is_trained_and_the_callers_state():
    def fit(data):
        guide = AutoNormal(model)
        assert not list(pyro.get_param_store())
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        for _ in range(3):
            svi.step(data["y"])
        pyro.param("left over", torch.tensor(1.0))
        return guide

    pyro.param("mine", torch.tensor(2.0))
    states = []
    for run in (False, True):
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        if run:
            found = calibrate(fit, num_simulations=10, num_samples=9)
        states.append((torch.rand(()).item(), np.random.rand(), random.random()))
    assert states[0] == states[1]
    assert list(pyro.get_param_store()) == ["mine"]
    assert found.ranks["mean"].shape == (10, 2)


def test_observed_sites_are_found():
    found = vsbc(model, fit_with(), torch.zeros(ROWS), num_simulations=10, progress=False)
    assert set(found.ranks) == {"mean"}
    with pytest.raises(SiteError, match="the model observes nothing with these arguments"):
        vsbc(model, fit_with(), num_simulations=10, progress=False)
    with pytest.raises(SiteError, match=r"observed names \['z'\]; the model has \['mean', 'y'\]"):
        calibrate(fit_with(), observed=["z"], num_simulations=10)


def test_what_fit_returns_is_checked():
    with pytest.raises(SiteError, match=r"fit returned draws of sites \['other'\]"):
        calibrate(lambda data: {"other": torch.zeros(99)}, num_simulations=10)
    with pytest.raises(ArgumentError, match="expected a guide, or draws by site"):
        calibrate(lambda data: None, num_simulations=10)
    with pytest.raises(ArgumentError, match=r"quantities \['mean'\] have the names of sites"):
        calibrate(fit_with(), quantities={"mean": lambda values, data: 0.0}, num_simulations=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_simulations": 9}, "num_simulations=9; expected an integer >= 10"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"num_samples": 100}, "num_samples=100: its 101 ranks cannot be put into bins"),
        ({"num_processes": 0}, "num_processes=0"),
        (
            {"num_processes": 2, "start_method": "thread"},
            "start_method='thread'; expected '.*spawn'",
        ),
    ],
)
def test_values_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        calibrate(fit_with(), **options)


@pytest.mark.long
def test_ties_are_broken_at_random():
    def points(data):
        return {"mean": torch.zeros(99, 2)}

    def constant(values, data):
        return torch.tensor(1.0)

    found = calibrate(points, quantities={"constant": constant}, num_samples=9)
    assert found.uniformity()["constant"] > 1e-3
    assert set(found.ranks["mean"].unique().tolist()) == {0, 9}


def test_uniformity_is_scipys():
    ranks = torch.randint(100, (300, 2))
    expected = [
        stats.chisquare(np.bincount(column // 10, minlength=10)).pvalue
        for column in ranks.T.numpy()
    ]
    assert uniformity_p_values(ranks, 100, 10).tolist() == pytest.approx(expected)


def test_p_values_are_uniform_for_uniform_ranks():
    ranks = torch.randint(100, (200, 2000))
    for p in (uniformity_p_values(ranks, 100, 20), asymmetry_p_values(ranks, 100)):
        assert (p < 0.05).double().mean() == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("num_ranks", "simulations", "expected"),
    [(100, 200, 20), (100, 50, 10), (100, 10, 2), (200, 60, 10), (97, 100, 1)],
)
def test_number_of_bins(num_ranks, simulations, expected):
    assert num_bins(num_ranks, simulations) == expected


# ---- guides that look at the data


def rows_model(x, y=None):
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


class ExactRows(torch.nn.Module):
    """The exact posterior of ``rows_model``, N(y / 2, 1 / 2) for each row; it needs the data."""

    def forward(self, x, y=None):
        with pyro.plate("rows", len(x)):
            pyro.sample("z", dist.Normal(y / 2, 0.5**0.5))


class ExactGenerator(torch.nn.Module):
    """The same from noise and the context y, for a conditional guide."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def forward(self, inputs):
        return inputs[..., 1:2] / 2 + 0.5**0.5 * inputs[..., :1] + 0 * self.unused


def conditional_guide(data):
    guide = ConditionalHyperNetworkGuide(
        rows_model,
        context=lambda x, y=None: y[:, None],
        generator=ExactGenerator(),
        noise_dim=1,
        scale=0.0,
        init_loc_fn=lambda site: torch.zeros(3),
    )
    guide.setup(torch.zeros(3), data["y"])
    return guide


CALLS = {
    "positional": ((torch.zeros(3), torch.full((3,), 3.0)), {}),
    "keyword": ((torch.zeros(3),), {"y": torch.full((3,), 3.0)}),
    "none": ((torch.zeros(3), None), {}),
    "none by keyword": ((torch.zeros(3),), {"y": None}),
    "left out": ((torch.zeros(3),), {}),
}


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
def test_a_guide_sees_the_simulated_data(call):
    args, kwargs = CALLS[call]
    found = vsbc(
        rows_model,
        lambda data: ExactRows(),
        *args,
        **kwargs,
        observed=["y"],
        num_simulations=40,
        num_samples=19,
        progress=False,
    )
    assert found.uniformity()["z"].min() > 1e-3 and found.asymmetry()["z"].min() > 1e-3
    for given in (*args, *kwargs.values()):  # the caller's tensors are as they were
        assert given is None or len(set(given.tolist())) == 1


@pytest.mark.long
def test_a_conditional_guide_sees_the_simulated_data():
    args = (torch.zeros(3), torch.full((3,), 3.0))
    found = vsbc(rows_model, conditional_guide, *args, num_simulations=100, progress=False)
    assert found.p_value > 1e-3


def test_a_guide_that_takes_less_than_its_model_gets_less():
    def guide(x):
        with pyro.plate("rows", len(x)):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    options = {"observed": ["y"], "num_simulations": 10, "num_samples": 9, "progress": False}
    assert vsbc(rows_model, lambda data: guide, torch.zeros(3), **options).ranks["z"].numel() == 30


def logarithms(y=None):
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3):
        pyro.sample("y", dist.Normal(z, 1.0), obs=None if y is None else y.log())


@pytest.mark.long
def test_data_that_a_guide_could_only_see_wrong_are_refused():
    def custom(y=None):
        pyro.sample("z", dist.Normal(y.log().sum() / 4, 0.5))

    def listed(part, *args):
        guide = AutoGuideList(logarithms)
        guide.append(part)
        if args:
            guide(*args)  # sets it up
        return guide

    def autoguide(data):
        return listed(AutoNormal(logarithms), data["y"].exp())

    def implicit(data):
        guide = HyperNetworkGuide(logarithms)
        guide.setup(data["y"].exp())
        return guide

    def draws(data):
        return {"z": data["y"].sum() / 4 + 0.5 * torch.randn(19)}

    options = {"num_simulations": 10, "num_samples": 19, "progress": False}
    for fit in (lambda data: custom, lambda data: listed(custom)):
        with pytest.raises(SiteError, match=r"sites \['y'\] are computed .* posterior_draws"):
            vsbc(logarithms, fit, torch.ones(3), **options)
    for fit in (autoguide, implicit, draws):
        assert vsbc(logarithms, fit, torch.ones(3), **options).ranks["z"].shape == (10,)


@pytest.mark.parametrize(
    ("site", "shape"), [((3,), (99, 1)), ((), (99, 3)), ((3,), (99, 5, 3)), ((3,), (99,))]
)
def test_draws_of_another_shape_are_refused(site, shape):
    def model(y=None):
        mean = dist.Normal(torch.zeros(site), 1.0).to_event(len(site))
        mu = pyro.sample("mu", mean)
        return pyro.sample("y", dist.Normal(mu, 1.0).to_event(len(site)), obs=y)

    options = {"observed": ["y"], "num_simulations": 10, "progress": False}
    with pytest.raises(ShapeError, match="draws of site 'mu' of shape .*; expected"):
        vsbc(model, lambda data: {"mu": torch.randn(shape)}, **options)


def test_arguments_are_looked_at():
    def regression(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = torch.randn(5)
    options = {"observed": ["y"], "num_simulations": 10, "progress": False}
    with pytest.raises(NonFiniteError, match="argument 0 has 5 entries that are not finite"):
        vsbc(regression, lambda data: {}, x * torch.nan, **options)
    with pytest.raises(ShapeError, match="no rows"):
        vsbc(regression, lambda data: {}, x[:0], **options)
    with pytest.raises(ArgumentError, match="observed is empty"):
        vsbc(regression, lambda data: {}, x, **options | {"observed": []})


@pytest.mark.parametrize(
    ("quantity", "error", "told"),
    [
        (lambda values, data: values["mean"][0].log(), NonFiniteError, "is NaN at a draw"),
        (lambda values, data: float("nan"), NonFiniteError, "is NaN at a draw"),
        (lambda values: values["mean"], ArgumentError, "could not be evaluated .TypeError"),
        (lambda values, data: values["other"], ArgumentError, "with .'mean'. and data with .'y'."),
        (lambda values, data: "text", ArgumentError, "could not be evaluated"),
        (
            lambda values, data: values["mean"][: 1 + int(values["mean"][0] > 0)],
            ShapeError,
            "other shapes at other values",
        ),
    ],
)
def test_quantities_without_a_rank_are_named(quantity, error, told):
    with pytest.raises(error, match=f"quantities.'odd'.*{told}"):
        calibrate(fit_with(), quantities={"odd": quantity}, num_simulations=10)


def test_a_latent_that_is_marked_auxiliary_is_ranked_like_any_other():
    def marked(y=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    def exact(data):
        return {"a": data["y"].sum() / 5 + torch.randn(99) / 5**0.5}

    found = vsbc(marked, exact, torch.zeros(4), num_simulations=100, progress=False)
    assert set(found.ranks) == {"a"} and found.p_value > 0.05


@pytest.mark.parametrize("refit", [lambda: {}, lambda model, guide: guide])
def test_a_fit_that_takes_other_arguments_is_refused(refit):
    with pytest.raises(ArgumentError, match="cannot be called with one argument; expected a funct"):
        calibrate(refit)


@pytest.mark.parametrize("name", ["twice", "penalty", "nothing"])
def test_what_is_no_data_cannot_be_observed(name):
    def with_others(y=None):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.deterministic("twice", 2 * mean)
        pyro.factor("penalty", -mean.square())
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(SiteError, match=f"observed names .'{name}'.; the model has .'mean', 'y'."):
        vsbc(with_others, lambda data: {}, observed=[name], num_simulations=10, progress=False)


def test_a_guide_that_makes_itself_of_its_arguments_may_look_at_data_that_are_lost():
    """One that was called before holds what it learned, and does not look at them."""

    def of_logs(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4):
            pyro.sample("logs", dist.Normal(mean, 1.0), obs=y.log())

    few = {"num_simulations": 10, "num_samples": 19, "progress": False}
    built = AutoNormal(of_logs)
    built(torch.ones(4))
    with pytest.raises(SiteError, match="computed inside the model"):
        vsbc(of_logs, lambda data: AutoNormal(of_logs), torch.ones(4), **few)
    assert set(vsbc(of_logs, lambda data: built, torch.ones(4), **few).ranks) == {"mean"}
