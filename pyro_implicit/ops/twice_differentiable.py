"""Operations in a form whose Jacobian can be differentiated once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

__all__ = ["TwiceDifferentiable"]

_LOW_PRECISION = (torch.float16, torch.bfloat16)


class TwiceDifferentiable(TorchFunctionMode):
    """
    Writes operations out whose derivative of a derivative torch gets wrong, or does not have.

    *Layer and instance normalisation* of torch are one operation each, which keeps mean and
    deviation beside its output and takes them for constants when a product ``J v`` is
    differentiated: by forward mode, or by differentiating a gradient twice. The gradient of a
    log-determinant was off by half of itself, without a word (torch 2.13 to 2.15). Values, first
    derivatives and Hessians of torch are right, and group and root-mean-square normalisation in all
    orders. What is not called by its name in torch stays as it is, and as wrong: within
    ``torch.jit``, as ``torch.native_layer_norm``, or as batch normalisation of other axes
    (:func:`~pyro_implicit.generators.jacobian_route.right_route` finds those out). *Gated linear
    units* have no derivative of their forward mode, and *attention* has second derivatives in its
    plain form alone, which is taken.

    Example::

        from pyro_implicit.ops.twice_differentiable import TwiceDifferentiable

        layer, z = torch.nn.LayerNorm(3), torch.randn(3)
        with TwiceDifferentiable():
            jacobian = torch.func.jacfwd(layer)(z)
    """

    def __enter__(self) -> TwiceDifferentiable:
        self._plain_attention = sdpa_kernel(SDPBackend.MATH)
        self._plain_attention.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._plain_attention.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written_out = _WRITTEN_OUT.get(func)
        found = None if written_out is None else written_out(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor | None:
    """``torch.layer_norm``; None for shapes that it refuses."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        return None
    out = _standardised(input, tuple(range(-len(shape), 0)), eps)
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).to(input.dtype)


def _instance_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor | None:
    """``torch.instance_norm``; None with running statistics, and for shapes that it refuses."""
    keeps = not use_input_stats or running_mean is not None
    if keeps or input.dim() < 3 or input.shape[2:].numel() < 2:
        return None
    out = _standardised(input, tuple(range(2, input.dim())), eps)
    by_channel = (-1, *[1] * (input.dim() - 2))
    out = out if weight is None else out * weight.reshape(by_channel)
    return (out if bias is None else out + bias.reshape(by_channel)).to(input.dtype)


def _glu(input: Tensor, dim: int = -1) -> Tensor | None:  # noqa: A002
    """``torch.nn.functional.glu``; None for shapes that it refuses."""
    if input.dim() == 0 or input.shape[dim] % 2:
        return None
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def _standardised(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """Without mean and with deviation 1 over ``dims``, in single precision at least."""
    x = x.float() if x.dtype in _LOW_PRECISION else x
    centred = x - x.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)


_WRITTEN_OUT: dict[Any, Callable[..., Tensor | None]] = {
    F.glu: _glu,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.instance_norm: _instance_norm,
    torch.instance_norm: _instance_norm,
}
