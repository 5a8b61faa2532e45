"""What a joint prior is made of, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_tensor, shown
from pyro_implicit.bayesian.joint_site import JointSite
from pyro_implicit.exceptions import ArgumentError, ShapeError

__all__ = ["check_form", "checked_sites", "root_of"]


def root_of(covariance: Tensor) -> Tensor:
    """
    The Cholesky factor of a covariance.

    :param torch.Tensor covariance: shape ``(m, m)``.
    :returns: lower triangular, of the same shape.
    :raises ArgumentError: if it has none, or is not symmetric.
    """
    wide = covariance.double()
    diagonal = wide.diagonal().abs()
    rounding = torch.finfo(covariance.dtype).eps ** 0.5  # what inverting a matrix may leave
    apart = (wide - wide.mT).abs()
    if not bool((apart <= rounding * diagonal.outer(diagonal).sqrt()).all()):
        i, j = divmod(int(apart.argmax()), len(wide))
        raise ArgumentError(
            f"covariance is not symmetric: entry [{i}, {j}] is {float(wide[i, j]):.6g} and "
            f"[{j}, {i}] is {float(wide[j, i]):.6g}. From one triangle write "
            "c.tril() + c.tril(-1).mT, or pass root @ root.mT for a Cholesky factor root."
        )
    root, failed = torch.linalg.cholesky_ex(0.5 * (wide + wide.mT))
    if bool(failed):
        raise ArgumentError(
            "covariance is not positive definite: draws on a surface, or fewer draws than entries. "
            "Take form='low-rank' or 'diagonal'."
        )
    root_of_covariance: Tensor = root.to(covariance)
    return root_of_covariance


def checked_sites(sites: Any) -> tuple[JointSite, ...]:
    """
    The sites of a joint prior.

    :param sites: a sequence of them.
    :returns: the same as a tuple.
    :raises ArgumentError: for anything else.
    """
    several = isinstance(sites, Sequence) and not isinstance(sites, (str, bytes))
    if not several or not all(isinstance(site, JointSite) for site in sites):
        raise ArgumentError(
            f"sites={shown(sites)}; expected a sequence of JointSite, as prior_from(guide) makes."
        )
    return tuple(sites)


def check_form(
    size: int,
    loc: Any,
    scale: Any,
    factor: Any,
    covariance: Any,
) -> None:
    """
    Refuses numbers that make no Gaussian of ``m`` entries.

    :param int size: ``m``.
    :param loc: the mean, shape ``(m,)``.
    :param scale: deviations, shape ``(m,)``, or None.
    :param factor: shape ``(m, r)``, or None.
    :param covariance: shape ``(m, m)``, or None.
    :raises ArgumentError: unless there is either ``scale`` or ``covariance``; for deviations that
        are not positive, and for other types.
    :raises ShapeError: for other shapes.
    """
    if (scale is None) == (covariance is None) or (factor is not None and scale is None):
        raise ArgumentError(
            "a joint prior is either scale, with a factor or without, or covariance; found "
            f"scale {'given' if scale is not None else 'absent'}, factor "
            f"{'given' if factor is not None else 'absent'}, covariance "
            f"{'given' if covariance is not None else 'absent'}."
        )
    rank = factor.shape[-1] if isinstance(factor, Tensor) and factor.dim() == 2 else 0
    shapes = {"loc": (size,), "scale": (size,), "factor": (size, rank), "covariance": (size, size)}
    given = {"loc": loc, "scale": scale, "factor": factor, "covariance": covariance}
    for name, value in given.items():
        if value is not None or name == "loc":
            check_tensor(name, value, "a tensor of real numbers")
            _check_type(name, value, loc)
        if value is not None and tuple(value.shape) != shapes[name]:
            raise ShapeError(
                f"{name} has shape {tuple(value.shape)}; the sites have {size} unconstrained "
                f"entries: expected {shapes[name]}."
            )
    if scale is not None and not bool((scale > 0).all()):
        raise ArgumentError("scale has entries that are not positive; expected deviations > 0.")


def _check_type(name: str, value: Tensor, loc: Tensor) -> None:
    if not value.is_floating_point():
        raise ArgumentError(
            f"{name} is of type {value.dtype}; expected floating-point numbers: {name}.float()."
        )
    if value.dtype != loc.dtype:
        raise ArgumentError(
            f"{name} is of type {value.dtype} and loc of {loc.dtype}; expected one type for all: "
            f"{name}.to(loc)."
        )
