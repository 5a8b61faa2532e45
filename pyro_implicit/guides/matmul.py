r"""
Guides over very many latents, by matrix-multiplication generators.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Appendices D and E.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pyro_implicit._checks import check_count, check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.cmmnn import CMMNN
from pyro_implicit.generators.layout import Shape, check_budget, check_pair, check_pairs
from pyro_implicit.generators.mmnn import MMNN
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart
from pyro_implicit.guides.initialization.initial import fan_in_scale, init_to_fan_in
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.parts import check_factorized
from pyro_implicit.ops.activations import get_activation

__all__ = ["CMMNNGuide", "MMNNGuide"]


_DEFAULT_INIT_SCALE = 0.05


class _MatMulGuide(ImplicitGuide):
    """What both guides share: weights in units of one over the root of their fan-in."""

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        noise_shape: Shape | None = None,
        budget: float = 2.0,
        activation: str = "elu",
        init_scale: float | None = None,
        **options: Any,
    ) -> None:
        if init_scale is not None:
            init_scale = check_number("init_scale", init_scale, above=0)
        budget = check_budget(budget)
        get_activation(activation)
        super().__init__(model, **options)
        self._noise_shape = None if noise_shape is None else check_pair("noise_shape", noise_shape)
        self._budget = budget
        self._activation = activation
        self._init_scale = init_scale

    _default_init_loc_fn: Callable[[dict[str, Any]], torch.Tensor] = staticmethod(init_to_fan_in)

    def _has_units(self) -> bool:
        return self._init_scale is not None or super()._has_units()

    def _start(self, sites: list[LatentSite], start: GaussianStart) -> GaussianStart:
        if start.factor is not None:
            return start
        parts = [start.loc.new_full((site.numel,), fan_in_scale(site)) for site in sites]
        return replace(start, factor=torch.cat(parts))

    def _layout(self, preconditioned: bool) -> dict[str, Any]:
        init_scale = self._init_scale or self._guessed or _DEFAULT_INIT_SCALE
        if preconditioned:
            init_scale = self._own_scale(full_rank=False)
        return {
            "noise_shape": self._noise_shape,
            "budget": self._budget,
            "activation": self._activation,
            "init_scale": init_scale,
        }


class MMNNGuide(_MatMulGuide):
    r"""
    An implicit guide whose latents come out of one :class:`~pyro_implicit.generators.MMNN`.

    With ``factorized=True`` there is one per site (the posterior family of KIVI).

    Lays itself out from the model's latents and the budget; the shapes of Uppal et al. 2023 for
    LeNet are ``noise_shape=(65, 65), hidden_shapes=[(250, 250)], output_shape=(350, 127)``. Train
    it with :class:`~pyro_implicit.LanczosELBO` or :class:`~pyro_implicit.SingularValueELBO`: an
    exact determinant of thousands of noise dimensions is too expensive.

    Weights (sites with two or more event dimensions) are generated in units of one over the root of
    their fan-in: the first draws are a freshly initialised network with relative noise
    ``init_scale``, and ``scale`` is relative in the same way.

    Example::

        guide = MMNNGuide(model, learn_scale="scalar")
        fit(model, guide, x, y, objective=LanczosELBO(2), seed=0)

    Sources:

    - `Kernel Implicit Variational Inference`, Shi, Sun and Zhu, ICLR 2018.
    - `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS 2023.

    :param model: a Pyro model whose latents are continuous.
    :param noise_shape: rows and columns of the noise; by default about one noise entry for ten
        latents, at most 130 x 130, and for up to 256 latents one for each, whatever the budget.
        With fewer entries than latents the directions left out have the deviation of the output
        noise alone, ``scale``: learn it with ``learn_scale="scalar"``.
    :param hidden_shapes: shapes of the hidden layers; by default one that the budget allows.
    :param output_shape: by default nearly square; spare entries are cut off. Not with
        ``factorized=True``.
    :param float budget: variational parameters per latent, greater than 1.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: size of the first draws' noise, relative to the weights: by default
        what the start finds, and 0.05 with ``init_from=None``. If it is given, ``init_from="auto"``
        chooses the location alone.
    :param init_loc_fn: with ``init_from=None`` by default a fresh initialisation of the weights,
        see :func:`~pyro_implicit.guides.init_to_fan_in`; ``net.init_to_module`` starts at the
        values of the wrapped module.
    :param options: ``init_from``, ``scale``, ``learn_scale``, ``factorized``, ``create_plates``:
        see :class:`~pyro_implicit.guides.ImplicitGuide`.
    :raises ArgumentError: for bad values.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        hidden_shapes: Sequence[Shape] | None = None,
        output_shape: Shape | None = None,
        **options: Any,
    ) -> None:
        check_factorized(options.get("factorized", False))
        if hidden_shapes is not None:
            hidden_shapes = check_pairs("hidden_shapes", hidden_shapes)
        if output_shape is not None:
            output_shape = check_pair("output_shape", output_shape)
        if output_shape is not None and options.get("factorized"):
            raise ArgumentError(
                "output_shape fits one generator; with factorized=True leave it out."
            )
        super().__init__(model, **options)
        self._hidden_shapes = hidden_shapes
        self._output_shape = output_shape

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Generator:
        return MMNN(
            output_dim,
            hidden_shapes=self._hidden_shapes,
            output_shape=self._output_shape,
            **self._layout(preconditioned),
        )


class CMMNNGuide(_MatMulGuide):
    r"""
    An implicit guide whose latents come out of one :class:`~pyro_implicit.generators.CMMNN`.

    That is a shared trunk, then a branch for each layer of the network (Uppal et al. 2023, appendix
    D).

    Sites with the same name up to the last dot (``0.weight`` and ``0.bias``) share a branch, and
    layers of more than ``branch_size`` latents have several: the cost of a branch grows with the
    1.5th power of its size, so that of the guide grows in proportion to the number of latents only
    if branches are bounded (draw and gradient of 17 million latents on one CPU thread: 28 ns per
    latent without a bound, 17 with the default). The guide for networks of millions of weights.

    Example::

        guide = CMMNNGuide(model, budget=4.0)              # four parameters for each latent
        fit(model, guide, x, y, objective=LanczosELBO(2), seed=0)

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.

    :param model: a Pyro model whose latents are continuous.
    :param trunk_shapes: shapes of the trunk's layers; the last one is split by columns.
    :param int branch_size: most latents of one branch.
    :param options: ``noise_shape``, ``budget``, ``activation``, ``init_scale`` and what all guides
        have, see :class:`MMNNGuide`; not ``factorized``.
    :raises ArgumentError: for bad values, or ``factorized=True`` (use :class:`MMNNGuide`).
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        trunk_shapes: Sequence[Shape] | None = None,
        branch_size: int = 2**18,
        **options: Any,
    ) -> None:
        branch_size = check_count("branch_size", branch_size)
        if trunk_shapes is not None:
            trunk_shapes = check_pairs("trunk_shapes", trunk_shapes)
        check_factorized(options.get("factorized", False))
        if options.get("factorized"):
            raise ArgumentError(
                "CMMNNGuide shares a trunk among all sites; for independent generators write "
                "MMNNGuide(model, factorized=True)."
            )
        super().__init__(model, **options)
        self._trunk_shapes = trunk_shapes
        self._branch_size = branch_size

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Generator:
        sizes = [part for group in _group_sizes(sites) for part in _split(group, self._branch_size)]
        return CMMNN(sizes, trunk_shapes=self._trunk_shapes, **self._layout(preconditioned))


def _group_sizes(sites: list[LatentSite]) -> list[int]:
    """Latents of consecutive sites whose names are the same up to the last dot, added up."""
    sizes: list[int] = []
    last = ""
    for site in sites:
        prefix = site.name.rpartition(".")[0]
        if prefix and prefix == last:
            sizes[-1] += site.numel
        else:
            sizes.append(site.numel)
        last = prefix
    return sizes


def _split(size: int, most: int) -> list[int]:
    """As few parts of at most ``most`` as can be, of equal sizes or nearly so."""
    count = -(-size // most)
    return [size // count + (index < size % count) for index in range(count)]
