"""A generator that cannot fold: residual blocks with a certified constant below one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_number
from pyro_implicit.exceptions import DensityError
from pyro_implicit.generators.linear_maps import INVERTIBLE_KINDS, default_kind
from pyro_implicit.generators.residual import ResidualBlock, ResidualGenerator
from pyro_implicit.ops.activations import largest_slope
from pyro_implicit.ops.contraction import invert_block, spectral_norm
from pyro_implicit.ops.inverse import Inversion, check_reached, first_order, result_dtype
from pyro_implicit.ops.logdet import upcast

__all__ = ["BijectiveGenerator"]


class ContractiveBlock(ResidualBlock):
    r"""
    A residual block whose network has a Lipschitz constant of at most ``c``.

    :param int size: ``m``.
    :param int hidden_dim: ``h``.
    :param float constant: ``c``.
    :param float slope: the largest slope of the activation.
    """

    def __init__(self, size: int, hidden_dim: int, constant: float, slope: float) -> None:
        super().__init__(size, hidden_dim)
        self.constant, self.slope = constant, slope
        with torch.no_grad():
            self.bias_in.normal_()

    def weights(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        See :meth:`ResidualBlock.weights`.

        ``W_2`` is shrunk where the product of the two norms and of the largest slope exceeds the
        constant.
        """
        weight_in, bias, weight_out = super().weights(like)
        wide = torch.promote_types(weight_in.dtype, torch.float32)  # eigenvalues need it
        norm = self.slope * spectral_norm(weight_in.to(wide)) * spectral_norm(weight_out.to(wide))
        factor = self.constant / norm.clamp(min=self.constant)
        return weight_in, bias, weight_out * factor.to(weight_out.dtype)

    @torch.no_grad()
    def bound(self) -> float:
        """Return an upper bound of the network's Lipschitz constant, in float64."""
        weight_in, _, weight_out = self.weights(upcast(self.weight_in))
        return float(self.slope * spectral_norm(weight_in) * spectral_norm(weight_out))


class BijectiveGenerator(ResidualGenerator):
    r"""
    A :class:`~pyro_implicit.generators.ResidualGenerator` that cannot fold.

    The network of each block has a Lipschitz constant of at most :math:`c < 1` (a residual flow,
    Behrmann et al., Invertible Residual Networks, ICML 2019), and the linear maps between them are
    products of triangular matrices with positive diagonals.

    Noise and draw determine each other. The linearised entropy is then the entropy itself, so that
    :class:`~pyro_implicit.LinearisedELBO` is a true lower bound on the evidence; the density can be
    evaluated (:meth:`inverse`), so that Pyro's ``Trace_ELBO`` and ``RenyiELBO`` work as well, and
    so do importance weights and neural transport. The price is flexibility: a block cannot bend as
    it likes.

    The constant is not approximated by power iteration: the norms are those of matrices with ``h``
    rows or columns, hence found exactly.

    :param int output_dim: outputs and noise dimensions ``m``.
    :param int hidden_dim: width ``h`` of each block.
    :param int num_blocks: number of blocks.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param str mixing: the linear maps: ``"diagonal"``, ``"triangular"`` (a full matrix by its
        triangular factors), or ``"auto"``: the latter up to 256 outputs.
    :param float init_scale: standard deviation of each output at initialisation (positive).
    :param float lipschitz: ``c``, below 1.
    :raises ArgumentError: for values outside of these.
    """

    _mixings = ("auto", *INVERTIBLE_KINDS)

    def __init__(
        self,
        output_dim: int,
        hidden_dim: int = 20,
        *,
        num_blocks: int = 4,
        activation: str = "elu",
        mixing: str = "auto",
        init_scale: float = 1.0,
        lipschitz: float = 0.97,
    ) -> None:
        why = ": the Lipschitz constant of each block, which must be below 1 to be invertible"
        self._constant = check_number("lipschitz", lipschitz, above=0, below=1, why=why)
        self._slope = largest_slope(activation)
        super().__init__(
            output_dim,
            hidden_dim,
            num_blocks=num_blocks,
            activation=activation,
            mixing=mixing,
            init_scale=init_scale,
        )

    def _default_kind(self) -> str:
        return default_kind(self.output_dim, invertible=True)

    def _make_block(self) -> ResidualBlock:
        return ContractiveBlock(self.output_dim, self.hidden_dim, self._constant, self._slope)

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`; never in half precision, as the determinant is not."""
        with torch.autocast(z.device.type, enabled=False):
            wide = z.to(torch.promote_types(z.dtype, torch.float32))
            return super().forward(wide).to(z.dtype)

    def lipschitz_bounds(self) -> list[float]:
        """
        Bounds the Lipschitz constant of each block's network.

        :returns: an upper bound for each block, below 1 where it is certain to be invertible.
        """
        return [block.bound() for block in self.blocks]  # type: ignore[operator]

    @property
    def is_bijective(self) -> bool:  # type: ignore[override]
        """
        Whether every block's bound is below 1 now, as it is unless a parameter is not finite.

        Of a subclass with a map of its own nothing is certain.
        """
        own = type(self).forward is BijectiveGenerator.forward
        return (
            own
            and all(bound < 1 for bound in self.lipschitz_bounds())
            and all(bool(mix.is_invertible) for mix in self.maps)
        )

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`Generator.inverse`; to ``1e-10`` of the size of the pre-activations."""
        return self.invert(x).noise

    def invert(
        self, x: Tensor, *, tolerance: float = 1e-10, max_iterations: int = 1000
    ) -> Inversion:
        """
        Find the inverse, and tell its iterations.

        They are Newton steps in the space of the hidden units, and the fixed-point step where that
        is better, in float64.

        :param torch.Tensor x: outputs, shape ``(..., output_dim)``.
        :param float tolerance: largest residual of a pre-activation, relative to its size.
        :param int max_iterations: for each block.
        :returns: the noise, the largest number of iterations and the largest residual.
        :raises ArgumentError: for values outside of these.
        :raises DensityError: if a block's bound is not below 1.
        :raises NonFiniteError: if the tolerance is not reached, or the noise that was found does
            not lead to the outputs.
        :raises ShapeError: for another number of outputs.
        """
        self.check_outputs(x)
        tolerance = check_number("tolerance", tolerance, above=0)
        max_iterations = check_count("max_iterations", max_iterations)
        if not self.is_bijective:
            bounds = ", ".join(f"{bound:.3g}" for bound in self.lipschitz_bounds())
            raise DensityError(
                f"the blocks' Lipschitz bounds are {bounds}; each must be below 1 for an inverse "
                "to exist. Are all parameters finite?"
            )
        wide = first_order(upcast(x))
        wide, count, worst = wide - self.shift.to(wide.dtype), 0, 0.0
        for weights, mix in reversed(self._parts(wide)):
            found = invert_block(
                mix.inverse(wide), weights, self._activation, tolerance, max_iterations
            )
            wide, count = found.noise, max(count, found.num_iterations)
            worst = max(worst, found.residual)
        with torch.no_grad():
            check_reached(self(wide) - upcast(x), upcast(x))
        return Inversion(wide.to(result_dtype(x)), count, worst)

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return super().config() | {"lipschitz": self._constant}
