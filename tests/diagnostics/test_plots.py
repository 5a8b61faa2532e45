"""The plots show what they are given: read back from the axes."""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from matplotlib import pyplot

from pyro_implicit import LinearisedELBO, entropy_report, to_arviz
from pyro_implicit.diagnostics import plots
from pyro_implicit.diagnostics._reliability import calibration_error, reliability
from pyro_implicit.diagnostics.vsbc import Calibration
from pyro_implicit.exceptions import ArgumentError, MissingExtraError, ShapeError, SiteError
from tests.diagnostics.known import affine_guide, normal_model


@pytest.fixture(autouse=True)
def no_display():
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture
def guide():
    return affine_guide(normal_model, [[1.0, 0.0], [0.0, 2.0]], [0.0, 0.0])


def band(collection):
    """Lowest and highest point at each place of a filled band."""
    points = collection.get_paths()[0].vertices
    return {
        x: (points[points[:, 0] == x, 1].min(), points[points[:, 0] == x, 1].max())
        for x in (0.0, 1.0)
    }


def test_predictive_band():
    x = torch.tensor([1.0, 0.0])
    means = torch.stack([torch.linspace(0, 1, 101), torch.linspace(2, 3, 101)], -1)
    ax = plots.plot_predictive_band(x, means, 10 * means, level=0.8)
    outer, inner = (band(one) for one in ax.collections)
    assert inner[1.0] == pytest.approx((0.1, 0.9), abs=1e-5)
    assert inner[0.0] == pytest.approx((2.1, 2.9), abs=1e-5)
    assert outer[1.0] == pytest.approx((1.0, 9.0), abs=1e-5)
    assert ax.lines[0].get_ydata() == pytest.approx([2.5, 0.5])
    same = pyplot.subplots()[1]
    assert plots.plot_predictive_band(x, means, means, ax=same) is same


def test_predictive_band_is_checked():
    x, draws = torch.zeros(3), torch.zeros(5, 3)
    with pytest.raises(ArgumentError, match="level=1.0; expected a finite number > 0 and < 1"):
        plots.plot_predictive_band(x, draws, draws, level=1.0)
    with pytest.raises(ShapeError, match=r"expected \(N,\), \(S, N\) and \(S', N\)"):
        plots.plot_predictive_band(x, draws.T, draws)


@pytest.mark.parametrize("ax", ["abc", 3, pyplot.Axes])
def test_axes_are_axes(ax):
    with pytest.raises(ArgumentError, match="^ax=.*; expected Matplotlib axes"):
        plots.plot_predictive_entropy(torch.eye(2), ax=ax)


@pytest.mark.parametrize("data", [None, {"observed_data": 1}, torch.ones(2)])
def test_data_are_those_of_to_arviz(data):
    for plot in (plots.plot_predictive_check, lambda data: plots.plot_loo_pit(data, "y")):
        with pytest.raises(ArgumentError, match="^data=.*; expected what to_arviz returned"):
            plot(data)


def test_objective_terms(guide):
    objective = LinearisedELBO(num_particles=4)
    history = [objective.terms(normal_model, guide) for _ in range(3)]
    ax = plots.plot_objective_terms(history)
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in ax.lines}
    assert lines["entropy"] == pytest.approx([t["entropy"].item() for t in history])
    assert lines["objective"] == pytest.approx(
        lines["entropy"] + lines["log prior"] + lines["log likelihood"]
    )
    for bad in ([], [{"a": 1.0}, {"b": 1.0}]):
        with pytest.raises(ArgumentError, match="history is empty or its entries have different"):
            plots.plot_objective_terms(bad)


def test_singular_values(guide):
    report = entropy_report(guide, num_samples=20)
    ax = plots.plot_singular_values(report)
    assert ax.lines[0].get_ydata() == pytest.approx(report.singular_values.median(0).values)
    assert "effective rank" in ax.get_title() and ax.get_yscale() == "log"


def test_predictive_entropy():
    sure, unsure = torch.eye(4), torch.full((4, 4), 0.25)
    ax = plots.plot_predictive_entropy({"sure": sure, "unsure": unsure})
    ends = [line.get_xdata()[-1] for line in ax.lines[:2]]
    assert ends == pytest.approx([0.0, np.log(4)], abs=1e-6)
    assert plots.plot_predictive_entropy(unsure).get_legend() is None
    with pytest.raises(ShapeError, match=r"expected \(N, C\)"):
        plots.plot_predictive_entropy(torch.ones(3))


def test_reliability():
    probabilities = torch.tensor([[0.95, 0.05], [0.9, 0.1], [0.35, 0.65], [0.4, 0.6]])
    labels = torch.tensor([0, 1, 1, 1])
    confidence, accuracy, share = reliability(probabilities, labels, 4)
    assert confidence[2:].tolist() == pytest.approx([0.625, 0.925])
    assert accuracy[2:].tolist() == pytest.approx([1.0, 0.5])
    assert share.tolist() == [0, 0, 0.5, 0.5]
    by_hand = float((share[2:] * (confidence - accuracy)[2:].abs()).sum())
    assert calibration_error(probabilities, labels, 4) == pytest.approx(by_hand, abs=1e-6)
    ax = plots.plot_reliability(probabilities, labels, num_bins=4)
    assert ax.lines[1].get_ydata() == pytest.approx([1.0, 0.5])
    assert f"{by_hand:.3f}" in ax.get_title()
    with pytest.raises(ShapeError, match=r"expected \(N, C\) and \(N,\)"):
        plots.plot_reliability(probabilities, labels[:2])
    with pytest.raises(ArgumentError, match="num_bins=0"):
        plots.plot_reliability(probabilities, labels, num_bins=0)


def test_ranks():
    calibration = Calibration(
        {"a": torch.arange(100), "b": torch.arange(200).reshape(100, 2) % 100}, 99
    )
    ax = plots.plot_ranks(calibration)
    assert sum(bar.get_height() for bar in ax.containers[0]) == 100
    assert {bar.get_height() for bar in ax.containers[0]} == {100 / calibration.bins}
    assert "rank of b" in plots.plot_ranks(calibration, "b", 1).get_xlabel()
    with pytest.raises(SiteError, match=r"no ranks of 'c'; there are \['a', 'b'\]"):
        plots.plot_ranks(calibration, "c")
    with pytest.raises(ArgumentError, match=r"index=99; .* \('a' has \d+ entries\)"):
        plots.plot_ranks(calibration, "a", 99)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_arviz_draws_the_rest():
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def guide(y):
        pyro.sample("mean", dist.Normal(0.0, 0.3))

    data = to_arviz(model, guide, torch.randn(20), num_samples=100)
    assert plots.plot_predictive_check(data) is not None
    assert plots.plot_loo_pit(data, "y") is not None


def test_missing_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.classification", None)
    with pytest.raises(MissingExtraError, match="plot_reliability needs torchmetrics: pip install"):
        plots.plot_reliability(torch.eye(2), torch.arange(2))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="plots need Matplotlib: pip install"):
        plots.plot_predictive_entropy(torch.eye(2))


def test_logits_are_no_probabilities():
    logits, labels = torch.randn(20, 3), torch.randint(3, (20,))
    for draw in (
        lambda: plots.plot_reliability(logits, labels),
        lambda: plots.plot_predictive_entropy(logits),
        lambda: plots.plot_predictive_entropy({"a": logits.softmax(-1), "b": logits}),
    ):
        with pytest.raises(ArgumentError, match="expected probabilities of classes. Write logits"):
            draw()


def test_a_band_far_from_zero_has_its_width():
    x = torch.arange(4.0).double()
    draws = 1.7e9 + torch.randn(200, 4, dtype=torch.float64)
    ax = plots.plot_predictive_band(x, draws, draws)
    heights = [path.vertices[:, 1] for part in ax.collections for path in part.get_paths()]
    assert all(values.max() - values.min() > 1.0 for values in heights)


def test_a_plot_leaves_random_numbers_alone():
    calibration = Calibration({"w": torch.randint(10, (20,))}, 9)
    before = torch.get_rng_state()
    plots.plot_ranks(calibration)
    assert torch.equal(before, torch.get_rng_state())
