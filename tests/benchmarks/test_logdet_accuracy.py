"""The benchmark's exact value and gradient, and one small run of it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.numerics import logdet_accuracy
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.ops.logdet import half_log_det


def test_exact_value_and_gradient_are_those_of_autograd() -> None:
    generator = MLPGenerator(5, 9, (7,))
    z = torch.randn(1, 5)
    found = logdet_accuracy.exact(generator, z)
    value = half_log_det(generator.jacobian(z).double() / logdet_accuracy.SCALE, 1.0).sum()
    assert found.value == pytest.approx(value.item(), rel=1e-6)
    parameters = list(generator.parameters())
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    pairs = zip(gradients, parameters, strict=True)
    expected = torch.cat([(p * 0 if g is None else g).flatten() for g, p in pairs])
    torch.testing.assert_close(found.gradient.float(), expected.detach(), rtol=1e-3, atol=1e-2)


def test_seeds_are_one_row_and_errors_add_in_squares() -> None:
    same = {"generator": "g", "method": "Lanczos, 2 steps"}
    rows = [same | {"seed": 0, "upper": 1.0, "error": 3.0}]
    rows.append(same | {"seed": 1, "upper": 2.0, "error": 4.0})
    (found,) = logdet_accuracy.over_seeds(rows)
    assert found == same | {"upper": 1.5, "error": pytest.approx(12.5**0.5)}
    line = logdet_accuracy.table(rows).splitlines()[2].split("|")
    assert [cell.strip() for cell in line[3:7]] == ["5", "1.5", "", "3.54"]
