"""The map from noise to sites, against the distributions that the guide itself draws from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, MMNNGuide
from pyro_implicit.inference.noise_map import NoiseMap
from tests.inference.line import X, Y, line


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (HyperNetworkGuide, {}),
        (HyperNetworkGuide, {"factorized": True}),
        (HyperNetworkGuide, {"hidden_dims": (5,), "noise_dim": 2, "scale": 0.3}),
        (HyperNetworkGuide, {"noise_dim": 2, "scale": 0.3, "learn_scale": "diagonal"}),
        (MMNNGuide, {}),
    ],
)
def test_it_is_the_draw_of_each_part_at_its_noise(
    kind: Any, options: Any, monkeypatch: Any
) -> None:
    torch.manual_seed(0)
    guide = kind(line, init_from=None, **options).setup(X, Y)
    made = NoiseMap(guide)
    noise = torch.randn(7, made.noise_dim)
    expected, seen = [], 0
    for sampler, (own, z, output) in zip(guide.samplers, made.pieces(noise), strict=True):
        drawn: Tensor = torch.zeros(7, sampler.generator.output_dim)
        drawn[:, : output.shape[-1]] = output
        with monkeypatch.context() as patched:  # what the distribution adds to its mean
            patched.setattr(torch, "randn_like", lambda mean, drawn=drawn: drawn)
            expected.append(sampler.distribution().given(z).rsample())
        assert own is not sampler
        seen += z[0].numel() + output[0].numel()
    assert seen == made.noise_dim
    torch.testing.assert_close(made.flat(noise), torch.cat(expected, -1))
    assert not made.flat(noise).requires_grad and made.like.dtype == noise.dtype
    sites = made.transform_sample(noise, "noise")
    one = made.values(noise[3])
    assert {name: v.shape for name, v in sites.items()} == {"w": (7, 3), "b": (7,)}
    for name, value in one.items():
        torch.testing.assert_close(value, sites[name][3])
