"""Looking at a model leaves its networks as they were, and does not hear their dropout."""

from __future__ import annotations

import copy
import threading
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, posterior_draws, predict, to_arviz
from pyro_implicit.diagnostics import khat, stein_discrepancy, vsbc
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode

X = torch.linspace(-1, 1, 150).sin().reshape(75, 2)
Y = X.sum(-1)


class Custom(nn.Module):
    """Random by its own mode, with no layer that says so."""

    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


def network(*layers):
    return nn.Sequential(nn.Linear(2, 4), *layers, nn.Linear(4, 1))


LAYERS = {
    "BatchNorm": nn.BatchNorm1d(4),
    "dropout": nn.Dropout(0.5),
    "nested": nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.AlphaDropout(0.5))),
    "RReLU": nn.RReLU(),
    "custom": Custom(),
}


def made(name, wrapped=True):
    """A network with a layer, in training mode; how to call it; and its state."""
    net = network(copy.deepcopy(LAYERS[name]))
    bayesian = BayesianModule(net, prior=dist.Normal(0.0, 1.0)) if wrapped else net

    def model(x, y=None):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        f = pyro.deterministic("f", bayesian(x).squeeze(-1))
        with pyro.plate("data", 75, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(f, 0.01 * scale), obs=y)

    guide = AutoNormal(model)
    guide(X, Y)
    return model, guide, bayesian


def state_of(net):
    modes = [part.training for part in net.modules()]
    return modes, {name: value.clone() for name, value in net.state_dict().items()}


def check_untouched(net, before):
    modes, values = before
    assert [part.training for part in net.modules()] == modes
    for name, value in net.state_dict().items():
        assert torch.equal(value, values[name]), name


def seeded(function, *args, **kwargs):
    pyro.set_rng_seed(0)
    return function(*args, **kwargs)


def random_layers(name):
    """A context that expects a warning for random layers, and only for those."""
    if name in ("BatchNorm", "custom"):
        return warnings.catch_warnings()
    return pytest.warns(UserWarning, match="evaluated without their randomness: .* of ")


@pytest.mark.long
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_predictions_do_not_depend_on_the_mode_or_the_batch(name, wrapped, parallel):
    model, guide, net = made(name, wrapped)
    options = {"num_samples": 3, "sites": ["f", "y"], "parallel": parallel}
    if parallel and (not wrapped or name == "RReLU"):  # draws are no batch there
        return
    before = state_of(net)
    with random_layers(name):
        found = seeded(predict, model, guide, X, **options)
    with random_layers(name):
        parts = seeded(predict, model, guide, X, batch_size=32, **options)
    check_untouched(net, before)
    net.eval()
    expected = seeded(predict, model, guide, X, **options)  # and no warning
    for site in ("f", "y"):
        torch.testing.assert_close(found[site], expected[site])
        torch.testing.assert_close(parts[site], expected[site])


@pytest.mark.long
@pytest.mark.parametrize("name", LAYERS)
def test_exports_and_diagnostics(name):
    model, guide, net = made(name)
    before = state_of(net)
    with random_layers(name):
        data = seeded(to_arviz, model, guide, X, Y, num_samples=3)
    with random_layers(name):
        draws = posterior_draws(guide, 30, X, Y)
        stein_discrepancy(model, draws, X, Y, num_samples=30)
    check_untouched(net, before)
    net.eval()
    expected = seeded(to_arviz, model, guide, X, Y, num_samples=3)
    for group in ("posterior", "posterior_predictive", "log_likelihood", "prior_predictive"):
        for site in expected[group].data_vars:
            assert (data[group][site] == expected[group][site]).all(), (group, site)


@pytest.mark.long
def test_the_density_of_an_implicit_guide():
    net = network(nn.BatchNorm1d(4), nn.Dropout(0.5))

    def model():
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("f", -net(z + torch.arange(3.0)[:, None]).square().sum())

    guide = HyperNetworkGuide(model, scale=0.5).setup()
    before = state_of(net)
    with pytest.warns(UserWarning, match="'?2 of Sequential"):
        found = seeded(khat, model, guide, num_samples=100)
    check_untouched(net, before)
    net.eval()
    assert seeded(khat, model, guide, num_samples=100) == found


@pytest.mark.long
def test_networks_are_trained_in_their_own_mode_by_vsbc():
    model, guide, net = made("BatchNorm")
    modes = []

    def fit(data):
        modes.append([part.training for part in net.modules()])
        return posterior_draws(guide, 3, X, Y)

    vsbc(model, fit, X, observed=["y"], num_simulations=10, num_samples=3)
    assert modes and all(all(mode) for mode in modes)


def test_dropout_that_stays_on():
    net = nn.Linear(2, 4)

    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        f = pyro.deterministic("f", F.dropout(net(x), 0.5, training=True) @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.1))

    guide = AutoNormal(model)
    guide(X)
    options = {"num_samples": 4, "sites": ["f", "w", "y"]}
    whole = seeded(predict, model, guide, X, **options)
    parts = seeded(predict, model, guide, X, batch_size=32, **options)
    torch.testing.assert_close(parts, whole)
    without = (net(X) @ whole["w"].mT).mT
    assert (whole["f"] - without).abs().max() > 0.1


def test_contexts_threads_and_errors():
    net, other = network(nn.Dropout(0.5)), network(nn.Dropout(0.5))
    seen = []

    def elsewhere():
        other(X)
        seen.append(other.training)

    with pytest.warns(UserWarning, match="1 of Sequential") as caught:
        with evaluation_mode():
            with evaluation_mode():
                net(X)
            assert not net.training and not net[1].training
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
    assert len(caught) == 1 and seen == [True]
    assert net.training and net[1].training
    net[0].eval()
    with pytest.raises(RuntimeError), evaluation_mode():  # no warning on the way out of an error
        net(X[:, :1])
    assert net.training and net[1].training and not net[0].training
    with pytest.warns(UserWarning), evaluation_mode():
        nn.GRU(2, 2, num_layers=2, dropout=0.5)(X)
    with evaluation_mode():
        nn.Dropout(0.0)(X)
        nn.GRU(2, 2)(X)
