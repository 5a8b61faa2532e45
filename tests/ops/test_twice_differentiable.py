"""What is written out: the values of torch, and Jacobians' gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit.ops.jacobian import function_jacobian
from pyro_implicit.ops.linearisation import FunctionLinearisation
from pyro_implicit.ops.twice_differentiable import TwiceDifferentiable


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            4, 2, 5, dropout=0.0, activation="gelu", batch_first=True
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 3, 4)).reshape(*x.shape[:-1], 12)


_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(12),
    "layer, two dimensions": lambda: nn.Sequential(
        nn.Unflatten(-1, (3, 4)), nn.LayerNorm((3, 4)), nn.Flatten(-2)
    ),
    "layer, no scale": lambda: nn.LayerNorm(12, elementwise_affine=False),
    "instance": lambda: nn.Sequential(
        nn.Unflatten(-1, (3, 4)), nn.InstanceNorm1d(3, affine=True), nn.Flatten(-2)
    ),
    "instance, images": lambda: nn.Sequential(
        nn.Unflatten(-1, (3, 2, 2)), nn.InstanceNorm2d(3), nn.Flatten(-3)
    ),
    "group": lambda: nn.Sequential(nn.Unflatten(-1, (4, 3)), nn.GroupNorm(2, 4), nn.Flatten(-2)),
    "root mean square": lambda: nn.RMSNorm(12),
    "weight": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(12, 12)),
    "softmax": lambda: nn.Softmax(-1),
    "GLU": lambda: nn.GLU(-1),
    "attention": lambda: _Attention(),
    "GELU": lambda: nn.GELU(),
}


def _network(name: str) -> nn.Module:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(12, 12), _LAYERS[name](), nn.Tanh()).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def _gradients(number: Tensor, network: nn.Module) -> list[Tensor]:
    found = torch.autograd.grad(number, list(network.parameters()), materialize_grads=True)
    return list(found)


@pytest.mark.parametrize("name", _LAYERS)
@pytest.mark.parametrize("by", ["jvp", "vjp", "pairing", "jacobian"])
def test_a_jacobian_has_the_gradient_of_finite_differences(name: str, by: str) -> None:
    network, step = _network(name), 1e-5
    z = torch.randn(4, 12, dtype=torch.float64)
    m = network(z).shape[-1]
    u, v = torch.randn(4, m, dtype=torch.float64), torch.randn(4, 12, dtype=torch.float64)
    slope = (network(z + step * v) - network(z - step * v)) / (2 * step)
    products = FunctionLinearisation(network, z)
    number = {
        "jvp": lambda: (u * products.jvp(v[None])[0]).sum(),
        "vjp": lambda: (v * products.vjp(u[None])[0]).sum(),
        "pairing": lambda: products.pairing(u[None], *_met(products, u, v)).sum(),
        "jacobian": lambda: torch.einsum(
            "nm,nmd,nd->", u, function_jacobian(lambda row: network(row[None])[0], z, m), v
        ),
    }[by]()
    expected = _gradients((u * slope).sum(), network)
    for found, right in zip(_gradients(number, network), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


def _met(products: FunctionLinearisation, u: Tensor, v: Tensor) -> tuple[list[Tensor], ...]:
    return products.kept_jvp(v[None])[1], products.kept_vjp(u[None])[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_are_those_of_torch(dtype: torch.dtype) -> None:
    x = (3 + 2 * torch.randn(2, 3, 4, 5)).to(dtype)
    weight, bias = torch.randn(5).to(dtype), torch.randn(5).to(dtype)
    by_channel = torch.randn(3).to(dtype)
    calls = [
        lambda: F.layer_norm(x, (5,), weight, bias),
        lambda: F.layer_norm(x, [4, 5], eps=0.1),
        lambda: torch.layer_norm(x, (5,), weight),
        lambda: F.instance_norm(x, weight=by_channel, bias=by_channel, eps=0.1),
        lambda: torch.instance_norm(x, by_channel, None, None, None, True, 0.1, 1e-5, False),
        lambda: F.glu(x, 2),
    ]
    for call in calls:
        right = call()
        with TwiceDifferentiable():
            found = call()
        assert found.dtype == dtype
        torch.testing.assert_close(found, right)


def test_low_precision_is_widened_within() -> None:
    x = (3 + 2 * torch.randn(2, 3, 8)).bfloat16()
    with TwiceDifferentiable():
        found = F.instance_norm(x), F.layer_norm(x, (8,))
    right = F.instance_norm(x.float()), F.layer_norm(x.float(), (8,))
    for one, exact in zip(found, right, strict=True):
        torch.testing.assert_close(one, exact.bfloat16())


def test_running_statistics_and_errors_stay_those_of_torch() -> None:
    layer = nn.InstanceNorm1d(3, track_running_stats=True)
    x = torch.randn(2, 3, 4)
    with TwiceDifferentiable():
        layer(x)
        assert layer.running_mean is not None and layer.running_mean.abs().sum() > 0
        evaluated = layer.eval()(x)
        with pytest.raises(RuntimeError, match="normalized_shape"):
            F.layer_norm(x, (5,))
        with pytest.raises(RuntimeError, match="dimension must be even"):
            F.glu(x[:, :, :3])
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            F.instance_norm(x[..., :1])
    torch.testing.assert_close(evaluated, layer(x))
