r"""
Matrix-multiplication generators: millions of latents from products of small matrices.

References

- `Kernel Implicit Variational Inference`, J. Shi, S. Sun, J. Zhu, ICLR 2018. Algorithm 1.
- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_counts, check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.layout import (
    FULL_NOISE,
    Shape,
    check_budget,
    check_pair,
    check_pairs,
    count_parameters,
    noise_side,
    plan_branches,
    plan_mmnn,
    split_columns,
    trunk_columns,
)
from pyro_implicit.ops.activations import Activation, get_activation
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.matmul import (
    MatMulWeights,
    SlopedLayer,
    chain_cotangent,
    chain_forward,
    chain_pairing,
    chain_tangent,
    kept_cotangent,
    kept_tangent,
)

__all__ = ["CMMNN", "MMNN"]


class _MatMulChain(nn.Module):
    r"""
    Consecutive matrix-multiplication layers.

    The last one is linear if ``linear_end``, and its output without the bias ``gain`` times as
    large as the others' pre-activations.

    The factors of a layer from ``a x b`` are kept in units of :math:`1/\sqrt a` and
    :math:`1/\sqrt b`: entries of size 1, of any shape and for any gain, so that one learning rate
    suits them all. (Kept as they are, with a gain of 0.05, Adam changed the draws of LeNet's
    generator by several times their spread in a step of 0.006, and the fit collapsed.)
    """

    def __init__(
        self, shapes: Sequence[Shape], activation: str, linear_end: bool, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.shapes = [(int(a), int(b)) for a, b in shapes]
        self.activation = activation
        self.linear_end = linear_end
        self.gain = float(gain)
        pairs = list(zip(self.shapes[:-1], self.shapes[1:], strict=True))
        self.left = nn.ParameterList(_even(torch.randn(s[0], r[0]), 1) for r, s in pairs)
        self.left_bias = nn.ParameterList(torch.zeros(s[0], r[1]) for r, s in pairs)
        self.right = nn.ParameterList(_even(torch.randn(r[1], s[1]), 0) for r, s in pairs)
        self.right_bias = nn.ParameterList(torch.zeros(s) for _, s in pairs)

    def weights(self) -> list[MatMulWeights]:
        """The layers' weights."""
        scales = [1 / math.sqrt(a * b) for a, b in self.shapes[:-1]]
        scales[-1] *= self.gain
        parts = zip(self.left, self.left_bias, self.right, self.right_bias, scales, strict=True)
        return [MatMulWeights(*part) for part in parts]

    def _activations(self) -> list[Activation | None]:
        count = len(self.shapes) - 1 - self.linear_end
        return [get_activation(self.activation)] * count + [None] * self.linear_end

    def run(self, x: Tensor) -> tuple[Tensor, list[SlopedLayer]]:
        """Output and sloped layers at ``x``, shape ``(..., a, b)``."""
        return chain_forward(self.weights(), self._activations(), x)

    @torch.no_grad()
    def normalise(self, x: Tensor) -> Tensor:
        """
        Initialises the layers: pre-activations have standard deviation 1 at the inputs ``x``.

        That of the last layer is ``gain``. Returns the output.

        Each layer's left bias takes the mean of its inputs off. Activations have a mean that is the
        same in every draw; passed on, it would be nearly all that deep generators give.
        """
        for index, (layer, activation) in enumerate(
            zip(self.weights(), self._activations(), strict=True)
        ):
            layer.left_bias.copy_(-x.mean() * layer.left.sum(1, keepdim=True))
            x = (layer.left @ x + layer.left_bias) @ (layer.scale * layer.right)
            target = self.gain if index == len(self.left) - 1 else 1.0
            spread = x.square().mean().sqrt() / target
            factor = torch.where(spread > 1e-6, 1 / spread, 1.0)  # all units may be dead
            layer.right.mul_(factor)
            x = x * factor if activation is None else activation[0](x * factor)
        return x


def _even(matrix: Tensor, dim: int) -> Tensor:
    """
    Gives the rows (``dim=1``) or columns (``dim=0``) of a matrix the mean square 1.

    No output then starts with another spread than the next.
    """
    return matrix / matrix.square().mean(dim, keepdim=True).sqrt()


def _example_noise(shape: Shape) -> Tensor:
    """Draws to normalise with: few where each has many entries."""
    return torch.randn(max(2, 4096 // (shape[0] * shape[1])), *shape)


class _MatMulLinearisation(Linearisation):
    """Shared trunk (possibly none) and branches, each cut to the latents that it serves."""

    def __init__(
        self,
        value: Tensor,
        noise_shape: torch.Size,
        trunk: list[SlopedLayer],
        branches: list[tuple[slice, list[SlopedLayer], torch.Size, int]],
    ) -> None:
        super().__init__(value, noise_shape.numel())
        self._noise_shape, self._trunk, self._branches = noise_shape, trunk, branches

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.jvp`."""
        dx = chain_tangent(self._trunk, v.reshape(*v.shape[:-1], *self._noise_shape))
        parts = []
        for columns, layers, _, count in self._branches:
            out = chain_tangent(layers, dx[..., columns])
            parts.append(out.flatten(-2)[..., :count])
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.vjp`."""
        parts = zip(self._branches, self._as_matrices(u), strict=True)
        pulled = [chain_cotangent(layers, part) for (_, layers, *_), part in parts]
        dx = pulled[0] if len(pulled) == 1 else torch.cat(pulled, -1)
        return chain_cotangent(self._trunk, dx).flatten(-2)

    def kept_jvp(self, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.kept_jvp`."""
        start = v.reshape(*v.shape[:-1], *self._noise_shape)
        dx, kept = kept_tangent(self._trunk, start)
        kept = [start, *kept, dx] if self._trunk else [start]
        parts = []
        for columns, layers, _, count in self._branches:
            out, of_branch = kept_tangent(layers, dx[..., columns])
            parts.append(out.flatten(-2)[..., :count])
            kept += of_branch
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1), kept

    def kept_vjp(self, u: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.kept_vjp`."""
        parts = zip(self._branches, self._as_matrices(u), strict=True)
        pulled = [kept_cotangent(layers, part) for (_, layers, *_), part in parts]
        dy = pulled[0][0] if len(pulled) == 1 else torch.cat([one for one, _ in pulled], -1)
        dx, kept = kept_cotangent(self._trunk, dy)
        kept = [dy, *kept] if self._trunk else []
        return dx.flatten(-2), [*kept, *(one for _, of_branch in pulled for one in of_branch)]

    def pairing(self, u: Tensor, tangents: list[Tensor], cotangents: list[Tensor]) -> Tensor:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.pairing`."""
        kept, back, total = (
            iter(tangents),
            iter(cotangents),
            torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device),
        )
        dx = next(kept)
        if self._trunk:
            dy, num = next(back), len(self._trunk)
            met = list(islice(kept, 2 * num)), list(islice(back, 2 * num - 1))
            total = total + chain_pairing(self._trunk, dx, dy, *met)
            dx = next(kept)
        for (columns, layers, *_), dy in zip(self._branches, self._as_matrices(u), strict=True):
            num = 2 * len(layers) - 1  # the last one is linear
            met = list(islice(kept, num)), list(islice(back, num))
            total = total + chain_pairing(layers, dx[..., columns], dy, *met)
        return total

    def _as_matrices(self, u: Tensor) -> list[Tensor]:
        """Cotangents ``(P, ..., m)`` as one ``(P, ..., a, b)`` for each branch."""
        matrices = []
        cotangents = u.split([count for *_, count in self._branches], -1)
        for (_, _, shape, count), part in zip(self._branches, cotangents, strict=True):
            spare = shape.numel() - count
            full = torch.nn.functional.pad(part, (0, spare)) if spare else part
            matrices.append(full.reshape(*full.shape[:-1], *shape))
        return matrices


class MMNN(Generator):
    r"""
    A matrix-multiplication network: a noise matrix is scaled up, and its entries are the latents.

    Layers are :math:`\phi((U X + B_1) V + B_2)`, the last one linear (Shi, Sun and Zhu 2018,
    Algorithm 1).

    A layer from ``a x b`` to ``a' x b'`` has ``a a' + a' b + b b' + a' b'`` parameters where a
    dense one has ``a b a' b'``. The output's spare entries, if any, are cut off; no latent is
    generated twice.

    Sources:

    - `Kernel Implicit Variational Inference`, Shi, Sun and Zhu, ICLR 2018.
    - `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS 2023.

    :param int output_dim: latents ``m``.
    :param noise_shape: rows and columns of the noise; by default about one noise entry for ten
        latents, and for up to 256 latents one for each, whatever the budget.
    :param hidden_shapes: shapes of the hidden layers; by default one square layer that the budget
        allows. ``MMNN(44426, noise_shape=(65, 65), hidden_shapes=[(250, 250)],
        output_shape=(350, 127))`` is the network of Uppal et al. 2023 for LeNet.
    :param output_shape: by default nearly square.
    :param float budget: variational parameters per latent, greater than 1.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: root mean square of the outputs at initialisation.
    :raises ArgumentError: for a budget of at most 1, an empty shape or an unknown activation.
    :raises ShapeError: if ``output_shape`` is too small.
    """

    def __init__(
        self,
        output_dim: int,
        *,
        noise_shape: Shape | None = None,
        hidden_shapes: Sequence[Shape] | None = None,
        output_shape: Shape | None = None,
        budget: float = 2.0,
        activation: str = "elu",
        init_scale: float = 1.0,
    ) -> None:
        init_scale = check_number("init_scale", init_scale, above=0)
        shapes = plan_mmnn(output_dim, budget, noise_shape, hidden_shapes, output_shape)
        super().__init__(shapes[0], output_dim)
        self.activation = activation
        self.init_scale = init_scale
        self.chain = _MatMulChain(shapes, activation, linear_end=True, gain=self.init_scale)
        self.chain.normalise(_example_noise(shapes[0]))

    @property
    def shapes(self) -> list[Shape]:
        """Shapes from the noise to the output."""
        return list(self.chain.shapes)

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        out, _ = self.chain.run(z)
        return out.flatten(-2)[..., : self.output_dim]

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        out, layers = self.chain.run(z)
        value = out.flatten(-2)[..., : self.output_dim]
        branch = (slice(None), layers, out.shape[-2:], self.output_dim)
        return _MatMulLinearisation(value, self.noise_shape, [], [branch])

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        return self.linearise(z).jacobian()

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        shapes = [list(shape) for shape in self.shapes]
        return {
            "type": "MMNN",
            "output_dim": self.output_dim,
            "noise_shape": shapes[0],
            "hidden_shapes": shapes[1:-1],
            "output_shape": shapes[-1],
            "activation": self.activation,
            "init_scale": self.init_scale,
        }


class CMMNN(Generator):
    r"""
    A *correlated* matrix-multiplication network: a shared trunk, then a branch for each group.

    The trunk scales the noise up (Uppal et al. 2023, appendix D); its output is split by columns,
    and each part feeds a small :class:`MMNN` of its own that makes one group of latents (one layer
    of a network, say). The trunk carries the dependence across groups, the branches that within
    them, and far fewer parameters are dense.

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.

    :param group_sizes: number of latents of each group; the output is their concatenation.
    :param noise_shape: rows and columns of the noise; by default about one noise entry for ten
        latents (fewer with a budget below 2), at most 130 x 130, and for up to 256 latents one for
        each, whatever the budget.
    :param trunk_shapes: shapes of the trunk's layers; the last one is split. By default one layer
        with as many rows as the noise and two columns for each of its columns or more.
    :param float budget: variational parameters per latent, greater than 1. Small groups exceed it:
        none is squeezed through fewer than 8 rows and columns.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: root mean square of the outputs at initialisation.
    :raises ArgumentError: for an empty group, a trunk with fewer columns than groups, a budget of
        at most 1 or an unknown activation.
    """

    def __init__(
        self,
        group_sizes: Sequence[int],
        *,
        noise_shape: Shape | None = None,
        trunk_shapes: Sequence[Shape] | None = None,
        budget: float = 2.0,
        activation: str = "elu",
        init_scale: float = 1.0,
    ) -> None:
        sizes = list(check_counts("group_sizes", group_sizes, empty=False))
        budget = check_budget(budget)
        init_scale = check_number("init_scale", init_scale, above=0)
        total = sum(sizes)
        # or the trunk takes it all
        side = noise_side(total, max(int(total * min(budget - 1, 1)), 1))
        first = (side, side) if noise_shape is None else check_pair("noise_shape", noise_shape)
        trunk = [(first[0], trunk_columns(first, sizes))]
        if trunk_shapes is not None:
            trunk = check_pairs("trunk_shapes", trunk_shapes) or trunk
        if trunk[-1][1] < len(sizes):
            raise ArgumentError(
                f"the trunk ends in {trunk[-1][1]} columns for {len(sizes)} groups; each needs one."
            )
        super().__init__(first, total)
        self.group_sizes = sizes
        self.budget = budget
        self.activation = activation
        self.init_scale = init_scale
        self.trunk = _MatMulChain([first, *trunk], activation, linear_end=False)
        self.widths = split_columns(trunk[-1][1], sizes)
        rest = budget * total - count_parameters(self.trunk.shapes)
        full = total <= min(FULL_NOISE, self.noise_dim)
        self.branches = nn.ModuleList(
            _MatMulChain(shapes, activation, linear_end=True, gain=self.init_scale)
            for shapes in plan_branches(trunk[-1][0], self.widths, sizes, rest, full)
        )
        hidden = self.trunk.normalise(_example_noise(first))
        for branch, part in zip(self.branches, hidden.split(self.widths, -1), strict=True):
            branch.normalise(part)  # type: ignore[operator]

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        return self._run(z)[0]

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        value, trunk, branches = self._run(z)
        return _MatMulLinearisation(value, self.noise_shape, trunk, branches)

    def _run(self, z: Tensor) -> tuple[Tensor, list[SlopedLayer], list[Any]]:
        hidden, trunk = self.trunk.run(z)
        parts, branches, start = [], [], 0
        for branch, width, size in zip(self.branches, self.widths, self.group_sizes, strict=True):
            columns = slice(start, start + width)
            out, layers = branch.run(hidden[..., columns])  # type: ignore[operator]
            parts.append(out.flatten(-2)[..., :size])
            branches.append((columns, layers, out.shape[-2:], size))
            start += width
        return torch.cat(parts, -1), trunk, branches

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        return self.linearise(z).jacobian()

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {
            "type": "CMMNN",
            "group_sizes": list(self.group_sizes),
            "noise_shape": list(self.noise_shape),
            "trunk_shapes": [list(shape) for shape in self.trunk.shapes[1:]],
            "budget": self.budget,
            "activation": self.activation,
            "init_scale": self.init_scale,
        }
