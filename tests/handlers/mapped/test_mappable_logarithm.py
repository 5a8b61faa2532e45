"""The logarithm that vmap takes is Pyro's, forwards and backwards, and in its place only within."""

from __future__ import annotations

import pytest
import torch
from pyro.ops.einsum import torch_log
from pyro.ops.special import safe_log as of_pyro
from torch import Tensor

from pyro_implicit.handlers.mapped.mappable_logarithm import mappable_logarithm, safe_log


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_pyros(dtype: torch.dtype) -> None:
    found = {}
    for name, log in {"here": safe_log, "pyro": of_pyro}.items():
        x = torch.tensor([0.0, 1e-30, 0.3, 2.0], dtype=dtype, requires_grad=True)
        value = log(x)
        value[2:].sum().backward(retain_graph=True)
        (total,) = torch.autograd.grad(value.exp().sum() + value[0] * 2, x)
        found[name] = value.detach(), x.grad, total
    for ours, theirs in zip(found["here"], found["pyro"], strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_it_is_mapped() -> None:
    x = torch.rand(5, 3, requires_grad=True)
    value = torch.func.vmap(safe_log)(x)
    torch.testing.assert_close(value, x.log())
    value.sum().backward()
    torch.testing.assert_close(x.grad, 1 / x)


def test_contractions_are_mapped_and_others_stay_as_they_are() -> None:
    a, b = torch.randn(4, 2, 3), torch.randn(4, 3)

    def product(a: Tensor, b: Tensor) -> Tensor:
        with mappable_logarithm():
            return torch_log.einsum("ab,b->a", a, b)

    before = torch_log.safe_log
    expected = (a + b[:, None]).logsumexp(-1)
    torch.testing.assert_close(torch.func.vmap(product)(a, b), expected)
    assert torch_log.safe_log is before
    with pytest.raises(KeyError), mappable_logarithm():
        raise KeyError
    assert torch_log.safe_log is before
