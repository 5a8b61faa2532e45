r"""
Trainable priors over functions, for :class:`~pyro_implicit.ImplicitProcess`.

References

- `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019. Examples 1,
  3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_counts,
    check_instance,
    check_number,
)
from pyro_implicit.bayesian.private_copy import private_copy, to_buffers
from pyro_implicit.bayesian.recurrence import steps_of_recurrence
from pyro_implicit.exceptions import ArgumentError, LayerError, ShapeError
from pyro_implicit.ops.activations import get_activation

__all__ = ["NeuralSampler", "RandomNetwork"]


class RandomNetwork(nn.Module):
    r"""
    A network with random weights, the mean and the scale of each of which is trained.

    It is a Bayesian neural network as a prior over functions (Ma, Li and Hernandez-Lobato 2019,
    example 3), or a recurrent one (example 4).

    Means start at 0 and scales at one over the square root of a weight's numbers for each entry of
    its first dimension, so that activations keep their size in linear, convolution and recurrent
    layers. The module that is passed in stays as it is.

    Source: `Variational Implicit Processes`, Ma, Li and Hernandez-Lobato, ICML 2019.

    :param torch.nn.Module module: from ``(N, ...)`` to ``(N, K)``.
    :param str vectorize: ``"vmap"``, or ``"loop"`` for a network that vmap cannot evaluate.
    :raises ArgumentError: for a module without parameters, or another ``vectorize``.
    """

    def __init__(self, module: nn.Module, *, vectorize: str = "vmap") -> None:
        super().__init__()
        check_choice("vectorize", vectorize, ("vmap", "loop"))
        check_instance("module", module, nn.Module, "an nn.Module, built")
        self._names = [name for name, _ in module.named_parameters()]
        if not self._names:
            raise ArgumentError(f"{type(module).__name__} has no parameters to be random.")
        self._loops = vectorize == "loop"
        scales = _initial_scales(module)
        parameters = dict(module.named_parameters())
        self.loc = nn.ParameterList(torch.zeros_like(parameters[n]) for n in self._names)
        self.log_scale = nn.ParameterList(
            torch.full_like(parameters[n], math.log(scales[n])) for n in self._names
        )
        self.module = private_copy(module)
        to_buffers(self.module, self._names)  # its own values are of no use
        self._recurrence = steps_of_recurrence(self.module)

    def forward(self, inputs: Tensor, num_functions: int) -> Tensor:
        """
        Draws random functions, and evaluates them at the inputs.

        :param torch.Tensor inputs: shape ``(N, ...)``.
        :param int num_functions: number ``S`` of functions to draw.
        :returns: their values, shape ``(S, N)`` for a network with one output, ``(S, K, N)`` else.
        :raises LayerError: for a layer that vmap has no rule for.
        """
        num_functions = _check_call(inputs, num_functions)
        weights = {
            name: loc + log_scale.exp() * torch.randn((num_functions, *loc.shape)).to(loc)
            for name, loc, log_scale in zip(self._names, self.loc, self.log_scale, strict=True)
        }

        def evaluate(one: dict[str, Tensor]) -> Tensor:
            with self._recurrence():
                outputs: Tensor = functional_call(self.module, one, (inputs,))
                return outputs

        if self._loops:
            rows = [{n: w[i] for n, w in weights.items()} for i in range(num_functions)]
            values = torch.stack([evaluate(row) for row in rows])
        else:
            values = self._mapped(evaluate, weights)
        return outputs_in_front(values)

    def _mapped(self, evaluate: Callable[..., Tensor], weights: dict[str, Tensor]) -> Tensor:
        try:
            return vmap(evaluate, randomness="different")(weights)
        except RuntimeError as error:
            if "atching rule" not in str(error):
                raise
            raise LayerError(
                f"torch.func.vmap cannot evaluate {type(self.module).__name__} for several draws "
                f"of its weights at once ({str(error).splitlines()[0]}). Write "
                "RandomNetwork(module, vectorize='loop')."
            ) from error


class NeuralSampler(nn.Module):
    r"""
    Functions :math:`f(x) = NN(x, z)` with a random input ``z`` that all inputs share.

    ``z`` is uniform in a cube (Ma, Li and Hernandez-Lobato 2019, example 1).

    Source: `Variational Implicit Processes`, Ma, Li and Hernandez-Lobato, ICML 2019.

    :param int in_features: entries of an input.
    :param int noise_dim: entries of ``z``.
    :param hidden_dims: widths of the hidden layers.
    :param int out_features: outputs.
    :param float bound: half the side of the cube.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :raises ArgumentError: for values outside of these.
    """

    def __init__(
        self,
        in_features: int,
        *,
        noise_dim: int = 10,
        hidden_dims: Sequence[int] = (10, 10),
        out_features: int = 1,
        bound: float = 1.0,
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        in_features = check_count("in_features", in_features)
        noise_dim = check_count("noise_dim", noise_dim)
        out_features = check_count("out_features", out_features)
        bound = check_number("bound", bound, above=0)
        widths = [in_features + noise_dim, *check_counts("hidden_dims", hidden_dims)]
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.last = nn.Linear(widths[-1], out_features)
        self.activation = activation
        self._activation = get_activation(activation)[0]
        self.in_features, self.noise_dim, self.bound = in_features, noise_dim, bound

    def forward(self, inputs: Tensor, num_functions: int) -> Tensor:
        """
        Draws random functions, and evaluates them at the inputs.

        :param torch.Tensor inputs: shape ``(N, in_features)``.
        :param int num_functions: number ``S`` of functions to draw.
        :returns: their values, shape ``(S, N)`` for one output, ``(S, K, N)`` else.
        """
        num_functions = _check_call(inputs, num_functions)
        if inputs.dim() != 2 or inputs.shape[-1] != self.in_features:
            raise ShapeError(
                f"inputs of shape {tuple(inputs.shape)}; expected (N, {self.in_features})."
            )
        z = (2 * torch.rand(num_functions, 1, self.noise_dim).to(inputs) - 1) * self.bound
        x = inputs.expand(num_functions, *inputs.shape)
        z = z.expand(num_functions, len(inputs), self.noise_dim)
        values = torch.cat([x, z], -1)
        for layer in self.hidden:
            values = self._activation(layer(values))
        return outputs_in_front(self.last(values))


def _check_call(inputs: Tensor, num_functions: int) -> int:
    check_instance("inputs", inputs, Tensor, "a tensor (N, ...)")
    return check_count("num_functions", num_functions)


def outputs_in_front(values: Tensor) -> Tensor:
    """Turns outputs ``(S, N, K)`` into ``(S, K, N)``, or ``(S, N)`` for one output."""
    if values.dim() < 3:
        return values
    return values[..., 0] if values.shape[-1] == 1 else values.mT


def _initial_scales(module: nn.Module) -> dict[str, float]:
    """One over the square root of the number of inputs, by name of the parameter."""
    scales = {}
    for prefix, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        fans = [p[0].numel() for p in own.values() if p.dim() > 1] or [1]
        for name, parameter in own.items():
            fan = parameter[0].numel() if parameter.dim() > 1 else max(fans)
            scales[f"{prefix}.{name}" if prefix else name] = fan**-0.5
    return scales
