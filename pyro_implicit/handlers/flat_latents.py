"""A flat vector of unconstrained numbers, divided between the sites that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

__all__ = ["by_site"]


class _Counted(Protocol):
    """What has a number of entries: a :class:`~pyro_implicit.guides.latent_site.LatentSite`."""

    @property
    def numel(self) -> int: ...


_Site = TypeVar("_Site", bound=_Counted)


def by_site(flat: Tensor, sites: Sequence[_Site]) -> Iterator[tuple[_Site, Tensor]]:
    """
    Divides flat numbers between sites.

    :param torch.Tensor flat: shape ``(*batch, total)``, the entries of the sites in their order.
    :param sites: with ``numel`` entries each.
    :returns: each site with its entries, shape ``(*batch, numel)``.
    """
    return zip(sites, flat.split([site.numel for site in sites], -1), strict=True)
