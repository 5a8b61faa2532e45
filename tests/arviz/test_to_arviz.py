"""to_arviz: what is in each group, against closed forms, and that ArviZ can work with it."""

from __future__ import annotations

import gc
import json
import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from pyro.infer.reparam import LocScaleReparam

from pyro_implicit import HyperNetworkGuide, predict, refine
from pyro_implicit.arviz.compatibility import arviz_line, import_arviz
from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.exceptions import ArgumentError, SiteError

arviz = import_arviz()
only_0x = pytest.mark.skipif(arviz_line(arviz) > 0, reason="names of the ArviZ 0.x line")

X = torch.linspace(-1, 1, 20)[:, None] * torch.tensor([1.0, -2.0])
Y = torch.linspace(0, 2, 20)


def model(x, y=None):
    w = pyro.sample("0.weight", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    mean = pyro.deterministic("mean", x @ w)
    with pyro.plate("data", 1000, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def guide(x, y=None):
    pyro.sample("0.weight", dist.Normal(torch.tensor([1.0, 2.0]), 0.1).to_event(1))
    pyro.sample("scale", dist.LogNormal(0.0, 0.1))


def values(data, group, name):
    return data[group][name].values


def normal_log_prob(y, loc, scale):
    return -0.5 * ((y - loc) / scale) ** 2 - np.log(scale) - 0.5 * math.log(2 * math.pi)


def test_groups_and_shapes():
    data = to_arviz(model, guide, X, Y, num_samples=6)
    shapes = {
        group: {name: tuple(v.shape) for name, v in data[group].data_vars.items()}
        for group in ("posterior", "posterior_predictive", "log_likelihood", "prior")
        + ("prior_predictive", "observed_data", "constant_data")
    }
    parameters = {"0.weight": (1, 6, 2), "scale": (1, 6), "mean": (1, 6, 20)}
    assert shapes == {
        "posterior": parameters,
        "posterior_predictive": {"y": (1, 6, 20)},
        "log_likelihood": {"y": (1, 6, 20)},
        "prior": parameters,
        "prior_predictive": {"y": (1, 6, 20)},
        "observed_data": {"y": (20,)},
        "constant_data": {"x": (20, 2)},
    }


@pytest.mark.parametrize("runs", ["one run", "a run for predictions"])
def test_draws_are_those_of_guide_and_model_and_data_are_drawn_from_the_same_draw(runs):
    """y_n ~ N(mu, 1). What the sites drew is remembered: no tolerance is for their distribution."""
    of_guide, of_prior, num_data, y = [], [], 50, torch.randn(50) + 3.0

    def conjugate(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        of_prior.append(float(mu))
        with pyro.plate("data", num_data):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        if runs == "a run for predictions":
            pyro.sample("neither observed nor in the guide", dist.Normal(mu, 1.0))

    def exact(y):
        of_guide.append(float(pyro.sample("mu", dist.Normal(y.mean(), num_data**-0.5))))

    data = to_arviz(conjugate, exact, y, num_samples=80)
    assert np.array_equal(values(data, "observed_data", "y"), y.numpy())
    known = {"posterior": set(of_guide), "prior": set(of_prior) - set(of_guide)}
    for group, predictive in (("posterior", "posterior_predictive"), ("prior", "prior_predictive")):
        mu = values(data, group, "mu")
        assert mu.shape == (1, 80) and len(np.unique(mu)) == 80
        assert {float(draw) for draw in mu.flat} <= known[group]
        errors = values(data, predictive, "y") - mu[..., None]
        assert abs(errors.std() - 1) < 0.05  # 4000 of them
        # with the mean of another draw of the posterior, these would have variance 3
        assert 0.5 < (errors.mean(-1) * num_data**0.5).var() < 1.7


def test_log_likelihood_is_the_closed_form_at_the_draws():
    data = to_arviz(model, guide, X, Y, num_samples=5)
    w, scale = values(data, "posterior", "0.weight"), values(data, "posterior", "scale")
    mean = w.astype(float) @ X.numpy().T
    expected = normal_log_prob(Y.numpy(), mean, scale[..., None])
    np.testing.assert_allclose(values(data, "log_likelihood", "y"), expected, rtol=1e-5)
    np.testing.assert_allclose(values(data, "posterior", "mean"), mean, rtol=1e-5, atol=1e-6)


def test_several_observed_sites_and_plates():
    counts, y = torch.tensor([1.0, 2.0, 3.0]), torch.randn(2, 4, 3)

    def many(counts, y):
        rate = pyro.sample("rate", dist.LogNormal(0.0, 1.0))
        with pyro.plate("sites", 3):
            pyro.sample("counts", dist.Poisson(rate), obs=counts)
        with pyro.plate("years", 2, dim=-2), pyro.plate("months", 4, dim=-1):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z[..., None], 1.0).expand([2, 4, 3]).to_event(1), obs=y)

    data = to_arviz(many, AutoNormal(many), counts, y, num_samples=3)
    rate, z = values(data, "posterior", "rate"), values(data, "posterior", "z")
    expected = torch.distributions.Poisson(torch.tensor(rate)[..., None]).log_prob(counts)
    np.testing.assert_allclose(values(data, "log_likelihood", "counts"), expected, rtol=1e-5)
    expected = normal_log_prob(y.numpy(), z[..., None], 1.0).sum(-1)
    np.testing.assert_allclose(values(data, "log_likelihood", "y"), expected, rtol=1e-5)
    assert data["log_likelihood"]["y"].dims == ("chain", "draw", "years", "months")
    assert data["posterior"]["z"].dims == ("chain", "draw", "years", "months")
    assert data["observed_data"]["y"].dims == ("years", "months", "y_dim_0")
    assert data["observed_data"]["counts"].dims == ("sites",)


@pytest.mark.parametrize("make", [AutoNormal, AutoMultivariateNormal, AutoDelta])
def test_improper_priors_only_cost_the_prior_groups(make):
    def improper(y):
        mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    fitted = make(improper, init_loc_fn=lambda site: torch.tensor(1.0))
    data = to_arviz(improper, fitted, Y, num_samples=3)
    mu = values(data, "posterior", "mu")
    np.testing.assert_allclose(
        values(data, "log_likelihood", "y"),
        normal_log_prob(Y.numpy(), mu[..., None], 1.0),
        rtol=1e-4,
        atol=1e-6,
    )
    assert values(data, "posterior_predictive", "y").shape == (1, 3, 20)
    assert data.attrs["prior_omitted"] == "sites ['mu'] cannot be drawn from their prior"
    with pytest.raises(KeyError):
        data["prior"]


class Folded(dist.TorchDistribution):
    """The absolute value of a normal variable: a density, and no draws."""

    arg_constraints = {}
    support = constraints.positive

    def __init__(self, loc, validate_args=None):
        self.loc = loc
        super().__init__(loc.shape, (), validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        return Folded(self.loc.expand(batch_shape))

    def log_prob(self, value):
        both = [dist.Normal(sign * self.loc, 1.0).log_prob(value) for sign in (1, -1)]
        return torch.logaddexp(*both)


def folded(y=None):
    mu = pyro.sample("mu", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", 20):
        return pyro.sample("y", Folded(mu.expand(20)), obs=y)


def test_a_likelihood_without_draws_leaves_out_what_needs_them():
    fitted, y = AutoNormal(folded), Y.abs()
    fitted(y)
    with pytest.warns(UserWarning, match=r"left out.*\['y'\] has no sample.*prior and prior_pre"):
        data = to_arviz(folded, fitted, y, num_samples=3)
    assert values(data, "log_likelihood", "y").shape == (1, 3, 20)
    mu = torch.as_tensor(values(data, "posterior", "mu"))[..., None]
    expected = Folded(mu).log_prob(y).numpy()
    np.testing.assert_allclose(values(data, "log_likelihood", "y"), expected, rtol=1e-4)
    for group in ("prior", "posterior_predictive"):
        with pytest.raises(SiteError, match=f"group '{group}' was asked for, but.*no sample"):
            to_arviz(folded, fitted, y, num_samples=3, groups=["posterior", group])


def test_predictions_of_a_likelihood_without_draws_are_refused_by_its_name():
    fitted = AutoNormal(folded)
    fitted(Y.abs())
    with pytest.raises(SiteError, match=r"'y' cannot be drawn: its distribution Folded has no sam"):
        predict(folded, fitted, num_samples=3)


def test_only_the_groups_asked_for():
    calls = []

    def counting(x, y=None):
        calls.append(None)
        model(x, y)

    data = to_arviz(counting, guide, X, Y, num_samples=4, groups=("observed_data",))
    assert len(calls) == 2  # to find the sites, and the data
    assert set(data["observed_data"].data_vars) == {"y"}
    for group in ("posterior", "log_likelihood", "prior"):
        with pytest.raises(KeyError):
            data[group]
    calls.clear()
    to_arviz(counting, guide, X, Y, num_samples=4, groups=["log_likelihood", "posterior"])
    assert len(calls) == 1 + 4


def test_one_observed_site_takes_one_run_for_its_density_and_its_prediction():
    calls = []

    def counting(x, y=None):
        calls.append(None)
        model(x, y)

    wanted = ["posterior", "log_likelihood", "posterior_predictive"]
    pyro.set_rng_seed(3)
    one_run = to_arviz(counting, guide, X, Y, num_samples=4, groups=wanted)
    assert len(calls) == 1 + 4
    pyro.set_rng_seed(3)
    alone = to_arviz(model, guide, X, Y, num_samples=4, groups=wanted[2:])
    predicted = (values(data, "posterior_predictive", "y") for data in (one_run, alone))
    np.testing.assert_array_equal(*predicted)


def test_predictions_that_follow_predictions_are_drawn_without_the_data():
    def chain(first, second):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        first = pyro.sample("first", dist.Normal(level, 0.01), obs=first)
        pyro.sample("second", dist.Normal(first, 0.01), obs=second)

    data = to_arviz(
        chain, AutoNormal(chain), torch.tensor(50.0), torch.tensor(50.0), num_samples=20
    )
    assert abs(values(data, "posterior_predictive", "second")).max() < 10  # not 50
    density = normal_log_prob(50.0, 50.0, 0.01)  # given the data, which it follows
    np.testing.assert_allclose(values(data, "log_likelihood", "second"), density, rtol=1e-5)


@pytest.mark.long
def test_without_observations_new_data_are_predicted():
    data = to_arviz(model, guide, X[:7], num_samples=300)
    predicted = values(data, "posterior_predictive", "y")
    assert predicted.shape == (1, 300, 7)
    mean = X[:7].numpy() @ np.array([1.0, 2.0])
    np.testing.assert_allclose(predicted[0].mean(0), mean, atol=0.3)
    for group in ("log_likelihood", "observed_data"):
        with pytest.raises(KeyError):
            data[group]
    assert values(data, "constant_data", "x").shape == (7, 2)


def test_masked_data_and_partly_observed_data():
    mask = torch.arange(20) < 15

    def masked(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=mask)

    data = to_arviz(masked, AutoNormal(masked), Y, num_samples=3)
    log_likelihood = values(data, "log_likelihood", "y_observed")
    assert (log_likelihood[..., 15:] == 0).all() and (log_likelihood[..., :15] != 0).all()
    assert set(data["posterior"].data_vars) == {"mu", "y_unobserved", "y"}
    np.testing.assert_array_equal(values(data, "posterior", "y")[..., :15], Y[:15].expand(1, 3, 15))


def test_factors_are_in_no_group():
    def with_factor(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        pyro.factor("penalty", -mu.abs())
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    data = to_arviz(with_factor, AutoNormal(with_factor), Y, num_samples=2)
    for group in ("posterior", "posterior_predictive", "log_likelihood", "observed_data"):
        assert "penalty" not in data[group]


def test_a_reparameterised_site_is_in_the_posterior_not_in_the_data():
    def centred(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, 2.0))
            pyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    decentred = poutine.reparam(centred, config={"theta": LocScaleReparam(0.0)})
    data = to_arviz(decentred, AutoNormal(decentred), Y, num_samples=4)
    assert set(data["observed_data"].data_vars) == {"y"}
    posterior = data["posterior"]
    np.testing.assert_allclose(
        posterior["theta"].values,
        posterior["mu"].values[..., None] + 2 * posterior["theta_decentered"].values,
        rtol=1e-5,
        atol=1e-6,
    )
    prior = data["prior"]
    assert np.array_equal(prior["theta"].dims, posterior["theta"].dims)


def test_a_latent_of_the_model_that_is_marked_auxiliary_is_a_latent():
    """The mark is for variables of a guide's own; a prior cannot be left out by it."""

    def marked(x, y=None):
        prior = dist.Normal(torch.zeros(2), 1.0).to_event(1)
        w = pyro.sample("w", prior, infer={"is_auxiliary": True})
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    own = HyperNetworkGuide(marked, init_from=None).setup(X, Y)
    data = to_arviz(marked, own, X, Y, num_samples=6)
    mean = values(data, "posterior", "w") @ X.numpy().T
    expected = normal_log_prob(Y.numpy(), mean, 1.0)
    assert np.allclose(values(data, "log_likelihood", "y"), expected, atol=1e-4)
    chains = refine(marked, own, X, Y, num_chains=1, num_steps=20, progress=False)
    assert set(chains.draws) == {"w"}


def test_a_minibatch_has_the_densities_of_its_rows():
    def minibatch(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 100, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    def fixed(x, y):
        return pyro.sample("w", dist.Delta(torch.tensor(2.0)))

    data = to_arviz(minibatch, fixed, X[:, 0], Y, num_samples=2)
    expected = normal_log_prob(Y.numpy(), 2.0 * X[:, 0].numpy(), 1.0)
    np.testing.assert_allclose(values(data, "log_likelihood", "y")[0, 1], expected, rtol=1e-5)


def test_a_sequential_model_predicts_from_its_own_predictions():
    """Each step depends on the step before: drawing from the conditionals would be wrong."""
    y = torch.zeros(3)

    def walk(y):
        drift = pyro.sample("drift", dist.Normal(0.0, 1.0))
        last = torch.tensor(0.0)
        for t in range(len(y)):
            last = pyro.sample(f"y_{t}", dist.Normal(last + drift, 0.01), obs=y[t])

    fixed = AutoDelta(walk, init_loc_fn=lambda site: torch.tensor(1.0))
    data = to_arviz(walk, fixed, y, num_samples=50)
    assert abs(values(data, "posterior_predictive", "y_2").mean() - 3.0) < 0.02
    expected = normal_log_prob(0.0, 1.0, 0.01)
    np.testing.assert_allclose(values(data, "log_likelihood", "y_2"), expected, rtol=1e-5)


@pytest.mark.parametrize("settings", [True, False])
def test_attributes(settings):
    class OurELBO(Trace_ELBO):
        settings = {"kl_weight": 0.5, "prior_weight": 1, "num_particles": 8, "likelihood": "x"}

    objective = OurELBO() if settings else Trace_ELBO(num_particles=3)
    pyro.set_rng_seed(17)
    data = to_arviz(model, AutoNormal(model), X, Y, num_samples=2, objective=objective)
    for attrs in (data.attrs, data["posterior"].attrs, data["observed_data"].attrs):
        assert attrs["inference_library"] == "pyro_implicit"
        assert attrs["guide"] == "AutoNormal" and int(attrs["seed"]) == 17
        assert attrs["pyro_version"] == pyro.__version__
        assert attrs["torch_version"] == torch.__version__
        assert attrs["arviz_version"] == arviz.__version__
        assert attrs["inference_library_version"]
        particles = json.loads(attrs["objective_settings"])["num_particles"]
        assert (attrs["objective"], particles) == (type(objective).__name__, 8 if settings else 3)
        if settings:
            assert (attrs["kl_weight"], attrs["prior_weight"]) == (0.5, 1.0)


def test_guide_function_and_absent_objective_in_the_attributes():
    attrs = to_arviz(model, guide, X, Y, num_samples=1).attrs
    assert (attrs["guide"], attrs["objective"]) == ("guide", "not given")


def test_objective_must_be_one():
    with pytest.raises(ArgumentError, match="objective is 'elbo'; expected the objective, or None"):
        to_arviz(model, guide, X, Y, num_samples=1, objective="elbo")


def same_attrs(read, written):
    """ArviZ 1.x reads lists as arrays."""
    assert read.attrs.keys() == written.attrs.keys()
    for name, value in written.attrs.items():
        np.testing.assert_array_equal(read.attrs[name], value, err_msg=name)


@pytest.mark.long
def test_netcdf_round_trip(tmp_path):
    data = to_arviz(
        model, guide, X, Y, num_samples=3, objective=Trace_ELBO(), coords={"data": range(5, 25)}
    )
    data.to_netcdf(tmp_path / "data.nc")
    read = arviz.from_netcdf(tmp_path / "data.nc")
    for group in ("posterior", "log_likelihood", "prior_predictive", "constant_data"):
        for name, variable in data[group].data_vars.items():
            np.testing.assert_array_equal(read[group][name].values, variable.values)
            assert read[group][name].dims == variable.dims
        same_attrs(read[group], data[group])
    same_attrs(read, data)
    assert list(read["log_likelihood"]["y"].coords["data"].values) == list(range(5, 25))


@pytest.mark.long
def test_half_precision_and_booleans_can_be_saved(tmp_path):
    def coins(y):
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        pyro.deterministic("half", p.bfloat16())
        pyro.deterministic("large", p > 0.5)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(p), obs=y)

    data = to_arviz(coins, AutoNormal(coins), torch.ones(3), num_samples=4)
    assert data["posterior"]["half"].dtype == np.float32
    data.to_netcdf(tmp_path / "data.nc")
    read = arviz.from_netcdf(tmp_path / "data.nc")
    assert read["posterior"]["large"].dtype == bool


@pytest.mark.long
def test_loo_and_summary_work():
    y = X @ torch.tensor([1.0, 2.0]) + torch.randn(20)
    data = to_arviz(model, guide, X, y, num_samples=400, groups=("posterior", "log_likelihood"))
    loo = arviz.loo(data)
    elpd = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo
    log_likelihood = values(data, "log_likelihood", "y")[0]
    lppd = (torch.logsumexp(torch.tensor(log_likelihood), 0) - math.log(400)).sum().item()
    assert elpd < lppd and abs(elpd - lppd) < 2.0
    assert list(arviz.summary(data, var_names=["scale"], kind="stats").index) == ["scale"]


@pytest.mark.long
def test_log_likelihoods_are_computed_in_float64_and_loo_is_finite():
    pyro.set_rng_seed(0)
    y = torch.randn(50)

    def program(y=None):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 50):
            pyro.sample("y", dist.Normal(a, 0.1), obs=y)
            pyro.sample("many", dist.Normal(a, 0.1).expand([3000]).to_event(1), obs=big)

    big = torch.linspace(-1, 1, 3000).expand(50, 3000)

    def wide(y):
        pyro.sample("a", dist.Normal(0.0, 2.0))

    data = to_arviz(program, wide, y, num_samples=50)
    a = values(data, "posterior", "a")[0]
    for name in ("y", "many"):
        assert values(data, "log_likelihood", name).dtype == np.float64
    entries = dist.Normal(torch.tensor(a)[:, None], 0.1).log_prob(big[0])  # what the model has
    found = values(data, "log_likelihood", "many")[0, :, 0]
    np.testing.assert_allclose(found, entries.double().sum(-1), rtol=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pareto k, rightly
        loo = arviz.loo(data, var_name="y")
    elpd = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo
    assert math.isfinite(elpd)


@pytest.mark.long
@only_0x
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Matplotlib, about ArviZ
def test_plots_of_the_0x_line_work():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    data = to_arviz(model, guide, X, Y, num_samples=200)
    assert arviz.plot_pair(data, var_names=["0.weight", "scale"]) is not None
    assert arviz.plot_ppc(data, num_pp_samples=10) is not None
    assert arviz.plot_loo_pit(data, y="y") is not None
    pyplot.close("all")


def test_keeps_no_trace_and_leaves_the_model_alone():
    fitted = AutoNormal(model)
    fitted(X, Y)
    gc.collect()
    before = sum(type(o) is poutine.Trace for o in gc.get_objects())
    gc.disable()  # even what a cycle would keep alive for a while counts
    try:
        to_arviz(model, fitted, X, Y, num_samples=10)
        after = sum(type(o) is poutine.Trace for o in gc.get_objects())
    finally:
        gc.enable()
    assert after == before


def test_the_seed_decides():
    pyro.set_rng_seed(3)
    first = to_arviz(model, guide, X, Y, num_samples=3)
    pyro.set_rng_seed(3)
    second = to_arviz(model, guide, X, Y, num_samples=3)
    for group in ("posterior", "posterior_predictive", "prior", "prior_predictive"):
        for name in first[group].data_vars:
            np.testing.assert_array_equal(values(first, group, name), values(second, group, name))


def _overflows(y: torch.Tensor) -> None:
    scale = pyro.sample("scale", dist.HalfCauchy(1e6))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, torch.exp(-scale)), obs=y)


def test_a_draw_of_the_prior_that_the_model_refuses_costs_the_prior_groups() -> None:
    y = torch.ones(5)
    at_one = init_to_value(values={"scale": torch.tensor(1.0)})
    guide = HyperNetworkGuide(_overflows, init_from=None, init_loc_fn=at_one).setup(y)
    with pytest.warns(UserWarning, match="left out: draw 0 of the prior has parameters.*scale"):
        data = to_arviz(_overflows, guide, y, num_samples=4)
    assert {"posterior", "log_likelihood"} <= set(data.groups())
    assert not {"prior", "prior_predictive"} & set(data.groups())
    with pytest.raises(SiteError, match="prior asked for, and draw 0 of the prior.*lighter tail"):
        to_arviz(_overflows, guide, y, num_samples=4, groups=["posterior", "prior"])
    to_arviz(_overflows, guide, y, num_samples=4, groups=["posterior", "log_likelihood"])


def test_another_error_of_a_prior_draw_is_its_own() -> None:
    def model(y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if armed and not bool(w == 0):
            raise ValueError("of the model")
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    armed: list[int] = []
    y = torch.tensor(1.0)
    guide = HyperNetworkGuide(model, init_from=None).setup(y)
    armed.append(1)
    with pytest.raises(ValueError, match="of the model"):
        to_arviz(model, guide, y, num_samples=2, groups=["prior"])


def test_observations_that_follow_latents_are_told():
    def residuals(x, y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(0.0, 0.5), obs=y - a * x[:, 0])

    def of_a(x, y):
        pyro.sample("a", dist.Normal(1.0, 0.5))

    with pytest.warns(UserWarning, match=r"\['y'\] observes what follows latents"):
        to_arviz(residuals, of_a, X, Y, num_samples=5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float64])
@pytest.mark.parametrize("is_count", [True, False])
def test_predictions_are_in_the_numbers_of_the_distribution_not_of_the_data(dtype, is_count):
    """Ratings in whole numbers under a Normal; counts above what eight bits hold."""
    y = torch.tensor([110, 120, 127, 100], dtype=dtype)

    def of_numbers(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1e-3))
        with pyro.plate("rows", 4):
            fn = dist.Poisson(300.0 + w + x) if is_count else dist.Normal(0.6 + w + x, 0.1)
            pyro.sample("y", fn, obs=y)

    def guide(x, y=None):
        pyro.sample("w", dist.Normal(torch.tensor(0.0), 1e-3))

    x = torch.zeros(4)
    found = to_arviz(of_numbers, guide, x, y, num_samples=500, seed=0)
    mean, sd = (300.0, math.sqrt(300.0)) if is_count else (0.6, 0.1)
    for group in ("posterior_predictive", "prior_predictive"):
        drawn = found[group]["y"].values
        assert drawn.dtype == np.float32
        assert drawn.mean() == pytest.approx(mean, abs=4 * sd / math.sqrt(2000))
        assert drawn.std() == pytest.approx(sd, rel=0.1)
    observed = found["observed_data"]["y"].values
    assert np.array_equal(observed, y.numpy()) and observed.dtype == y.numpy().dtype
