"""The sampler: its scale, learned or not, and what it refuses."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal, init_to_value

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.guides.sampler import Sampler, check_scale_arguments


def sampler(scale=0.1, learn_scale=False, dtype=torch.float32):
    return Sampler(
        MLPGenerator(2, 3, (4,)).to(dtype),
        Preconditioner(torch.zeros(3, dtype=dtype)),
        scale,
        learn_scale,
    )


def test_a_fixed_scale_is_no_parameter():
    fixed = sampler()
    assert fixed.scale == 0.1
    assert not [name for name, _ in fixed.named_parameters() if "scale" in name]


@pytest.mark.parametrize("kind, shape", [("scalar", ()), ("diagonal", (3,))])
def test_a_learned_scale_is_positive_and_starts_as_asked(kind, shape):
    learned = sampler(0.1, kind, torch.float64)
    assert learned.scale.shape == shape
    assert learned.scale.dtype == torch.float64
    torch.testing.assert_close(learned.scale, torch.full(shape, 0.1, dtype=torch.float64))
    with torch.no_grad():
        learned.raw_scale.fill_(-50.0)
    assert (learned.scale > 0).all()


def test_the_distribution_uses_all_three_parts():
    torch.manual_seed(0)
    part = Sampler(
        ResidualGenerator(2, 4, init_scale=1.0),
        Preconditioner(torch.tensor([5.0, -5.0]), torch.tensor([0.01, 10.0])),
        0.0,
    )
    draws = part.distribution().sample((20_000,))
    torch.testing.assert_close(draws.mean(0), torch.tensor([5.0, -5.0]), rtol=0.1, atol=0.05)
    torch.testing.assert_close(draws.std(0), torch.tensor([0.01, 10.0]), rtol=0.1, atol=0.0)


@pytest.mark.parametrize("scale", [-1.0, math.inf, math.nan, "big", True, [1.0]])
def test_bad_scales(scale):
    with pytest.raises(ArgumentError, match="expected a finite number >= 0"):
        check_scale_arguments(scale, False)


@pytest.mark.parametrize("learn_scale", [True, "full", 1])
def test_bad_learn_scale(learn_scale):
    with pytest.raises(ArgumentError, match="expected None, False, 'scalar' or 'diagonal'"):
        check_scale_arguments(0.1, learn_scale)


def test_a_learned_scale_cannot_start_at_zero():
    with pytest.raises(ArgumentError, match="cannot start at 0; write scale=0.01"):
        sampler(0.0, "scalar")


@pytest.mark.parametrize("scale", [None, 0, 0.0, 1, 2.5])
def test_good_scales(scale):
    check_scale_arguments(scale, False)


@pytest.mark.parametrize("unit", [1e-3, 0.03, 0.3])
def test_noise_grows_as_the_deviations_of_a_mean_field_guide(unit):
    """In units of the latents, whatever the start's own: else narrow starts stay narrow."""
    torch.manual_seed(0)
    factor = unit * torch.tensor([1.0, -2.0, 3.0])
    part = Sampler(
        MLPGenerator(2, 3, (4,)), Preconditioner(torch.zeros(3), factor), 0.7, "diagonal"
    )
    torch.testing.assert_close(part.scale, torch.full((3,), 0.7), rtol=1e-3, atol=0.0)
    normal = AutoNormal(
        lambda: pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1)),
        init_loc_fn=init_to_value(values={"w": torch.zeros(3)}),
    )
    normal()
    normal.scales.w = 0.7 * factor.abs()
    for scale, params in (
        (lambda: part.scale * factor.abs(), [part.raw_scale]),
        (lambda: normal.scales.w, list(normal.scales.parameters())),
    ):
        adam = torch.optim.Adam(params, lr=0.02)
        for _ in range(50):
            adam.zero_grad()
            (-scale().sum()).backward()
            adam.step()
    torch.testing.assert_close(
        part.scale.detach() * factor.abs(), normal.scales.w.detach(), rtol=2e-2, atol=0.0
    )


@pytest.mark.parametrize("unit", [1.0, 20.0, 1e4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_noise_of_a_wide_start_moves_in_units_of_the_start(unit, sign):
    """Where steps of a usual length are nothing in units of the latents."""
    factor = unit * torch.tensor([1.0, -2.0, 3.0])
    part = Sampler(
        MLPGenerator(2, 3, (4,)), Preconditioner(torch.zeros(3), factor), 0.7, "diagonal"
    )
    adam = torch.optim.Adam([part.raw_scale], lr=0.02)
    for _ in range(50):
        adam.zero_grad()
        (-sign * part.scale.sum()).backward()
        adam.step()
    ratio = part.scale.detach() / 0.7
    assert (ratio > 1.6).all() if sign > 0 else (ratio < 0.6).all()
