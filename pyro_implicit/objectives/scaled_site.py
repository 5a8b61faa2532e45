"""What the objectives that use products with a Jacobian ask of an implicit site."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.generators.noise_alone import check_function_of_noise
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.linearised import entropy_constant
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian

__all__ = ["rest_of_entropy", "scaled_jacobian"]


def scaled_jacobian(site: ImplicitSite) -> ScaledJacobian:
    """
    The Jacobian of a site's generator at its noise, in units of the output noise.

    It is differentiable with respect to generator and scale if gradients are enabled.

    :raises LayerError: if the generator is random or its draws depend on each other.
    """
    fn, noise = site.distribution, site.distribution.noise
    check_function_of_noise(fn.generator, site.value)
    with torch.autocast(site.value.device.type, enabled=False):
        return ScaledJacobian(fn.generator.linearise(noise), fn.scale)  # type: ignore[arg-type]


def rest_of_entropy(site: ImplicitSite) -> Tensor | float:
    """
    The linearised entropy less the log-determinant in the generator's own coordinates.

    :returns: a number or shape ``()``, or one value per draw if the noise is not standard normal.
    :raises GuideError: see :func:`~pyro_implicit.objectives.linearised.entropy_constant`.
    """
    preconditioner = site.distribution.preconditioner
    constant = entropy_constant(site)
    return constant if preconditioner is None else constant + preconditioner.log_abs_det
