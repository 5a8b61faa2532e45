"""What the objectives with a linearised entropy ask of an implicit site."""

from __future__ import annotations

import math

from torch import Tensor

from pyro_implicit.exceptions import GuideError
from pyro_implicit.generators.noise_alone import check_function_of_noise
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian

__all__ = ["entropy_constant", "rest_of_entropy", "scaled_jacobian"]


def scaled_jacobian(site: ImplicitSite) -> ScaledJacobian:
    """
    The Jacobian of a site's generator at its noise, in units of the output noise.

    It is differentiable with respect to generator and scale if gradients are enabled.

    :raises LayerError: if the generator is random or its draws depend on each other.
    """
    fn = site.distribution
    check_function_of_noise(fn.generator, site.value)
    return ScaledJacobian(fn.linearisation(), fn.scale)


def rest_of_entropy(site: ImplicitSite) -> Tensor | float:
    """
    The linearised entropy less the log-determinant in the generator's own coordinates.

    :returns: a number or shape ``()``, or one value per draw if the noise is not standard normal.
    :raises GuideError: see :func:`entropy_constant`.
    """
    preconditioner = site.distribution.preconditioner
    constant = entropy_constant(site)
    return constant if preconditioner is None else constant + preconditioner.log_abs_det


def entropy_constant(site: ImplicitSite) -> Tensor | float:
    r"""
    What the linearised entropy has beside the log-determinant.

    It is :math:`\tfrac m2 (1 + \log 2\pi)` for standard normal noise. For any other noise with ``d
    <= m`` it is the entropy of the noise plus :math:`\tfrac{m-d}2 (1 + \log 2\pi)`, which is exact
    as ``sigma`` goes to 0.

    :raises GuideError: for any other noise with ``d > m``.
    """
    fn = site.distribution
    rest = fn.event_shape[-1] - fn.generator.noise_dim
    entropy = fn.base_entropy()
    if isinstance(entropy, Tensor) and rest < 0:
        raise GuideError(
            f"implicit site {site.name!r} has {fn.generator.noise_dim} noise dimensions for "
            f"{fn.event_shape[-1]} outputs and noise that is not standard normal: its linearised "
            "entropy has no closed form. Use at most as many noise dimensions as outputs."
        )
    return entropy + 0.5 * rest * (1 + math.log(2 * math.pi))
