"""The affine map between a generator's own scale and that of the latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_instance
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.ops.logdet import upcast

__all__ = ["Preconditioner"]


class Preconditioner(nn.Module):
    r"""
    :math:`u = c + L w` with fixed ``L``, absent, diagonal or a full matrix.

    A generator that works in the whitened coordinates ``w`` need not learn the location, the scales
    and the correlations of a badly scaled posterior; it learns what is left.

    :param torch.Tensor loc: ``c``, shape ``(m,)``.
    :param torch.Tensor factor: ``L``, shape ``(m,)`` (a diagonal) or ``(m, m)`` (non-singular), or
        None for the identity.
    :param torch.Tensor unit: if given, ``c`` is learned, in these units: ``loc + unit * shift``
        with a parameter ``shift`` that begins at zero; shape ``(m,)``. An optimiser then moves it
        by about ``unit`` times its rate in a step, whatever the size of ``L``.
    :raises ArgumentError: for what is no tensor.
    :raises ShapeError: for other shapes.
    """

    loc: Tensor
    factor: Tensor | None
    log_abs_det: Tensor
    unit: Tensor | None

    def __init__(
        self, loc: Tensor, factor: Tensor | None = None, unit: Tensor | None = None
    ) -> None:
        super().__init__()
        for name, one in (("loc", loc), ("factor", factor), ("unit", unit)):
            if one is not None or name == "loc":
                check_instance(name, one, Tensor, "a tensor")
        m = loc.shape[-1] if loc.dim() == 1 else -1
        if m < 0 or (factor is not None and factor.shape not in ((m,), (m, m))):
            found = None if factor is None else tuple(factor.shape)
            raise ShapeError(
                f"preconditioner with loc {tuple(loc.shape)} and factor {found}; expected loc (m,) "
                "and factor None, (m,) or (m, m)."
            )
        if unit is not None and unit.shape != (m,):
            raise ShapeError(
                f"preconditioner of {m} latents with unit {tuple(unit.shape)}; expected ({m},)."
            )
        self.register_buffer("loc", loc.detach().clone())
        self.register_buffer("factor", None if factor is None else _copied(factor))
        self.register_buffer("log_abs_det", _log_abs_det(factor).to(loc))
        self.register_buffer("unit", None if unit is None else unit.detach().clone())
        self.shift = None if unit is None else nn.Parameter(torch.zeros_like(self.loc))

    @property
    def centre(self) -> Tensor:
        """Where the origin of the generator's coordinates is: ``c``, shape ``(m,)``."""
        if self.shift is None or self.unit is None:
            return self.loc
        return self.loc + self.unit * self.shift

    def forward(self, w: Tensor) -> Tensor:
        """
        Maps what the generator makes to latents.

        :param torch.Tensor w: shape ``(..., m)``.
        :returns: ``u``, shape ``(..., m)``.
        """
        if self.factor is None:
            return self.centre + w
        if self.factor.dim() == 1:
            return self.centre + self.factor * w
        return self.centre + w @ self.factor.mT

    def inverse(self, u: Tensor) -> Tensor:
        """
        Maps latents back to what the generator makes.

        :param torch.Tensor u: shape ``(..., m)``.
        :returns: ``w``, shape ``(..., m)``.
        """
        centred = u - self.centre
        if self.factor is None:
            return centred
        if self.factor.dim() == 1:
            return centred / self.factor
        solved: Tensor = torch.linalg.solve(self.factor, centred[..., None])[..., 0]
        return solved

    @property
    def kind(self) -> str:
        """``"none"``, ``"diagonal"`` or ``"full"``."""
        return "none" if self.factor is None else ("diagonal", "full")[self.factor.dim() - 1]


def _log_abs_det(factor: Tensor | None) -> Tensor:
    if factor is None:
        return torch.zeros(())
    if factor.dim() == 1:  # of millions of latents in little memory
        wide = factor if factor.element_size() >= 4 else upcast(factor)
        return wide.abs().log_().sum(dtype=torch.float64)
    log_abs_det: Tensor = torch.linalg.slogdet(upcast(factor)).logabsdet
    return log_abs_det


def _copied(factor: Tensor) -> Tensor:
    """A copy row by row, as a loaded one is: products of another layout have other last bits."""
    return factor.detach().clone(memory_format=torch.contiguous_format)
