"""MixtureDensityNetwork: its density against torch's mixtures, its gradients against moments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch import distributions as D

from pyro_implicit.distributions.mixture_density import MixtureDensityNetwork
from pyro_implicit.exceptions import ArgumentError, ShapeError


def parts(network: MixtureDensityNetwork, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Locations, scales (K, m) and weights (K,) of the mixture, from the definition."""
    hidden = torch.relu(network.layers[0](context))
    out, k, m = network.head(hidden), network.num_components, network.output_dim
    steps, raw, logits = out[: k * m], out[k * m : 2 * k * m], out[2 * k * m :]
    loc = network.loc + network.init_scale * (network.spread + steps.reshape(k, m))
    softplus_one = torch.log(torch.expm1(torch.ones((), dtype=out.dtype)))
    scale = network.init_scale * torch.nn.functional.softplus(raw.reshape(k, m) + softplus_one)
    return loc, scale, logits.softmax(-1)


@pytest.mark.parametrize("num_components", [1, 3])
def test_the_density_is_that_of_the_mixture(num_components: int) -> None:
    torch.manual_seed(0)
    loc = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    network = MixtureDensityNetwork(2, loc, num_components, (4,), init_scale=0.3)
    context = torch.randn(5, 2, dtype=torch.float64)
    fn = network.distribution(context)
    assert (fn.batch_shape, fn.event_shape) == ((5,), (3,))
    value = loc + 0.5 * torch.randn(5, 3, dtype=torch.float64)
    for row in range(5):
        where, scale, weight = parts(network, context[row])
        mixture = D.MixtureSameFamily(
            D.Categorical(weight), D.Independent(D.Normal(where, scale), 1)
        )
        expected = mixture.log_prob(value[row])
        torch.testing.assert_close(fn.log_prob(value)[row], expected)


def test_it_starts_around_its_location() -> None:
    torch.manual_seed(3)
    loc = torch.full((50,), 3.0)
    draws = MixtureDensityNetwork(2, loc, init_scale=0.1).distribution(torch.randn(400, 2)).sample()
    assert draws.mean().item() == pytest.approx(3.0, abs=0.03)
    assert (draws - draws.mean(0)).std().item() == pytest.approx(0.1, rel=0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_components": 0}, "num_components=0"),
        ({"num_components": True}, "num_components=True"),
        ({"hidden_dims": ()}, r"hidden_dims=\(\)"),
        ({"hidden_dims": (3, 0)}, r"hidden_dims\[1\]=0; expected an integer >= 1"),
        ({"init_scale": 0.0}, "init_scale=0.0"),
        ({"activation": "rule"}, "rule"),
    ],
)
def test_bad_arguments(options, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        MixtureDensityNetwork(1, torch.zeros(3), **options)


def test_a_place_of_another_shape_is_refused() -> None:
    for loc in (torch.zeros(()), torch.zeros(2, 2)):
        with pytest.raises(ShapeError, match=r"expected \(m,\), for m latents"):
            MixtureDensityNetwork(3, loc)
    with pytest.raises(ArgumentError, match="loc is .*expected a tensor of shape"):
        MixtureDensityNetwork(3, [0.0, 0.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="context_dim"):
        MixtureDensityNetwork(0, torch.zeros(2))
