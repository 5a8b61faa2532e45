"""What ImplicitProcess accepts, the types of its moments, and the replicates that it draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor

from pyro_implicit import ImplicitProcess
from pyro_implicit.exceptions import ArgumentError, DensityError, ShapeError

X = torch.linspace(-1, 1, 4)[:, None]


def lines(x: Tensor, num_functions: int) -> Tensor:
    """Lines through the origin."""
    return torch.randn(num_functions, 1) * x[:, 0].float()


def test_integer_inputs_and_values() -> None:
    for x in (torch.arange(4)[:, None], torch.arange(4, dtype=torch.uint8)[:, None]):
        process = ImplicitProcess(lines, x, 30, 0.1, seed=0)
        torch.testing.assert_close(process.variance.double(), process.covariance.diagonal())
        assert process.variance.dtype == torch.float32
        assert process.variance.min() >= 0.01
    counts = torch.tensor([0, 1, 3, 4])
    found = process.log_prob(counts)
    torch.testing.assert_close(found, process.log_prob(counts.float()))
    whole = lambda x, n: torch.randint(9, (n, len(x)))  # noqa: E731
    with pytest.raises(ArgumentError, match=r"values of type torch.int64; expected floating"):
        ImplicitProcess(whole, X, 5)


def two(x: Tensor, num_functions: int) -> Tensor:
    """Two outputs that are one and the same function."""
    return lines(x, num_functions)[:, None].expand(num_functions, 2, len(x))


def broadcast(x: Tensor, num_functions: int) -> Tensor:
    return lines(x, num_functions)[:, None]


@pytest.mark.parametrize(
    "prior, noise, expand, together",
    [
        (lines, 0.0, (3,), ()),
        (lines, 0.0, (2, 3), ()),
        (broadcast, 0.0, (3,), ()),
        (broadcast, 0.0, (2, 3), ()),
        (lines, torch.full((3, 1), 1e-9), (3,), ()),
        (two, 0.0, (3, 2), (-1,)),
        (two, torch.full((3, 1, 1), 1e-9), (3, 2), (-1,)),
        (lambda x, n: two(x, n)[:, :, None], 0.0, (2, 3), (-2,)),
        (lambda x, n: two(x, n)[:, :, None], 0.0, (5, 2, 3), (-2,)),
    ],
)
def test_replicates_are_drawn_as_the_density_counts_them(
    prior: Any, noise: Any, expand: tuple[int, ...], together: tuple[int, ...]
) -> None:
    pyro.set_rng_seed(0)
    process = ImplicitProcess(prior, X, 5, noise, seed=0).expand(expand)
    draws = process.rsample((400,))
    assert draws.shape == (400, *expand, 4)
    slope = draws[..., -1]
    torch.testing.assert_close(draws, slope[..., None] * X[:, 0], rtol=1e-4, atol=1e-6)
    for dim in range(-len(expand), 0):
        first, second = slope.select(dim, 0), slope.select(dim, 1)
        alike = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].item()
        assert alike == pytest.approx(float(dim in together), abs=0.2)
    assert process.rsample((0,)).shape == (0, *expand, 4)


def test_a_plate_of_replicates() -> None:
    def model(y: Tensor | None = None) -> Any:
        with pyro.plate("replicates", 3):
            return pyro.sample("y", ImplicitProcess(lines, X, 5, 0.1, seed=0), obs=y)

    pyro.set_rng_seed(0)
    trace = pyro.poutine.trace(model).get_trace()
    drawn = trace.nodes["y"]["value"]
    assert (drawn[0] - drawn[1]).abs().max() > 0.2
    one = ImplicitProcess(lines, X, 5, 0.1, seed=0)
    torch.testing.assert_close(trace.log_prob_sum(), one.log_prob(drawn).sum())


def test_expansion_is_one_of_shapes() -> None:
    process = ImplicitProcess(two, X, 5, 0.1)
    for shape in ((), (3,), (2, 3)):
        with pytest.raises(ShapeError, match=r"batch shape \(2,\) does not expand to"):
            process.expand(shape)
    wide = process.expand((3, 2))
    y = torch.zeros(4)
    assert wide.to_gaussian().batch_shape == wide.log_prob(y).shape == (3, 2)
    assert wide.covariance.shape == (3, 2, 4, 4)
    assert wide.condition(y).batch_shape == (3, 2)


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"noise_scale": torch.tensor(-0.1)}, ArgumentError, "negative entries, down to -0.1"),
        ({"noise_scale": torch.tensor([0.1, 0.1, -2.0, 1])}, ArgumentError, "down to -2"),
        ({"psi": torch.tensor(-1.0)}, ArgumentError, "psi=a tensor .* negative entries"),
        ({"noise_scale": math.nan}, ArgumentError, "noise_scale=nan; expected a finite number"),
        ({"noise_scale": "small"}, ArgumentError, "noise_scale='small'"),
        ({"noise_scale": torch.tensor(True)}, ArgumentError, "expected real numbers"),
        ({"psi": math.nan}, ArgumentError, "psi=nan; expected a finite number >= 0"),
        ({"psi": "0.1"}, ArgumentError, "psi='0.1'"),
        ({"psi": True}, ArgumentError, "psi=True"),
        ({"seed": "abc"}, ArgumentError, "seed='abc'"),
        ({"seed": -1}, ArgumentError, "seed=-1"),
        ({"num_functions": True}, ArgumentError, "num_functions=True"),
        ({"event_dim": "1"}, ArgumentError, "event_dim='1'"),
        ({"prior": 3}, ArgumentError, "prior=3 cannot be called"),
        ({"inputs": [0.0]}, ArgumentError, r"inputs is \[0.0\]; expected a tensor"),
        ({"inputs": torch.tensor(0.0)}, ArgumentError, "inputs is a tensor of shape"),
        ({"inputs": torch.zeros(0, 1)}, ArgumentError, "of one row at least"),
        ({"noise_scale": torch.ones(3)}, ShapeError, r"noise_scale\[..., None\]"),
        ({"noise_scale": torch.ones(2, 3)}, ShapeError, r"noise_scale of shape \(2, 3\)"),
        ({"psi": torch.ones(4)}, ShapeError, r"psi of shape \(4,\)"),
        ({"inputs": X[:1], "noise_scale": torch.ones(5)}, ShapeError, r"shape \(5,\)"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ImplicitProcess(**{"prior": lines, "inputs": X, **settings})


def test_numpy_numbers_are_numbers() -> None:
    process = ImplicitProcess(lines, X, np.int64(5), np.float32(0.5), psi=np.float64(1), seed=0)
    assert process.log_prob(torch.zeros(4)).isfinite()


@pytest.mark.parametrize("noise", [torch.tensor(0.0), torch.tensor([0.0, 1.0, 1.0, 1.0])])
def test_a_tensor_of_no_noise_is_no_noise(noise: Tensor) -> None:
    process = ImplicitProcess(lines, X, 3, noise)
    with pytest.raises(DensityError, match="too few directions"):
        process.log_prob(torch.zeros(4))
    with pytest.raises(ArgumentError, match="a posterior needs noise"):
        process.condition(torch.zeros(4))


def test_functions_of_too_few_directions() -> None:
    with pytest.raises(DensityError, match="singular in double precision"):
        ImplicitProcess(lines, X, 50, 1e-12).log_prob(torch.ones(4))
