"""Errors by values that nothing can be made of, in words of the data."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError, NonFiniteError
from pyro_implicit.handlers.errors.explained_errors import explained, explained_errors
from pyro_implicit.handlers.errors.value_errors import (
    refuses_nan,
    refuses_parameter,
    warning_of_scale,
)

X = torch.ones(4, 2)


@pytest.mark.long
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_not_finite(bad: float) -> None:
    net = BayesianModule(nn.Linear(2, 1), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Any = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    x = X.clone()
    x[2, 1] = bad
    with pyro.validation_enabled(True):
        with pytest.raises(NonFiniteError, match=r"argument 0 has 1 entries .* first at \(2, 1\)"):
            fit(model, HyperNetworkGuide(model), x, torch.zeros(4), progress=False)


@pytest.mark.parametrize("first", [1, -1])
def test_labels_that_are_no_classes(first: int) -> None:
    y = torch.arange(4) + first
    name = f"argument 1 has values from {first} to {first + 3}"
    with pytest.raises(ArgumentError, match=f"{name}. The 4 classes count from 0") as caught:
        with explained_errors((X, y), {}):
            dist.Categorical(logits=torch.zeros(4)).log_prob(y)
    assert isinstance(caught.value.__cause__, ValueError)


def test_observations_outside_of_a_support_name_their_site() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("counts", dist.Poisson(rate), obs=y)

    guide = HyperNetworkGuide(model)
    with pytest.raises(ArgumentError, match="site 'counts' is outside of the support of Poisson"):
        fit(model, guide, X, torch.tensor([1.0, -1.0, 0.0, 2.0]), num_steps=2, progress=False)
    with pytest.raises(ArgumentError, match="classes count from 0"):
        trained(Tensor(X), torch.tensor([1, 2, 3, 1]))


def trained(x: Tensor, y: Tensor) -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=w[..., None, :]), obs=y)

    fit(model, HyperNetworkGuide(model), x, y, num_steps=2, progress=False)


def test_predictions_from_infinite_inputs_are_refused() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    guide = HyperNetworkGuide(model)
    guide.setup(torch.zeros(3), torch.zeros(3))
    x = torch.tensor([0.0, math.inf, 1.0])
    with pytest.raises(NonFiniteError, match=r"argument 0 has 1 entries.*predicted of \['y'\]"):
        predict(model, guide, x, num_samples=3)

    def robust(x: Tensor) -> Tensor:
        return model(x.clamp(-1, 1))

    assert bool(predict(robust, guide, x, num_samples=3)["y"].isfinite().all())


@pytest.mark.parametrize(
    "make, of_parameter, of_nan",
    [
        (lambda: dist.Normal(0.0, -1.0), True, False),
        (lambda: dist.Normal(torch.tensor(math.nan), 1.0), True, True),
        (lambda: dist.Normal(0.0, 1.0).log_prob(torch.tensor(math.nan)), False, False),
        (lambda: torch.zeros(2) + torch.zeros(3), False, False),
    ],
)
def test_what_a_distribution_refuses(make: Any, of_parameter: bool, of_nan: bool) -> None:
    with pyro.validation_enabled(), pytest.raises((RuntimeError, ValueError)) as caught:
        make()
    assert refuses_parameter(caught.value) is of_parameter
    assert refuses_nan(caught.value) is of_nan
    assert not refuses_parameter(ArgumentError(f"Expected parameter {caught.value}"))


def in_groups(group: Any, x: Tensor, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 3):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(w * x + level[..., group], 1.0), obs=y)


def of_w(*args: Any) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))


GROUPS, ROWS = torch.tensor([0, 1, 2, 1]), torch.ones(4)


OF_GROUPS = {
    "fit": lambda *data: fit(in_groups, HyperNetworkGuide(in_groups), *data, num_steps=1),
    "refine": lambda *data: refine(in_groups, 2, *data, num_steps=0, progress=False),
    "predict": lambda *data: predict(in_groups, of_w, *data[:2], num_samples=2),
    "evaluate": lambda *data: evaluate(in_groups, of_w, *data, num_samples=2),
    "density": lambda *data: log_predictive_density(in_groups, of_w, *data, num_samples=2),
    "arviz": lambda *data: to_arviz(in_groups, of_w, *data, num_samples=2),
}


@pytest.mark.parametrize("call", OF_GROUPS)
def test_numbers_of_groups(call: str) -> None:
    found = r"entry 3 of something that has 3.*argument 0 has values from 1 to 3.*g - 1"
    with pytest.raises(ArgumentError, match=found):
        OF_GROUPS[call](GROUPS + 1, ROWS, ROWS)
    with pytest.raises(ArgumentError, match=r"entry -4 of.*argument 0 has values from -4 to -2"):
        OF_GROUPS[call](GROUPS - 4, ROWS, ROWS)
    with pytest.raises(ArgumentError, match=r"argument 0 has the type torch.float32.*\.long\(\)"):
        OF_GROUPS[call](GROUPS.float(), ROWS + 0.5, ROWS)


def test_indices_that_are_of_no_argument_stay_as_they_are() -> None:
    numbers = {"argument 0": torch.arange(3), "argument 1": torch.rand(3)}
    for error in (
        IndexError("index 7 is out of bounds for dimension 0 with size 3"),
        IndexError("tensors used as indices must be long, int, byte or bool tensors"),
        IndexError("list index out of range"),
        RuntimeError("index 2 is out of bounds for dimension 0 with size 2"),
    ):
        assert explained(error, tuple(numbers.values()), {}) is None


def with_any_scale(x: Tensor, y: Tensor | None = None) -> Tensor:
    scale = pyro.sample("scale", dist.Normal(1.0, 0.5))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x[:, 0], scale), obs=y)


def wide(*args: Any) -> None:
    pyro.sample("scale", dist.Normal(-1.0, 0.1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: predict(with_any_scale, wide, X, num_samples=4),
        lambda: predict(with_any_scale, wide, X, num_samples=4, parallel=True),
        lambda: evaluate(with_any_scale, wide, X, X[:, 0], num_samples=4),
        lambda: log_predictive_density(with_any_scale, wide, X, X[:, 0], num_samples=4),
        lambda: to_arviz(with_any_scale, wide, X, X[:, 0], num_samples=4),
        lambda: fit(
            with_any_scale,
            HyperNetworkGuide(with_any_scale, init_from=None, init_scale=3.0),
            X,
            X[:, 0],
            num_steps=100,
            seed=0,
            progress=False,
        ),
    ],
)
def test_a_scale_that_may_be_negative(call: Any) -> None:
    with pytest.raises(NonFiniteError, match="gives Normal a scale that is not positive, at these"):
        call()


def test_parameters_that_are_made_of_data_are_told_with_their_values() -> None:
    with pytest.raises(NonFiniteError, match=r"not positive.*tensor\(\[1\., 0\.\]\).*made of data"):
        with pyro.validation_enabled(), explained_errors((X,), {}):
            dist.Normal(0.0, torch.tensor([1.0, 0.0]))
    with pytest.raises(NonFiniteError, match="not PositiveDefinite.*Look at the latents and data"):
        with pyro.validation_enabled(), explained_errors((X,), {}):
            dist.MultivariateNormal(torch.zeros(2), covariance_matrix=-torch.eye(2))


@pytest.mark.long
def test_numbers_that_overflow() -> None:
    assert warning_of_scale((X,), {"y": X}) is None
    assert warning_of_scale((X.long() * 10**7, X[:0]), {}) is None
    text = warning_of_scale((X,), {"y": 1e12 * X})
    assert text is not None and text.startswith("y has numbers up to 1e+12: divide it by")
    guide = HyperNetworkGuide(with_any_scale, init_from=None)
    with pytest.raises(NonFiniteError, match=r"no finite loss.*1 has numbers up to 1e\+30"):
        fit(with_any_scale, guide, X, 1e30 * X[:, 0], num_steps=100, progress=False)


@pytest.mark.parametrize("count", [20, 5000])  # torch prints all of them, and six
@pytest.mark.parametrize(("value", "is_nan"), [(math.nan, True), (-1.0, False)])
def test_a_parameter_that_is_nan_among_many(count: int, value: float, is_nan: bool) -> None:
    scale = torch.ones(count)
    scale[count // 2] = value
    with pytest.raises(ValueError) as caught:
        dist.Normal(0.0, scale, validate_args=True)
    assert refuses_parameter(caught.value) and refuses_nan(caught.value) == is_nan


def test_data_of_inference_mode_are_named() -> None:
    with torch.inference_mode():
        x = torch.ones(4, 2)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal((w * x).sum(-1), 1.0), obs=torch.zeros(4))

    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.raises(ArgumentError, match=r"x was made within torch.inference_mode\(\).*clone"):
        fit(model, guide, x=x, num_steps=2, progress=False)
    predict(model, guide.setup(x.clone()), x=x, num_samples=2)
