"""A few steps of the benchmarks of image networks."""

from __future__ import annotations

import math
from pathlib import Path

import pyro
import pytest
import torch

from benchmarks.cost import scaling, step_cost
from benchmarks.shared.images import NoEntropy, classifier, load_mnist
from pyro_implicit import MMNNGuide


def test_mnist_from_an_archive(small_data: Path) -> None:
    data = load_mnist(small_data, download=False)
    assert data["x_train"].shape == (20, 1, 28, 28)
    assert 0 <= data["x_test"].min() and 0.5 < data["x_test"].max() <= 1
    assert data["y_test"].dtype == torch.int64


def test_mnist_that_is_nowhere_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(SystemExit, match="--download"):
        load_mnist(tmp_path, download=False)


@pytest.mark.slow
def test_step_cost_measures_memory() -> None:
    job = step_cost.Job("lenet", 64)
    device = torch.device("cpu")
    found = step_cost.measure_memory([job], device, threads=1, quiet=True)
    assert 5 < found[job] < 100  # megabytes: the activations of 64 images, twice


@pytest.mark.long
def test_scaling_measures_every_phase(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    row = scaling.measure("perceptron", batch_size=4, num_steps=1, seed=0, threads=1)
    torch.set_num_threads(before)
    assert row["latents"] == 1210
    assert row["half_log_det"][0] <= row["half_log_det"][1]
    for key in ("build", "draw", "evaluate", "step", "map_step"):
        assert row[key] > 0
    assert pyro.get_param_store().keys() == {}.keys()
    scaling.draw_figure(tmp_path / "figure.png", [row, row | {"latents": 2000}])
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_slope_of_a_power_law() -> None:
    rows = [{"latents": 10**k, "step": 3.0 * 10 ** (0.8 * k)} for k in range(3, 8)]
    assert scaling.slope(rows, "step") == pytest.approx(0.8)
    assert math.isnan(scaling.slope(rows[:1], "step"))


def test_control_has_no_entropy() -> None:
    model, _ = classifier(torch.nn.Linear(3, 10), num_data=50)
    data = (torch.randn(5, 3), torch.arange(5), torch.arange(5))
    guide = MMNNGuide(model).setup(*data)
    terms = NoEntropy().terms(model, guide, *data)
    assert terms["entropy"] == 0
    assert terms["log_likelihood"] < 0 and terms["log_prior"] < 0
