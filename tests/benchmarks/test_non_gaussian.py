"""Non-Gaussian targets: the distances, the targets, and a fit that beats a Gaussian."""

from __future__ import annotations

import pyro.poutine as poutine
import pytest
import torch
from matplotlib.text import Text

from benchmarks.posterior import non_gaussian
from benchmarks.posterior.non_gaussian import Banana, TwoModes, wasserstein


def test_wasserstein_of_a_shift_is_its_length() -> None:
    points = torch.randn(50, 2)
    shifted = points[torch.randperm(50)] + torch.tensor([3.0, 4.0])
    assert wasserstein(points, points) == pytest.approx(0.0, abs=1e-6)
    assert wasserstein(points, shifted) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize("target", [Banana(), TwoModes()], ids=lambda t: type(t).__name__)
def test_targets_are_normalised(target: Banana | TwoModes) -> None:
    step = 0.1
    grid = torch.cartesian_prod(torch.arange(-6, 6, step), torch.arange(-5, 18, step))
    latents = {"x": grid} if isinstance(target, TwoModes) else {"x": grid[:, 0], "y": grid[:, 1]}
    trace = poutine.trace(poutine.condition(target.model, latents)).get_trace()
    trace.compute_log_prob()
    nodes = [node for node in trace.nodes.values() if node["type"] == "sample"]
    density = sum(node["log_prob"] for node in nodes).exp()
    assert density.sum() * step**2 == pytest.approx(1.0, rel=1e-2)


@pytest.mark.slow
def test_default_guide_beats_a_gaussian() -> None:
    for row in non_gaussian.main(["--num-steps", "500", "--seeds", "0", "--quiet"]):
        assert row["implicit"] < 0.7 * row["AutoMultivariateNormal"], row


@pytest.mark.parametrize("target", [Banana(), TwoModes()], ids=lambda t: type(t).__name__)
def test_outlines_hold_the_share_of_exact_draws_that_they_say(target: Banana | TwoModes) -> None:
    axes = torch.linspace(-6, 6, 401).numpy(), torch.linspace(-5, 18, 401).numpy()
    _, levels = non_gaussian.outlines(target, *axes)
    density = target.log_density(target.exact(20_000)).exp()
    for level, share in zip(levels, (0.95, 0.5), strict=True):
        assert (density > level).double().mean() == pytest.approx(share, abs=0.02)


@pytest.mark.long
def test_titles_have_room_in_the_figure() -> None:
    sources = non_gaussian.COLUMNS
    draws = {name: {s: torch.randn(20, 2) for s in sources} for name in ("Banana", "TwoModes")}
    distances = {name: dict.fromkeys(sources, 12.345) for name in draws}
    figure = non_gaussian.make_figure(draws, distances)
    figure.draw_without_rendering()
    whole = figure.bbox
    for ax in figure.axes:
        box = ax.get_window_extent()
        for text in filter(Text.get_text, (ax.title, *ax.texts)):
            place = text.get_window_extent()
            assert box.x0 <= place.x0 and place.x1 <= box.x1
        for text in filter(Text.get_text, (ax.title, ax.yaxis.label, *ax.texts)):
            place = text.get_window_extent()
            assert whole.x0 <= place.x0 and whole.y0 <= place.y0
            assert place.x1 <= whole.x1 and place.y1 <= whole.y1
