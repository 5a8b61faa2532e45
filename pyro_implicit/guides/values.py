"""Constrained values of a guide's sites, given from outside: checked, and unconstrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["check_values", "unconstrain"]


def check_values(values: Mapping[str, Tensor], sites: Sequence[LatentSite]) -> int:
    """
    Return the number of values; every site must have as many, of its shape and in its support.

    :raises ShapeError: for values of another shape.
    :raises SiteError: for values of other sites, or outside of a support.
    """
    names = [site.name for site in sites]
    if set(values) != set(names):
        raise SiteError(f"values are given for sites {sorted(values)}; the guide has {names}")
    for site in sites:
        value = values[site.name]
        first = values[names[0]]
        if (
            value.dim() != len(site.shape) + 1
            or value.shape != (len(first), *site.shape)
            or not len(first)
        ):
            raise ShapeError(
                f"values of site {site.name!r} have shape {tuple(value.shape)}; expected "
                f"(n, {', '.join(map(str, site.shape))}), with the same n >= 1 for every site"
            )
        if not bool(site.support.check(value).all()):
            raise SiteError(
                f"some values of site {site.name!r} are outside of its support {site.support}"
            )
    return len(values[names[0]])


def unconstrain(
    values: Mapping[str, Tensor], sites: Sequence[LatentSite], like: Tensor
) -> tuple[Tensor, Tensor]:
    """
    Map constrained values to the unconstrained space.

    :param dict values: constrained values, shape ``(n, *site_shape)`` by site.
    :param sites: the sites of one part, in order.
    :param torch.Tensor like: gives dtype and device.
    :returns: flat unconstrained values, shape ``(n, numel)``, and ``log|du/dvalue|``, shape
        ``(n,)``.
    """
    flat, total = [], like.new_zeros(())
    for site in sites:
        value = values[site.name].to(like)
        transform = site.transform()
        u = transform.inv(value)
        log_jacobian = transform.inv.log_abs_det_jacobian(value, u)
        total = total + log_jacobian.reshape(len(value), -1).sum(-1)
        flat.append(u.reshape(len(value), site.numel))
    return torch.cat(flat, -1), total
