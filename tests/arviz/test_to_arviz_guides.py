"""to_arviz and posterior_draws with the guides, networks and objectives of this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal

from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.handlers.rows.row_coupling import _MAX_NUMBERS_OF_A_LOOK
from pyro_implicit.inference.posterior_draws import posterior_draws
from pyro_implicit.objectives.linearised import LinearisedELBO

X = torch.linspace(-1, 1, 15)[:, None]
Y = torch.sin(3 * X[:, 0])


def model(x, y=None):
    scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    with pyro.plate("inputs", 1):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", 15, subsample_size=len(x)):
        mean = w[..., 0] + w[..., 1] * x[:, 0]
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def mixed_guide():
    guide = AutoGuideList(model)
    guide.append(HyperNetworkGuide(poutine.block(model, expose=["w"])))
    guide.append(AutoNormal(poutine.block(model, expose=["scale"])))
    return guide


GUIDES = {
    "joint": lambda: HyperNetworkGuide(model),
    "factorized": lambda: HyperNetworkGuide(model, factorized=True),
    "mixed": mixed_guide,
}


@pytest.mark.parametrize("name", GUIDES)
def test_draws_are_latents_only(name):
    guide = GUIDES[name]()
    guide(X, Y)
    draws = posterior_draws(guide, 6, X, Y)
    assert {k: tuple(v.shape) for k, v in draws.items()} == {"scale": (6,), "w": (6, 1, 2)}
    assert (draws["scale"] > 0).all() and not any(v.requires_grad for v in draws.values())


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("name", GUIDES)
def test_export(name, batch_size):
    guide = GUIDES[name]()
    with pytest.raises(StateError, match="is not built yet"):
        to_arviz(model, guide, X, Y, num_samples=5)  # its draws are those of no posterior
    guide(X, Y)
    data = to_arviz(model, guide, X, Y, num_samples=5, batch_size=batch_size)
    posterior = data["posterior"]
    assert set(posterior.data_vars) == {"scale", "w"}
    assert posterior["w"].dims == ("chain", "draw", "inputs", "w_dim_0")
    w, scale = posterior["w"].values[:, :, 0], posterior["scale"].values[..., None]
    mean = w[..., :1] + w[..., 1:] * X[:, 0].numpy()
    expected = torch.distributions.Normal(torch.tensor(mean), torch.tensor(scale)).log_prob(Y)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values, expected, rtol=1e-4, atol=1e-5)


def test_a_fitted_guide_and_its_objective():
    guide = HyperNetworkGuide(model)
    objective = LinearisedELBO(num_particles=4, kl_weight=0.5)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), objective)
    for _ in range(3):
        svi.step(X, Y)
    attrs = to_arviz(model, guide, X, Y, num_samples=3, objective=objective).attrs
    assert (attrs["guide"], attrs["objective"]) == ("HyperNetworkGuide", "LinearisedELBO")
    assert (attrs["kl_weight"], attrs["prior_weight"]) == (0.5, 1.0)
    assert json.loads(attrs["objective_settings"])["num_particles"] == 4


def test_a_loaded_guide_without_its_model():
    guide = HyperNetworkGuide(model)
    guide(X, Y)
    fresh = HyperNetworkGuide(model)
    fresh.load_state_dict(guide.state_dict())
    pyro.set_rng_seed(1)
    expected = posterior_draws(guide, 3)
    pyro.set_rng_seed(1)
    found = posterior_draws(fresh, 3)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert to_arviz(model, fresh, X, Y, num_samples=2)["posterior"]["w"].shape == (1, 2, 1, 2)


@pytest.mark.long
def test_a_bayesian_network(tmp_path):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0))

    def regression(x, y=None):
        mean = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    guide = HyperNetworkGuide(regression).setup(X, Y)
    data = to_arviz(regression, guide, X, Y, num_samples=4, batch_size=6)
    weights = {name: value.values[0] for name, value in data["posterior"].data_vars.items()}
    assert set(weights) == {name for name, _ in layers.named_parameters()}
    for s in range(4):
        draw = {name: torch.tensor(value[s]) for name, value in weights.items()}
        mean = torch.func.functional_call(layers, draw, (X,)).squeeze(-1)
        expected = torch.distributions.Normal(mean, 0.5).log_prob(Y).detach()
        found = data["log_likelihood"]["y"].values[0, s]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert data["prior"]["0.weight"].dims == ("chain", "draw", "0.weight_dim_0", "0.weight_dim_1")
    data.to_netcdf(tmp_path / "data.nc")


MEMORY = """
import sys, arviz, pyro, pyro.distributions as dist, torch
from pyro_implicit.arviz.to_arviz import to_arviz

def model(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
    hidden = torch.tanh(x[:, None] * w).repeat(1, 20)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(hidden.mean(1), 1.0), obs=y)

def guide(x, y):
    pyro.sample("w", dist.Normal(torch.zeros(20), 1.0).to_event(1))

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

num_samples, batch_size, rows = map(int, sys.argv[1:4])
x = torch.randn(rows)
to_arviz(model, guide, x[:100], x[:100], num_samples=1)
open("/proc/self/clear_refs", "w").write("5")  # what imports took for a moment does not count
before = peak()
to_arviz(model, guide, x, x, num_samples=num_samples, batch_size=batch_size or None,
         groups=("posterior", "log_likelihood"))
print(peak() - before - 8 * rows * num_samples)  # log-likelihoods are float64
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc")
def test_memory_beyond_the_result_is_that_of_one_batch_and_of_one_look():
    def beyond_the_result(num_samples, batch_size, rows=300_000):
        numbers = map(str, (num_samples, batch_size, rows))
        command = [sys.executable, "-W", "ignore", "-c", MEMORY, *numbers]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        return int(subprocess.check_output(command, env=environment, timeout=300))

    megabyte = 2**20
    assert beyond_the_result(2, 0) > 400 * megabyte  # 300,000 rows of 400 hidden units at once
    look = 4 * _MAX_NUMBERS_OF_A_LOOK  # bytes of a run on many rows at once, in single precision
    for num_samples in (2, 40):
        assert beyond_the_result(num_samples, 3000) < 60 * megabyte + look
    assert beyond_the_result(50, 10_000, rows=1_000_000) < 100 * megabyte + look
