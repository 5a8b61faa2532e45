r"""
Correlated matrix-multiplication generators: a trunk that groups of latents share, and branches.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Appendix D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_counts, check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.layout import (
    MAX_LATENTS_WITH_FULL_NOISE,
    Shape,
    check_budget,
    check_pair,
    check_pairs,
    count_parameters,
    noise_side,
    plan_branches,
    split_columns,
    trunk_columns,
)
from pyro_implicit.generators.matmul_chain import MatMulChain, example_noise
from pyro_implicit.generators.matmul_linearisation import MatMulLinearisation
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.matmul import SlopedLayer

__all__ = ["CMMNN"]


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
        self.trunk = MatMulChain([first, *trunk], activation, linear_end=False)
        self.widths = split_columns(trunk[-1][1], sizes)
        rest = budget * total - count_parameters(self.trunk.shapes)
        full = total <= min(MAX_LATENTS_WITH_FULL_NOISE, self.noise_dim)
        self.branches = nn.ModuleList(
            MatMulChain(shapes, activation, linear_end=True, gain=self.init_scale)
            for shapes in plan_branches(trunk[-1][0], self.widths, sizes, rest, full)
        )
        hidden = self.trunk.normalise(example_noise(first))
        for branch, part in zip(self.branches, hidden.split(self.widths, -1), strict=True):
            branch.normalise(part)  # type: ignore[operator]

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        return self._run(z)[0]

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        value, trunk, branches = self._run(z)
        return MatMulLinearisation(value, self.noise_shape, trunk, branches)

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
