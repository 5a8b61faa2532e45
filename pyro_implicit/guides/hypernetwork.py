"""The default implicit guide: a neural network that turns noise into all latents at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from pyro_implicit._checks import check_callable, check_count, check_counts, check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.as_generator import as_generator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.mlp import MLPGenerator
from pyro_implicit.generators.rescaled import rescaled
from pyro_implicit.generators.residual import ResidualGenerator
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.parts import check_factorized
from pyro_implicit.ops.activations import get_activation

__all__ = ["HyperNetworkGuide"]

#: up to here as many noise dimensions as latents, and a linear map beside the network
_SMALL = 256

_GENERATORS = (
    "a Generator, an nn.Module, or a callable that makes one from the number of outputs, e.g. "
    "generator=ResidualGenerator"
)


class HyperNetworkGuide(ImplicitGuide):
    r"""
    An implicit guide whose latents come out of a multilayer perceptron.

    It is a *hypernetwork* where the latents are the weights of a network.

    Defaults, and why. Up to 256 latents: as many noise dimensions as latents (each direction left
    out costs about :math:`\log(1/\sigma) - \tfrac12` nats, and more noise than latents makes the
    linearised entropy count folds twice) and a linear map beside the network, so that draws fill
    the space and no output noise is needed. Above: 100 noise dimensions, no linear map,
    ``scale=0.01``. With ``init_from`` and more than 256 latents: a
    :class:`~pyro_implicit.ResidualGenerator`, whose determinant stays cheap.

    :param model: a Pyro model whose latents are continuous.
    :param int noise_dim: noise dimensions.
    :param hidden_dims: widths of the hidden layers.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`. The default does
        not saturate, so that tails can be longer than a Gaussian's: on eight schools the worst
        error of a standard deviation is 6% with it and 11% or more with tanh.
    :param generator: instead of the perceptron: a :class:`~pyro_implicit.Generator` or any
        ``nn.Module``, or a callable that makes one from the number of outputs, such as the class
        :class:`~pyro_implicit.ResidualGenerator`.
    :param float init_scale: standard deviation of the first draws in the unconstrained space; with
        ``init_from`` it is that of the Gaussian that the guide is initialised as. By default 0.1
        for the generators made here and for the bare class
        :class:`~pyro_implicit.ResidualGenerator`, while any other generator of one's own stays as
        it is; if a number is given, its outputs are measured once, centred and multiplied by
        constants (saved with the guide) so that they have it.
    :param options: ``init_loc_fn``, ``init_from``, ``scale``, ``learn_scale``, ``factorized`` and
        ``create_plates``, see :class:`~pyro_implicit.ImplicitGuide`.
    :raises ArgumentError: for bad values, or ``generator`` together with options that it replaces.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        noise_dim: int | None = None,
        hidden_dims: Sequence[int] | None = None,
        activation: str = "silu",
        generator: Any = None,
        init_scale: float | None = None,
        **options: Any,
    ) -> None:
        check_factorized(options.get("factorized", False))
        if generator is not None and hidden_dims is not None:
            raise ArgumentError("generator replaces hidden_dims: give one of the two.")
        if isinstance(generator, nn.Module) and options.get("factorized"):
            raise ArgumentError(
                "factorized=True needs one generator per site: pass a callable that makes one from "
                "the number of outputs, e.g. generator=ResidualGenerator, not one module."
            )
        if generator is not None:
            check_callable("generator", generator, _GENERATORS)
        if noise_dim is not None:
            noise_dim = check_count("noise_dim", noise_dim)
        if hidden_dims is not None:
            hidden_dims = check_counts("hidden_dims", hidden_dims, empty=False)
        if init_scale is not None:
            init_scale = check_number("init_scale", init_scale, above=0)
        get_activation(activation)
        super().__init__(model, **options)
        self._noise_dim = noise_dim
        self._hidden_dims = hidden_dims
        self._activation = activation
        self._init_scale = init_scale
        self._generator = [generator]  # in a list: part of the guide only once it is built

    def __getstate__(self) -> dict[str, Any]:
        # often a lambda, which cannot be pickled; what it made is in the samplers
        return {**super().__getstate__(), "_generator": [None]}

    def __deepcopy__(self, memo: dict[int, Any]) -> HyperNetworkGuide:
        clone = super().__deepcopy__(memo)
        clone._generator = copy.deepcopy(self._generator, memo)
        return clone

    def _own_generator(self, output_dim: int) -> Generator | None:
        option = self._generator[0]
        return None if option is None else as_generator(option, output_dim, self._noise_dim)

    def _num_inputs(self, output_dim: int) -> int:
        """The number of inputs of the perceptron."""
        return self._noise_dim or (output_dim if output_dim <= _SMALL else 100)

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Generator:
        init_scale = 1.0 if preconditioned else self._init_scale or 0.1
        if self._generator[0] is ResidualGenerator:
            return ResidualGenerator(output_dim, init_scale=init_scale)
        own = self._own_generator(output_dim)
        if own is not None:
            return own if self._init_scale is None else rescaled(own, init_scale)
        small = output_dim <= _SMALL
        if preconditioned and not small and self._noise_dim is None and self._hidden_dims is None:
            return ResidualGenerator(output_dim)
        hidden_dims = (40, 40) if small else (100,)
        return MLPGenerator(
            self._num_inputs(output_dim),
            output_dim,
            hidden_dims if self._hidden_dims is None else self._hidden_dims,
            activation=self._activation,
            skip=small,
            init_scale=init_scale,
        )
