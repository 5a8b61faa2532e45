"""Steps are those of torch's Adam with decay rates 0.9 and 0.99."""

from __future__ import annotations

import torch

from pyro_implicit.ops.adam_direction import AdamDirection


def test_steps_are_those_of_torch() -> None:
    point = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    own, direction = point.detach().clone(), AdamDirection()
    adam = torch.optim.Adam([point], lr=0.03, betas=(0.9, 0.99), maximize=True)
    for scale in (1.0, 100.0, 0.1, 1.0, 0.0):
        gradient = scale * torch.randn(2, 5, dtype=torch.float64)
        point.grad = gradient
        adam.step()
        own = own + 0.03 * direction(gradient)
        torch.testing.assert_close(own, point.detach())
