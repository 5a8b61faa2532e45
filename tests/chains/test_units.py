"""The units that a warm-up learns: against moments of all positions at once."""

from __future__ import annotations

import pytest
import torch

from pyro_implicit.chains.units import (
    kind_of,
    learned_scale,
    log_size,
    observe,
    opened,
    pulled,
    shrunk,
    stretched,
    window_ends,
)


def window(positions, kind):
    state = {"u": positions[0], "scale": torch.ones(positions.shape[-1]).to(positions)}
    state |= opened(positions[0], kind)
    for u in positions:
        state["u"] = u
        state |= observe(state)
    return state


@pytest.mark.long
@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_moments_are_within_chains_and_exact_far_from_zero(kind):
    torch.manual_seed(0)
    root = torch.tensor([[2.0, 0.0], [1.0, 0.1]])
    centres = 1e3 * torch.randn(5, 1, 2)  # a window between chains would see these
    positions = (centres + torch.randn(5, 4000, 2) @ root.mT).transpose(0, 1)
    scale = learned_scale(window(positions, kind))
    covariance = root @ root.mT
    if kind == "diagonal":
        torch.testing.assert_close(scale, covariance.diagonal().sqrt(), rtol=0.03, atol=0)
    else:
        torch.testing.assert_close(scale @ scale.mT, covariance, rtol=0.05, atol=0.05)


def test_a_short_window_teaches_nothing():
    assert learned_scale(window(torch.randn(2, 3, 2), "diagonal")) is None


def test_few_positions_give_a_root_all_the_same():
    scale = learned_scale(window(torch.randn(4, 1, 10), "dense"))
    assert bool(scale.isfinite().all()) and bool((scale.diagonal() > 0).all())


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_a_window_without_a_move_teaches_nothing(kind):
    """Units of zero would have every later step end where it began, and be accepted."""
    assert learned_scale(window(torch.ones(40, 3, 2), kind)) is None


def test_a_covariance_that_has_no_root_is_its_diagonal():
    state = window(torch.randn(6, 2, 2), "dense")
    state["window_squares"] = torch.tensor([[1.0, 50.0], [50.0, 1.0]])
    scale = learned_scale(state)
    assert float(scale[1, 0]) == 0.0


@pytest.mark.parametrize(
    "scale", [torch.tensor([2.0, 0.5]), torch.tensor([[2.0, 0.0], [1.0, 0.5]])]
)
def test_units_and_back(scale):
    root = torch.diag(scale) if scale.dim() == 1 else scale
    x, gradient = torch.randn(3, 4, 2), torch.randn(4, 2)
    torch.testing.assert_close(stretched(scale, x), x @ root.mT)
    torch.testing.assert_close(shrunk(scale, stretched(scale, x)), x)
    torch.testing.assert_close(pulled(scale, gradient), gradient @ root)
    torch.testing.assert_close(log_size(scale), torch.linalg.slogdet(root)[1] / 2)


def test_what_auto_stands_for():
    assert [kind_of("auto", m) for m in (2, 64, 65)] == ["dense", "dense", None]
    assert kind_of("diagonal", 1000) == "diagonal" and kind_of(None, 2) is None


def test_windows_grow():
    ends = window_ends(1000)
    assert ends == [50, 100, 150, 200, 300, 450, 700]
    assert window_ends(1) == [1] and window_ends(0) == []
