"""A few steps of the benchmarks of image networks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch

from benchmarks import mnist, scaling, step_cost
from benchmarks._images import NoEntropy, classifier, load_mnist
from pyro_implicit import MMNNGuide


@pytest.fixture()
def data_root(tmp_path: Path) -> Path:
    """Twelve images in the format of MNIST."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 8), ("test", 4)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, size, dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", **arrays)
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*LOBPCG")  # five iterations are too few, and it says so
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_mnist_scores_every_method(data_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    output = tmp_path / "record.json"
    options = ["--data-root", str(data_root), "--output", str(output), "--quiet"]
    before = torch.get_num_threads()
    rows = mnist.main([*options, "--epochs", "2"])
    torch.set_num_threads(before)
    assert [row["method"] for row in rows] == list(mnist.METHODS)
    for row in rows:
        for angle in (0, 60):
            assert 0 <= row[f"accuracy {angle}"] <= 1
            assert 0 <= row[f"ece {angle}"] <= 1
            assert math.isfinite(row[f"nll {angle}"])
    assert json.loads(output.read_text())["settings"]["epochs"] == 2


def test_mnist_from_an_archive(data_root: Path) -> None:
    data = load_mnist(data_root, download=False)
    assert data["x_train"].shape == (8, 1, 28, 28)
    assert 0 <= data["x_test"].min() and 0.5 < data["x_test"].max() <= 1
    assert data["y_test"].dtype == torch.int64


def test_mnist_that_is_nowhere_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(SystemExit, match="--download"):
        load_mnist(tmp_path, download=False)


@pytest.mark.filterwarnings("ignore:.*LOBPCG")
def test_step_cost_is_relative_to_map() -> None:
    before = torch.get_num_threads()
    rows = step_cost.main(
        ["--networks", "perceptron", "--rounds", "2", "--no-memory", "--quiet", "--batch-size", "8"]
    )
    torch.set_num_threads(before)
    assert rows[0]["guide"] is None and rows[0]["time"] == 1
    assert {row["objective"] for row in rows[1:]} == set(step_cost.OBJECTIVES)
    assert all(row["time"] > 1 for row in rows[1:])


@pytest.mark.slow
def test_step_cost_measures_memory() -> None:
    job = step_cost.Job("lenet", 64)
    device = torch.device("cpu")
    found = step_cost.measure_memory([job], device, threads=1, quiet=True)
    assert 5 < found[job] < 100  # megabytes: the activations of 64 images, twice


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
