"""Activation functions together with their slopes, both differentiable by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ArgumentError

__all__ = ["ACTIVATIONS", "Activation", "get_activation", "largest_slope", "value_and_slope"]

#: a function and its slope
Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]

#: of a tensor on a CPU: with as many, ``exp`` and a few more operations are cheaper than ``expm1``
_MIN_ENTRIES_FOR_FAST_EXP = 4096


def _elu(x: Tensor) -> Tensor:
    return _elu_with_slope(x)[0] if _exponentiates_fast(x) else F.elu(x)


def _elu_with_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """
    Both from one exponential.

    ``F.elu`` calls ``expm1``, which takes several times as long on a CPU, and once more for its
    gradient. What is lost is a rounding error of 1 where the value is near 0.
    """
    if not _exponentiates_fast(x):
        return F.elu(x), _elu_slope(x)
    positive = F.relu(x)
    slope = torch.exp(x - positive)
    return positive + (slope - 1), slope


def _exponentiates_fast(x: Tensor) -> bool:
    """Whether ``exp`` is worth a subtraction: not for few numbers, and not in half precision."""
    return (
        x.device.type == "cpu" and x.dtype.itemsize >= 4 and x.numel() >= _MIN_ENTRIES_FOR_FAST_EXP
    )


def _tanh_with_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.tanh(x)
    return value, 1 - value**2


def _tanh_slope(x: Tensor) -> Tensor:
    return 1 - torch.tanh(x) ** 2


def _elu_slope(x: Tensor) -> Tensor:
    return torch.exp(x.clamp(max=0.0))


def _relu_slope(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _leaky_relu_slope(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.ones_like(x), torch.full_like(x, 0.01))


def _silu_slope(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))


def _gelu_slope(x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


#: name -> (function, slope); the slope is written out because autograd would need a second pass.
ACTIVATIONS: dict[str, Activation] = {
    "elu": (_elu, _elu_slope),
    "gelu": (F.gelu, _gelu_slope),
    "identity": (lambda x: x, torch.ones_like),
    "leaky_relu": (F.leaky_relu, _leaky_relu_slope),
    "relu": (F.relu, _relu_slope),
    "silu": (F.silu, _silu_slope),
    "sin": (torch.sin, torch.cos),
    "softplus": (F.softplus, torch.sigmoid),
    "tanh": (torch.tanh, _tanh_slope),
}

#: functions that share work with their slopes; those by which they are evaluated together
_TOGETHER_WITH_SLOPE = {_elu: _elu_with_slope, torch.tanh: _tanh_with_slope}


def value_and_slope(activation: Activation, x: Tensor) -> tuple[Tensor, Tensor]:
    """
    Evaluates an activation and its slope, with what they share computed once.

    :param activation: one of :data:`ACTIVATIONS`.
    :param torch.Tensor x: any shape.
    :returns: both, of the shape of ``x``.
    """
    function, derivative = activation
    together = _TOGETHER_WITH_SLOPE.get(function)
    return (function(x), derivative(x)) if together is None else together(x)


def get_activation(name: str) -> Activation:
    """
    Finds an activation function and its slope by name.

    :param str name: a key of :data:`ACTIVATIONS`.
    :returns: the function and its slope.
    :raises ArgumentError: for an unknown name.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ArgumentError(
            f"activation {shown(name)} is unknown; expected one of {sorted(ACTIVATIONS)}. For any "
            "other function, pass your own generator module."
        )
    return ACTIVATIONS[name]


#: absolute, rounded up; those of all other activations are 1
_LARGEST_SLOPES = {"gelu": 1.12893, "silu": 1.09984}


def largest_slope(name: str) -> float:
    """
    Bound the slope of an activation function.

    :param str name: a key of :data:`ACTIVATIONS`.
    :returns: an upper bound of the absolute value of its slope, hence a Lipschitz constant.
    :raises ArgumentError: for an unknown name.
    """
    get_activation(name)
    return _LARGEST_SLOPES.get(name, 1.0)
