"""The decoder of the entropy's benchmark is its guide, and its bounds are bounds."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.livi._entropy_vae import Autoencoder, trained
from benchmarks.papers.livi.entropy_estimates import ROWS, make_model, table
from pyro_implicit import HyperNetworkGuide, posterior_draws


@pytest.fixture()
def auto() -> Autoencoder:
    torch.manual_seed(0)
    x = torch.linspace(-1.0, 1.0, ROWS)[:, None]
    options = {"noise_dim": 3, "hidden_dims": (5,), "scale": 0.5, "init_scale": 0.3}
    guide = HyperNetworkGuide(make_model(), init_from=None, **options).setup(x, x[:, 0])
    for parameter in guide.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    made = Autoencoder(guide, 8)
    made.guide = [guide]  # beside its modules
    return made


def test_draws_of_the_decoder_are_draws_of_the_guide(auto: Autoencoder) -> None:
    draws = posterior_draws(auto.guide[0], 4000)
    theta = auto.flat({name: value[None] for name, value in draws.items()})
    other = auto._decoded(torch.randn(4000, 3)).sample()
    assert theta.shape == other.shape == (4000, 19)
    torch.testing.assert_close(theta.mean(0), other.mean(0), atol=0.08, rtol=0.0)
    assert theta.mean(0).std() > 0.3  # latents are told apart


def test_the_bound_rises_and_the_encoders_entropy_falls_towards_the_truth(
    auto: Autoencoder,
) -> None:
    theta = auto._decoded(torch.randn(500, 3)).sample()
    before = auto.entropy(100, 20)
    bounds = [bound for _, bound in trained(auto, theta, 64, 1e-2, range(200))]
    assert sum(bounds[-20:]) > sum(bounds[:20])
    after = auto.entropy(100, 500)
    assert after < before
    with torch.no_grad():
        assert -auto.elbo(theta).mean() > after - 1.0  # what a draw costs is above the entropy


def test_the_encoder_has_a_column_where_there_is_one() -> None:
    row = dict.fromkeys(("upper", "lower", "linearised", "lanczos_upper", "lanczos_lower"), 1.0) | {
        "guide": "a",
        "seed": 0,
        "step": 0,
        "singular_value_bound": 0.0,
    }
    assert "by the encoder" not in table([row])
    both = table([row, row | {"guide": "b", "encoder": 2.0}]).splitlines()
    assert "by the encoder" in both[0] and " 2.0 " in both[3] and " 2.0 " not in both[2]
