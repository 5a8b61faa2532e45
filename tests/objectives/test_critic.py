"""The default critic: it starts without an opinion, and can be exact for Gaussians."""

from __future__ import annotations

import pytest
import torch

from pyro_implicit.objectives.critic import Critic


@pytest.mark.parametrize("hidden_dims", [(64, 64), (5,), ()])
def test_it_starts_at_zero_with_gradients_for_its_outputs(hidden_dims: tuple[int, ...]) -> None:
    critic, x = Critic(3, hidden_dims), torch.randn(7, 3)
    out = critic(x)
    assert out.shape == (7,) and (out == 0).all()
    linear = [module for module in critic.network if isinstance(module, torch.nn.Linear)]
    assert [layer.out_features for layer in linear] == [*hidden_dims, 1]
    (out * torch.randn(7)).sum().backward()
    assert critic.quadratic.weight.grad.abs().min() > 0
    assert linear[-1].weight.grad.abs().max() > 0


def test_it_can_be_the_exact_log_ratio_of_gaussians_with_independent_entries() -> None:
    q = torch.distributions.Normal(torch.tensor([1.0, -0.5]), torch.tensor([0.5, 2.0]))
    x = torch.randn(50, 2)
    exact = (q.log_prob(x) - torch.distributions.Normal(0.0, 1.0).log_prob(x)).sum(-1)
    critic = Critic(2)
    with torch.no_grad():
        squares = (1 - 1 / q.scale**2) / 2**0.5  # times (x^2 - 1) / sqrt 2
        critic.quadratic.weight.copy_(torch.cat([q.loc / q.scale**2, squares])[None])
        at_zero = critic(torch.zeros(1, 2))
        true_at_zero = (q.log_prob(torch.zeros(2)) + 0.9189385332).sum()
        critic.network[-1].bias.copy_(true_at_zero - at_zero)
    torch.testing.assert_close(critic(x), exact, rtol=1e-4, atol=1e-4)
