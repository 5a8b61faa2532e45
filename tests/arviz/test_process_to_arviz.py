"""process_to_arviz: groups, labels and numbers of posterior functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_implicit import ImplicitProcess
from pyro_implicit.arviz import process_to_arviz
from pyro_implicit.arviz.compatibility import import_arviz
from pyro_implicit.exceptions import ArgumentError, ShapeError

X = torch.linspace(-1, 1, 5)[:, None]
NEW = torch.linspace(-2, 2, 7)[:, None]


def waves(x: Tensor, n: int) -> Tensor:
    """Sines of random phase."""
    return torch.sin(3 * x[:, 0] + 6 * torch.rand(n, 1))


def pairs(x: Tensor, n: int) -> Tensor:
    """Two outputs."""
    return torch.stack([waves(x, n), -waves(x, n)], 1)


def made(prior: Any = waves, noise: Any = 0.1, **options: Any) -> tuple[ImplicitProcess, Any]:
    process = ImplicitProcess(prior, X, 50, noise, seed=0)
    y = torch.zeros(process.batch_shape + process.event_shape)
    return process, process_to_arviz(process, y, **{"inputs": NEW, "num_samples": 4000, **options})


def test_draws_are_those_of_the_posterior_and_of_the_process() -> None:
    process, data = made()
    expected = process.condition(torch.zeros(5), NEW, observed=True)
    f = np.asarray(data["posterior"]["f"])
    y = np.asarray(data["posterior_predictive"]["y"])
    assert f.shape == y.shape == (1, 4000, 7)
    np.testing.assert_allclose(f[0].mean(0), expected.mean, atol=0.04)
    np.testing.assert_allclose(y[0].std(0), expected.stddev, rtol=0.05)
    np.testing.assert_allclose((y - f).std(), 0.1, rtol=0.05)
    prior = np.asarray(data["prior"]["f"])
    assert abs(prior).max() <= 1.0  # sines, and not the Gaussian that stands for them
    np.testing.assert_allclose(prior.std(), 0.5**0.5, rtol=0.03)
    assert abs(np.asarray(data["prior_predictive"]["y"])).max() > 1.0


def test_noise_of_each_replicate_and_integer_data() -> None:
    noise = torch.tensor([[0.01], [2.0]])
    process = ImplicitProcess(waves, X, 50, noise, seed=0)
    y = torch.zeros(2, 5, dtype=torch.int64)
    data = process_to_arviz(process, y, NEW, num_samples=2000)
    for group in ("prior", "posterior"):
        f, value = np.asarray(data[group]["f"]), np.asarray(data[f"{group}_predictive"]["y"])
        assert f.shape == value.shape == (1, 2000, 2, 7), group
        assert f.dtype == value.dtype == np.float32
        np.testing.assert_allclose((value - f).std((0, 1, 3)), noise[:, 0], rtol=0.05)
    prior = np.asarray(data["prior"]["f"])[0, :, :, 3]
    assert abs(np.corrcoef(prior.T)[0, 1]) < 0.1


def test_inputs_are_the_labels() -> None:
    _, data = made()
    assert data["posterior"]["f"].dims == ("chain", "draw", "input")
    np.testing.assert_allclose(data["posterior"]["input"], NEW[:, 0])
    np.testing.assert_allclose(data["observed_data"]["row"], X[:, 0])
    near = data["posterior"]["f"].sel(input=0.1, method="nearest")
    np.testing.assert_array_equal(near, data["posterior"]["f"][:, :, 3])
    assert data["constant_data"]["inputs"].shape == (5, 1)
    assert data["constant_data"]["new_inputs"].shape == (7, 1)
    assert data.attrs["num_functions"] == "50"


def test_outputs_names_and_labels() -> None:
    letters = list("abcdefg")
    names = {"function_name": "g", "value_name": "z"}
    _, data = made(pairs, num_samples=3, coords=letters, **names)
    assert data["posterior"]["g"].dims == ("chain", "draw", "g_dim_0", "input")
    assert data["observed_data"]["z"].dims == ("g_dim_0", "row")
    assert list(data["posterior"]["input"].values) == letters


def test_inputs_that_are_no_labels() -> None:
    for inputs in (torch.randn(5, 2), torch.zeros(5, 1)):
        process = ImplicitProcess(waves, inputs, 50, 0.1)
        data = process_to_arviz(process, torch.zeros(5), num_samples=2)
        assert list(data["posterior"]["input"].values) == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_it_is_saved_and_summarised(tmp_path: Path) -> None:
    arviz = import_arviz()
    _, data = made(num_samples=50)
    path = str(tmp_path / "functions.nc")
    data.to_netcdf(path)
    read = arviz.from_netcdf(path)
    np.testing.assert_allclose(read["posterior"]["f"], data["posterior"]["f"])
    assert set(arviz.summary(data, kind="stats").index) >= {"f[-2.0]", "f[2.0]"}


def test_bad_arguments() -> None:
    process, _ = made(num_samples=1)
    y = torch.zeros(5)
    with pytest.raises(ShapeError, match=r"value of shape \(4,\); expected \(5,\)"):
        process_to_arviz(process, y[:4])
    with pytest.raises(ArgumentError, match="both 'f'"):
        process_to_arviz(process, y, value_name="f")
    with pytest.raises(ArgumentError, match="2 coords; expected one for each of 7"):
        process_to_arviz(process, y, NEW, coords=["a", "b"])
    with pytest.raises(ArgumentError, match="num_samples=0"):
        process_to_arviz(process, y, num_samples=0)
    with pytest.raises(ShapeError, match=r"inputs of shape \(7,\); expected .*: \(K, \*\(1,\)\)"):
        process_to_arviz(process, y, NEW[:, 0])
    each = ImplicitProcess(waves, X, 50, torch.linspace(0.1, 0.2, 5))
    with pytest.raises(ArgumentError, match="each of 5 rows, and there are 7 new inputs"):
        process_to_arviz(each, y, NEW)
    assert process_to_arviz(each, y, num_samples=2)["posterior"]["f"].shape == (1, 2, 5)
