"""The default implicit guide: a neural network that turns noise into all latents at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from pyro_implicit._checks import check_callable, check_count, check_counts, check_number
from pyro_implicit._hints import hint
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.as_generator import as_generator
from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.bijective import BijectiveGenerator
from pyro_implicit.generators.mlp import MLPGenerator
from pyro_implicit.generators.rescaled import rescaled
from pyro_implicit.generators.residual import ResidualGenerator
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.parts import check_factorized
from pyro_implicit.ops.activations import get_activation

__all__ = ["HyperNetworkGuide"]

#: latents up to which there is as much noise as latents, and a linear map beside the network
_MAX_LATENTS_WITH_FULL_NOISE = 256
#: latents up to which models that are no networks have a bijection: a perceptron's draws leave
#: scales that many latents share far too narrow (docs/results/panel.md)
_MAX_FLOW_LATENTS = 1024
#: latents up to which nothing is said; above, a dense last layer is most of what a step costs
_MAX_LATENTS_WITHOUT_HINT = 10_000
#: standard deviation that an autoregressive generator begins with: narrower it takes one side of a
#: bent posterior, wider the first steps on a network are lost (docs/results/generators.md)
_FLOW_INIT_SCALE = 0.5

_EXPECTED_GENERATOR = (
    "a Generator, an nn.Module, or a callable that makes one from the number of outputs, e.g. "
    "generator=ResidualGenerator"
)


class HyperNetworkGuide(ImplicitGuide):
    r"""
    An implicit guide whose latents come out of a neural network.

    It is a *hypernetwork* where the latents are the weights of a network.

    Defaults, by the number of latents:

    ============  ============================  =====================  ============================
    latents       generator                     start                  objective of ``fit``
    ============  ============================  =====================  ============================
    up to 1024    autoregressive: three         the best of several    linearised: a true bound
    (256 of a     blocks, as many noises as     Gaussians
    network)      latents, no output noise
    up to 20 000  perceptron of 100 noises and  a mean field, up to    linearised
                  learned noise of each latent  1000 latents perhaps
                                                the mode; networks:
                                                narrow, at their own
                                                values
    more          the same                      one of four            linearised up to 40 000
                                                deviations; networks   latents, then Lanczos
                                                as above
    ============  ============================  =====================  ============================

    **Up to 1024 latents** (256 where half of them or more are weights of several layers) the
    :class:`~pyro_implicit.generators.AutoregressiveGenerator` cannot fold:
    :class:`~pyro_implicit.LinearisedELBO` is a true lower bound, the guide has a density
    (:meth:`log_density`) and Pyro's own objectives can train it. A step takes two to four times
    that of a perceptron, which may fold (:doc:`/results/generators` compares them at equal time),
    and which leaves scales that many latents share too narrow (:doc:`/results/panel`): of more
    latents ask for it by ``generator=AutoregressiveGenerator``. **Above**, with
    ``init_from=None``, the output noise stays at 0.01.

    With ``noise_dim``, ``hidden_dims``, ``activation`` or output noise it is a perceptron at every
    size: up to 256 latents with as many noise dimensions as latents (each direction left out costs
    about :math:`\log(1/\sigma) - \tfrac12` nats) and a linear map beside the network, so that
    draws fill the space and no output noise is needed.

    Example::

        guide = HyperNetworkGuide(model)                   # all by the number of latents
        print(fit(model, guide, x, y, seed=0))
        guide.median()["sigma"]
        guide = HyperNetworkGuide(model, generator=ResidualGenerator)  # or with another generator

    :param model: a Pyro model whose latents are continuous.
    :param int noise_dim: noise dimensions of a perceptron.
    :param hidden_dims: widths of its hidden layers.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`. That of a
        perceptron is by default ``"silu"``, which does not saturate, so that tails can be longer
        than a Gaussian's: on eight schools the worst error of a standard deviation is 6% with it
        and 11% or more with tanh.
    :param generator: a generator of one's own: a :class:`~pyro_implicit.generators.Generator` or
        any ``nn.Module``, or a callable that makes one from the number of outputs, such as the
        class :class:`~pyro_implicit.generators.ResidualGenerator`. It is the module itself that is
        trained, in the precision of the latents; parts in evaluation mode stay there.
    :param float init_scale: standard deviation of the first draws in the unconstrained space. If it
        is given, ``init_from="auto"`` chooses the location alone; a start as a Gaussian has its
        deviations. By default what the start finds, and with ``init_from=None`` 0.5 for an
        :class:`~pyro_implicit.generators.AutoregressiveGenerator`, 0.1 for the other generators
        made here and for the bare classes :class:`~pyro_implicit.generators.ResidualGenerator` and
        :class:`~pyro_implicit.generators.BijectiveGenerator`, while any other generator of one's
        own stays as it is; if a number is given, its outputs are measured once, centred and
        multiplied by constants (saved with the guide) so that they have it.
    :param options: ``init_loc_fn``, ``init_from``, ``scale``, ``learn_scale``, ``factorized`` and
        ``create_plates``, see :class:`~pyro_implicit.guides.ImplicitGuide`.
    :raises ArgumentError: for bad values, or ``generator`` together with options that it replaces.
    :warns PerformanceHint: once, for the default generator of more than 10 000 latents.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        noise_dim: int | None = None,
        hidden_dims: Sequence[int] | None = None,
        activation: str | None = None,
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
            check_callable("generator", generator, _EXPECTED_GENERATOR)
        if noise_dim is not None:
            noise_dim = check_count("noise_dim", noise_dim)
        if hidden_dims is not None:
            hidden_dims = check_counts("hidden_dims", hidden_dims, empty=False)
        if init_scale is not None:
            init_scale = check_number("init_scale", init_scale, above=0)
        if activation is not None:
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

    def _has_units(self) -> bool:
        classes = (None, AutoregressiveGenerator, BijectiveGenerator, ResidualGenerator)
        own = self._generator[0] not in classes
        return own or self._init_scale is not None or super()._has_units()

    def _is_free(self) -> bool:
        """Whether nothing asks for a perceptron or for output noise."""
        asked = (self._noise_dim, self._hidden_dims, self._activation)
        noisy = bool(self._scale) or bool(self._learn_scale)
        return all(one is None for one in asked) and not noisy

    def _num_inputs(self, output_dim: int) -> int:
        """The number of inputs of the perceptron."""
        is_full = output_dim <= _MAX_LATENTS_WITH_FULL_NOISE
        return self._noise_dim or (output_dim if is_full else 100)

    def _flows(self, output_dim: int) -> bool:
        """Whether latents get a bijection where nobody has named a generator."""
        if not self._is_free() or output_dim > _MAX_FLOW_LATENTS:
            return False
        return output_dim <= _MAX_LATENTS_WITH_FULL_NOISE or not self._is_network

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Generator:
        kind, small = self._generator[0], output_dim <= _MAX_LATENTS_WITH_FULL_NOISE
        flows = kind is AutoregressiveGenerator or (kind is None and self._flows(output_dim))
        own_scale = self._guessed or (_FLOW_INIT_SCALE if flows else 0.1)
        init_scale = 1.0 if preconditioned else self._init_scale or own_scale
        if kind in (AutoregressiveGenerator, BijectiveGenerator, ResidualGenerator):
            generator: Generator = kind(output_dim, init_scale=init_scale)
            return generator
        own = self._own_generator(output_dim)
        if own is not None:
            return own if self._init_scale is None else rescaled(own, init_scale)
        if flows:
            return AutoregressiveGenerator(output_dim, init_scale=init_scale)
        hidden_dims, num_inputs = (40, 40) if small else (100,), self._num_inputs(output_dim)
        if output_dim > _MAX_LATENTS_WITHOUT_HINT and self._hidden_dims is None:
            hint(
                "default guide",
                f"the default generator of {output_dim} latents has more than "
                f"{100 * output_dim} parameters. MMNNGuide(model) has some two for each latent.",
            )
        if preconditioned:
            init_scale = self._own_scale(small and num_inputs >= output_dim)
        return MLPGenerator(
            num_inputs,
            output_dim,
            hidden_dims if self._hidden_dims is None else self._hidden_dims,
            activation=self._activation or "silu",
            skip=small,
            init_scale=init_scale,
            short_steps=not small,
        )
