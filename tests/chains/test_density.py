"""The density of many chains: the same numbers vectorised, recorded and one after the other."""

from __future__ import annotations

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import BayesianModule, refine
from pyro_implicit.chains.density import ChainDensity, cast
from pyro_implicit.chains.latents import read_latents
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.log_joint import LogJoint
from tests.chains.models import X, Y, funnel, line, local


def density(model, *args, dtype=torch.float32):
    sites, _ = read_latents(model, args, {})
    return ChainDensity(LogJoint(model, sites, args, {}), dtype)


@pytest.mark.parametrize(
    ("model", "args", "m"), [(line, (X, Y), 3), (local, (Y,), 13), (funnel, (), 4)]
)
def test_recorded_numbers_are_those_of_single_points(model, args, m):
    found = density(model, *args)
    u = torch.randn(5, m)
    with found.ready(u):
        assert found.how == "recorded" and found.num_gradients == 0
        values, gradients = found(u)
        once_more = found._vectorised(u)
        assert torch.equal(values, once_more[0]) and torch.equal(gradients, once_more[1])
        expected = found._looped(u)
    torch.testing.assert_close(values, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients, expected[1], rtol=1e-4, atol=1e-3)
    assert found.num_gradients == 5


#: its checks read numbers back
CHECKED = dist.LogNormal(torch.zeros(2), 1.0, validate_args=True).to_event(1)


def checked():
    pyro.sample("x", CHECKED)


def network(*layers):
    with pyro.validation_enabled(True):
        net = BayesianModule(torch.nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x, y):
        f = net(x).flatten(1).sum(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    return model


@pytest.mark.parametrize("kind", ["prior", "layer", "convolution"])
def test_priors_with_checks_are_recorded(kind):
    """So are networks; a convolution goes point by point."""
    torch.manual_seed(0)
    if kind == "prior":
        model, args, m = checked, (), 2
    elif kind == "layer":
        model, args, m = network(torch.nn.Linear(3, 2)), (torch.randn(4, 3), torch.randn(4)), 8
    else:
        layers = torch.nn.Conv1d(1, 2, 3), torch.nn.Tanh()
        model, args, m = network(*layers), (torch.randn(4, 1, 6), torch.randn(4)), 8
    found = density(model, *args)
    u = torch.randn(5, m)
    with found.ready(u):
        assert found.how == "recorded"
        values, gradients = found(u)
        expected = found._looped(u)
        assert found._convolves == (kind == "convolution")
    torch.testing.assert_close(values, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients, expected[1], rtol=1e-4, atol=1e-3)


def test_a_parameter_is_seen_anew_each_time():
    def model():
        loc = pyro.param("loc", torch.tensor(0.0))
        pyro.sample("x", dist.Normal(loc, 1.0).expand([2]).to_event(1))

    found = density(model)
    u = torch.zeros(3, 2)
    with found.ready(u):
        at_zero = found(u)[0]
    pyro.get_param_store()["loc"] = torch.tensor(2.0)
    with found.ready(u):
        torch.testing.assert_close(found(u)[0], at_zero - 4.0)


def test_another_number_of_points_is_evaluated_too():
    found = density(line, X, Y)
    u = torch.randn(4, 3)
    with found.ready(u):
        torch.testing.assert_close(found(u[:3])[0], found(u)[0][:3])


def branching():
    x = pyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = 1.0 if float(x[0].detach()) > 0 else 2.0
    pyro.sample("y", dist.Normal(x[1], scale), obs=torch.tensor(1.0))


def test_a_model_that_reads_numbers_is_looped_with_the_reason():
    found = density(branching)
    u = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    with pytest.warns(UserWarning, match="one after the other.*does not vectorise over them: "):
        with found.ready(u):
            assert found.how == "loop" and found.reason
            values, gradients = found(u)
    prior = dist.Normal(0.0, 1.0).log_prob(u).sum(-1)
    likelihood = dist.Normal(u[:, 1], torch.tensor([1.0, 2.0])).log_prob(torch.tensor(1.0))
    torch.testing.assert_close(values, prior + likelihood)
    torch.testing.assert_close(gradients[:, 0], -u[:, 0])


def test_a_model_that_is_another_one_when_vectorised_is_looped():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        if torch._C._functorch.is_batchedtensor(x):
            x = 2 * x
        pyro.factor("f", -x.square().sum())

    found = density(model)
    with pytest.warns(UserWarning, match="differ from those at single points"):
        with found.ready(torch.ones(2, 2)):
            assert found.how == "loop"


def test_chains_at_one_mode_are_vectorised_all_the_same():
    """Gradients there are nothing but rounding, which no two ways of evaluation share."""
    x = torch.randn(2000)

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
        pyro.factor("f", -1e3 * (x - w[0]).square().sum() - 1e3 * (x - w[1]).square().sum())

    found = density(model)
    with found.ready(x.mean().expand(3, 2).contiguous()):
        assert found.how != "loop"


def test_random_densities_are_refused():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("noise", torch.randn(()))

    with pytest.raises(SiteError, match="draws random numbers beside its latents"):
        with density(model).ready(torch.zeros(2, 1)):
            pass


def test_nothing_global_is_left_behind():
    found = density(line, X.double(), Y.double(), dtype=torch.float64)
    u = torch.zeros(2, 3, dtype=torch.float64)
    with found.ready(u):
        assert torch.get_default_dtype() == torch.float64
        assert found(u)[0].dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_outside_of_the_domain_a_loop_says_nan():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if float(x.detach()) > 3:
            raise ValueError("too far")

    found = density(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with found.ready(torch.zeros(1, 1)):
            assert found(torch.full((2, 1), 4.0))[0].isnan().all()


def test_only_numbers_with_a_point_are_converted():
    mixed = cast((X, torch.arange(3), "text", None), torch.float64)
    assert [getattr(one, "dtype", one) for one in mixed] == [
        torch.float64,
        torch.int64,
        "text",
        None,
    ]
    assert cast({"x": X}, torch.float64)["x"].dtype == torch.float64


def matrices():
    """A covariance that is none below zero."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    covariance = torch.eye(2) + x[0] * torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    with pyro.plate("rows", 2):
        y = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(2), covariance), obs=y)


def test_points_without_a_density_are_told_from_the_others():
    found = density(matrices)
    good, bad = torch.zeros(3, 2), torch.tensor([[3.0, 0.0]])
    with found.ready(good):
        assert found.how != "loop"
        expected, slopes = found(good)
        values, gradients = found(torch.cat([good[:2], bad]))
    torch.testing.assert_close(values[:2], expected[:2])
    torch.testing.assert_close(gradients[:2], slopes[:2])
    assert bool(values[2].isnan()) and bool(gradients[2].isnan().any())


@pytest.mark.long
def test_a_trajectory_that_leaves_the_density_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short chains
        chains = refine(matrices, 2, kernel="hmc", num_steps=300, seed=0, progress=False)
    x = chains.draws["x"][..., 0]
    assert bool(x.isfinite().all()) and float(x.abs().max()) < 1.0
    assert float(x.std()) > 0.2


def test_data_in_double_precision_need_no_other_density_one_by_one():
    """With several chains at once torch makes the logits double, and with one single."""
    x = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 6):
            pyro.sample("y", dist.Bernoulli(logits=level * x), obs=(x > 0).float())

    found = density(model)
    with found.ready(torch.zeros(3, 1)):
        values, _ = found(torch.tensor([[0.1], [0.5], [1.0]]))
    exact = [float(one) for one in found._looped(torch.tensor([[0.1], [0.5], [1.0]]))[0]]
    assert found.how != "loop"
    assert values.tolist() == pytest.approx(exact, abs=1e-5)
