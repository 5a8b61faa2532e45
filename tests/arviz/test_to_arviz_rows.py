"""to_arviz by row batches: the same numbers, in bounded memory, and what cannot be cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal

from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.rows import row_coupling

X, Y = torch.randn(11, 2), torch.randn(11)


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = pyro.deterministic("mean", x @ w)
    pyro.deterministic("norm", w.norm())
    with pyro.plate("outputs", 3, dim=-2), pyro.plate("data", 500, len(x), dim=-1):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=None if y is None else y.expand(3, -1))


@pytest.mark.parametrize("batch_size", [1, 4, 10, 11, 100])
def test_the_batch_size_changes_no_number(batch_size):
    guide = AutoNormal(model)
    guide(X, Y)
    results = []
    for size in (None, batch_size):
        pyro.set_rng_seed(0)
        results.append(to_arviz(model, guide, X, Y, num_samples=3, batch_size=size))
    whole, cut = results
    for group in ("posterior", "log_likelihood", "observed_data", "constant_data"):
        assert set(whole[group].data_vars) == set(cut[group].data_vars)
        for name, value in whole[group].data_vars.items():
            np.testing.assert_allclose(cut[group][name].values, value.values, rtol=1e-5, atol=1e-6)
            assert cut[group][name].dims == value.dims
    for group in ("prior", "prior_predictive", "posterior_predictive"):
        for name, value in whole[group].data_vars.items():
            assert cut[group][name].dims == value.dims
            assert cut[group][name].shape == value.shape


def test_prior_and_predictions_of_all_batches_belong_together():
    def exact(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        mean = pyro.deterministic("mean", w * x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1e-4), obs=y)

    x = torch.linspace(1, 2, 11)
    data = to_arviz(exact, AutoNormal(exact), x, Y, num_samples=4, batch_size=3)
    for group, predictive in (("prior", "prior_predictive"), ("posterior", "posterior_predictive")):
        expected = data[group]["w"].values[..., None] * x.numpy()
        np.testing.assert_allclose(data[group]["mean"].values, expected, rtol=1e-5)
        np.testing.assert_allclose(data[predictive]["y"].values, expected, atol=1e-3)


def test_no_run_of_many_rows_sees_more_than_asked_for(monkeypatch):
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_ARGUMENTS", 8)
    seen = []

    def counting(x, y=None):
        seen.append(len(x))
        model(x, y)

    def guide(x, y=None):
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    to_arviz(counting, guide, X, Y, num_samples=2, batch_size=4)
    assert max(seen) == 4


def test_unguided_sites_without_rows_are_held_over_the_batches():
    def program(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        shift = pyro.sample("shift", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w + shift + x, 1e-4))

    def guide(x):
        pyro.sample("w", dist.Normal(0.0, 1.0))

    data = to_arviz(program, guide, X[:, 0], num_samples=3, batch_size=2)
    for group, source in (("posterior_predictive", "posterior"), ("prior_predictive", "prior")):
        shift, w = data[group]["shift"].values, data[source]["w"].values
        expected = (w + shift)[..., None] + X[:, 0].numpy()
        np.testing.assert_allclose(data[group]["y"].values, expected, atol=1e-2)


@pytest.mark.parametrize("batch_size", [0, -3, True, 2.5])
def test_batch_size_is_checked(batch_size):
    with pytest.raises(ArgumentError, match="batch_size=.*; expected an integer >= 1"):
        to_arviz(model, AutoNormal(model), X, Y, batch_size=batch_size)


def test_something_must_have_rows():
    def program():
        pyro.sample("a", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match="no argument is a tensor with rows"):
        to_arviz(program, AutoNormal(program), batch_size=2)


def test_no_rows_are_refused():
    with pytest.raises(ShapeError, match=r"of shape \(0, 2\), has no rows"):
        to_arviz(model, AutoNormal(model), X.new_zeros(0, 2), Y[:0])


def local_latents(x):
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=x)


def process(x):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    cov = torch.eye(len(x)) + scale
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), cov), obs=x)


def all_pairs(x):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    pyro.deterministic("kernel", scale * x[:, None] * x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=x)


def one_site_per_row(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    for i in range(len(x)):
        pyro.deterministic(f"mean_{i}", loc + x[i])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=x)


def field(x):
    """Joint noise that is in no guide."""
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    cov = torch.eye(len(x)) + scale
    pyro.sample("field", dist.MultivariateNormal(torch.zeros(len(x)), cov))


def standardised(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(loc, x.std()), obs=x)


def smoothed(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(loc + x - x.mean(), 1.0), obs=x)


@pytest.mark.parametrize("largest", range(6))
def test_rows_scaled_by_their_largest_are_refused(largest):
    def scaled(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(loc + x / x.max(), 1.0), obs=x)

    x = torch.ones(12).index_fill(0, torch.tensor([largest]), 5.0)
    with pytest.raises(ArgumentError, match="the rows of site 'y' depend on each other"):
        to_arviz(scaled, AutoNormal(scaled), x, num_samples=1, batch_size=6)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (field, "the rows of site 'field' depend on each other"),
        (standardised, "the rows of site 'y' depend on each other"),
        (smoothed, "the rows of site 'y' depend on each other"),
        (local_latents, "the latent site 'z' has a value for each of the 11 rows"),
        (process, "the log-probability of the observed site 'y' keeps its shape"),
        (all_pairs, r"site 'kernel' has shape \(3, 3\) .* and \(2, 2\) on another"),
        (one_site_per_row, "site 'mean_2' is absent from a run on fewer rows"),
    ],
)
def test_what_cannot_be_cut_is_refused(program, message):
    guide = AutoNormal(poutine.block(program, hide=["field"]))
    with pytest.raises(ArgumentError, match=message):
        to_arviz(program, guide, Y, num_samples=1, batch_size=3)
    assert to_arviz(program, guide, Y, num_samples=1) is not None


def test_size_is_checked_before_anything_is_made():
    def guide(x, y=None):
        guide.runs += 1
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    guide.runs = 0
    with pytest.raises(ArgumentError, match="more than the limit max_bytes=.*smaller num_samples"):
        to_arviz(model, guide, X, Y, num_samples=10**9)
    assert guide.runs == 1
    needed = 5 * 11 * 3 * 8  # float64
    for limit, fits in ((needed, True), (needed - 1, False)):
        options = {"num_samples": 5, "groups": ("log_likelihood",), "max_bytes": limit}
        if fits:
            to_arviz(model, guide, X, Y, **options)
        else:
            with pytest.raises(ArgumentError, match=r"in GiB: log_likelihood .*now 5"):
                to_arviz(model, guide, X, Y, **options)
    to_arviz(model, guide, X, Y, num_samples=2, max_bytes=None)


@pytest.mark.parametrize("max_bytes", [0, -1, True])
def test_max_bytes_is_checked(max_bytes):
    with pytest.raises(ArgumentError, match="max_bytes=.*; expected a finite number > 0, or None"):
        to_arviz(model, AutoNormal(model), X, Y, num_samples=1, max_bytes=max_bytes)


def test_a_guide_that_draws_all_rows_needs_all_rows():
    class Guide:
        def __call__(self, x):
            with pyro.plate("data", len(x)):
                pyro.sample("z", dist.Normal(torch.zeros(len(x)), 1.0))

        def sample(self, num_samples):
            return {"z": torch.zeros(num_samples, 11)}

    with pytest.raises(ShapeError, match="'z' of the guide has 11 rows .* which has 5 in"):
        to_arviz(local_latents, Guide(), Y[:5], num_samples=2)
    assert to_arviz(local_latents, Guide(), Y, num_samples=2)["posterior"]["z"].shape == (1, 2, 11)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("posterior", "groups is the string 'posterior'; expected a sequence"),
        ((), r"groups is \[\]; expected one or more of"),
        (("posterior", "warmup"), "groups is .*'warmup'.*; expected one or more of"),
    ],
)
def test_groups_are_checked(groups, message):
    with pytest.raises(ArgumentError, match=message):
        to_arviz(model, AutoNormal(model), X, Y, num_samples=1, groups=groups)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("log_likelihood", "observes nothing with these arguments; pass the observations"),
        ("observed_data", "observes nothing"),
        ("prior_predictive", "no site that is observed or outside of the guide"),
        ("posterior_predictive", "no site that is observed or outside of the guide"),
        ("constant_data", "no argument is a tensor that is not observed"),
    ],
)
def test_a_group_asked_for_must_not_be_empty(group, reason):
    def program():
        pyro.sample("a", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=f"group '{group}' would be empty: .*{reason}"):
        to_arviz(program, AutoNormal(program), num_samples=1, groups=[group])
    assert set(to_arviz(program, AutoNormal(program), num_samples=1)["posterior"]) == {"a"}


def test_an_improper_prior_asked_for_is_an_error():
    def program(y):
        improper = dist.ImproperUniform(dist.constraints.real, (), ())
        mu = pyro.sample("mu", improper)
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    def guide(y):
        pyro.sample("mu", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match=r"group 'prior' was asked for, but .*\['mu'\] cannot be"):
        to_arviz(program, guide, Y[0], num_samples=1, groups=("prior",))


def test_a_likelihood_given_an_unguided_site_is_an_error_unless_it_comes_later():
    def program(y, first=True):
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        k = pyro.sample("k", dist.Bernoulli(p)) if first else 0.0
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(k, 1.0), obs=y)
        if not first:
            pyro.sample("k", dist.Bernoulli(p))

    def guide(y, first=True):
        pyro.sample("p", dist.Beta(2.0, 2.0))

    told = r"log-likelihood of 'y' may depend on \['k'\].*groups=\('posterior', 'posterior_pred"
    with pytest.raises(SiteError, match=told):
        to_arviz(program, guide, Y, num_samples=1)
    data = to_arviz(program, guide, Y, num_samples=50, groups=["posterior_predictive"])
    assert set(np.unique(data["posterior_predictive"]["k"].values)) == {0.0, 1.0}
    later = to_arviz(program, guide, Y, num_samples=2, first=False)
    expected = -0.5 * Y.numpy() ** 2 - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(later["log_likelihood"]["y"].values[0, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("event_dim", [0, None])
def test_a_computed_site_within_the_plate_of_the_rows_is_cut(event_dim: Any) -> None:
    """Without an ``event_dim`` Pyro makes one event of all its rows."""

    def model(x: Any, y: Any = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            f = pyro.deterministic("f", w * x, event_dim=event_dim)
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    x = torch.linspace(-1.0, 1.0, 30)
    guide = AutoNormal(model)
    guide(x, x)
    found = []
    for batch_size in (None, 7):
        pyro.set_rng_seed(0)
        found.append(to_arviz(model, guide, x, x, num_samples=4, batch_size=batch_size))
    whole, parts = found
    for group, name in (("log_likelihood", "y"), ("posterior", "f")):
        np.testing.assert_allclose(parts[group][name], whole[group][name], rtol=1e-5)


def _lag(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("time", len(x) - 1):
        pyro.sample("y", dist.Normal(w * x[:-1], 1.0), obs=y[1:])


def _sums(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    sums = x.reshape(-1, 7).sum(1)
    with pyro.plate("weeks", len(sums)):
        pyro.sample("y", dist.Normal(w * sums, 1.0), obs=y[: len(sums)])


def _table(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(w * x[torch.arange(len(y)).flip(0) + 70 - len(y)], 1.0), obs=y)


def _twice(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("eyes", 2 * len(x)):
        eyes = torch.zeros(140)
        pyro.sample("y", dist.Normal(w * x.repeat_interleave(2), 1.0), obs=eyes)


@pytest.mark.parametrize("batch_size", [33, 35])
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (_lag, "site 'y' has 3[24] entries on 3[35] rows, as of y.1:. or windows"),
        (_sums, "the model does not run on some of its 70 rows alone .*Leave batch_size out"),
        (_table, "the model does not run on some of its 70 rows alone .IndexError: index 69"),
        (_twice, "the model does not run on some of its 70 rows alone .*first dimension"),
    ],
)
def test_models_that_take_all_rows_alone_say_so(model, told, batch_size):
    if model is _sums and batch_size == 35:
        told = "site 'y' has 5 entries on 35 rows|does not run on some"
    guide = AutoNormal(model)
    x, y = torch.randn(70), torch.randn(70)
    guide(x, y)
    to_arviz(model, guide, x, y, num_samples=2)
    with pytest.raises(ArgumentError, match=told):
        to_arviz(model, guide, x, y, num_samples=2, batch_size=batch_size)


def test_what_fails_on_all_rows_too_keeps_its_error():
    def wrong(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x.reshape(-1, 9).sum(1), 1.0), obs=y)

    guide = AutoNormal(poutine.block(wrong, expose=["w"]))
    with pytest.raises((ShapeError, RuntimeError), match="invalid for input of size") as told:
        to_arviz(wrong, guide, torch.randn(70), torch.randn(70), num_samples=2, batch_size=33)
    assert "batch_size" not in str(told.value)
