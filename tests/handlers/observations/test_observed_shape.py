"""One value that several rows observe is told; each row's own event is not."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
    refine,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.handlers.observations.observed_shape import warning_of_one_for_all


def _rows_as_one(x: torch.Tensor, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w[..., :1] * x, 0.3).to_event(1), obs=y)


def _rows_together(x: torch.Tensor, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.MultivariateNormal(w[..., :1] * x, torch.eye(len(x))), obs=y)


def _outputs(x: torch.Tensor, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, None], 0.3).to_event(1), obs=y)


@pytest.mark.long
@pytest.mark.parametrize("model", [_rows_as_one, _rows_together])
def test_one_event_in_each_row_of_a_plate_is_told_to_count_many_times(model: Any) -> None:
    x = torch.linspace(0.0, 1.0, 5)
    told = r"'y' observes one value of shape \(5,\) in each of the 5 rows"
    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.warns(UserWarning, match=told + r".*counts 5 times"):
        fit(model, guide, x, x, num_steps=2, progress=False)
    start = {"w": torch.randn(2, 2)}
    with pytest.warns(UserWarning, match=told) as caught:
        refine(model, start, x, x, num_chains=2, num_steps=0, progress=False)
    assert caught[0].filename == __file__
    report = evaluate(model, guide, x, x, num_samples=2)
    assert any("observes one value of shape (5,) in each of 5 rows" in one for one in report.notes)


@pytest.mark.long
def test_an_event_of_each_row_is_not() -> None:
    x = torch.linspace(0.0, 1.0, 5)
    y = torch.stack([x, x], -1)
    guide = HyperNetworkGuide(_outputs, init_from=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(_outputs, guide, x, y, num_steps=2, progress=False)
        refine(_outputs, {"w": torch.randn(2, 2)}, x, y, num_steps=0, progress=False)
        assert "one value" not in str(evaluate(_outputs, guide, x, y, num_samples=2))


def rows(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def groups(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 3, dim=-2), pyro.plate("rows", len(x), dim=-1):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


_X, _Y = torch.arange(6.0), torch.ones(6)
_CALLS = {
    "fit": lambda model, *data: fit(
        model, HyperNetworkGuide(model), *data, num_steps=2, progress=False
    ),
    "refine": lambda model, *data: refine(
        model, 2, *data, num_steps=0, progress=False, kernel="hmc"
    ),
    "density": lambda model, *data: log_predictive_density(model, _drawn, *data, num_samples=2),
    "scores": lambda model, *data: evaluate(model, _drawn, *data, num_samples=2),
    "arviz": lambda model, *data: to_arviz(model, _drawn, *data, num_samples=2),
}


def _drawn(*args, **kwargs):
    pyro.sample("w", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize(
    ("model", "data"),
    [
        (rows, (_X, _Y[:1])),
        (rows, (_X[:1], _Y)),
        (rows, (_X, _Y[:, None])),
        (rows, (_X, _Y.expand(6, 6))),
        (groups, (_X, _Y[:3, None])),
    ],
)
def test_every_call_refuses_observations_that_would_be_copied(call, model, data):
    with pytest.raises(ShapeError, match="site 'y' observes a tensor of shape|torch says"):
        _CALLS[call](model, *data)


@pytest.mark.parametrize("call", ["fit", "density"])
def test_a_density_of_complex_numbers_that_a_user_wrote_is_taken(call):
    class Circular(dist.TorchDistribution):
        arg_constraints = {}
        support = dist.constraints.dependent(event_dim=0)
        has_rsample = False

        def __init__(self, mean):
            self.mean_ = mean
            super().__init__(mean.shape, validate_args=False)

        def expand(self, batch_shape, _instance=None):
            return Circular(self.mean_.expand(batch_shape))

        def sample(self, sample_shape=()):
            noise = torch.randn(*sample_shape, *self.mean_.shape, dtype=torch.complex64)
            return self.mean_ + noise

        def log_prob(self, value):
            return -(value - self.mean_).abs().square() - math.log(math.pi)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", Circular(w * x), obs=y)

    _CALLS[call](model, _X, _Y + 1j)


class _OfNumbers(dist.Normal):
    """A distribution of a user's own, which takes numbers as well."""

    def log_prob(self, value):
        return super().log_prob(torch.as_tensor(value).expand(self.batch_shape))

    def expand(self, batch_shape, _instance=None):
        return _OfNumbers(self.loc.expand(batch_shape), self.scale.expand(batch_shape))


@pytest.mark.parametrize("call", ["scores", "arviz"])
def test_numbers_are_no_observations_to_score_one_by_one(call):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", _OfNumbers(w * x, 1.0), obs=None if y is None else 3.0)

    _CALLS["fit"](model, _X, _Y)
    with pytest.raises(ArgumentError, match=r"site 'y' is observed at 3.0, a float.*tensor\(3.0\)"):
        _CALLS[call](model, _X, _Y)


@pytest.mark.parametrize("value", ["a", math.nan, math.inf])
@pytest.mark.parametrize("call", _CALLS)
def test_every_call_refuses_texts_and_numbers_as_observations(call, value):
    told = rf"'y' is observed at {value!r}, a {type(value).__name__}; expected a tensor"
    with pytest.raises(ArgumentError, match=told):
        _CALLS[call](rows, _X, value)


@pytest.mark.parametrize("call", _CALLS)
def test_every_call_refuses_complex_observations(call):
    with pytest.raises(ArgumentError, match="complex"):
        _CALLS[call](rows, _X, _Y + 1j)


@pytest.mark.long
@pytest.mark.parametrize("call", ["fit", "refine"])
def test_data_that_count_once_for_each_row_of_an_outer_plate_are_told(call):
    found = r"shape \(6,\) in plates of shape \(3, 6\): each of its values counts 3 times"
    with pytest.warns(UserWarning, match=found):
        _CALLS[call](groups, _X, _Y)
    _CALLS[call](groups, _X, _Y.expand(3, 6))

    def models(x, y=None):  # of the same data
        with pyro.plate("models", 3, dim=-2):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("rows", len(x), dim=-1):
                pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    _CALLS[call](models, _X, _Y)


def test_yes_of_all_rows_is_not_told() -> None:
    """As of rows that are known to be censored."""

    def model() -> None:
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Bernoulli(0.5), obs=torch.tensor(1.0))
            pyro.sample("z", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    nodes = pyro.poutine.trace(model).get_trace().nodes
    assert warning_of_one_for_all(nodes["y"]) == ""
    assert "observes one number for all" in warning_of_one_for_all(nodes["z"])
