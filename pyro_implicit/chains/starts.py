"""Where chains begin: modes, guides, or draws."""

# Shape legend: C chains, m unconstrained latents, n draws given.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_guide, check_tensor, check_tensors, shown
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, SiteError
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.values import check_values
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.inference.posterior_draws import draws_of

__all__ = ["check_finite", "check_start", "given_starts", "is_bad"]

_EXPECTED_STARTS = (
    "a number of modes to search for, a fitted guide, a list of guides, draws by site (n, *shape), "
    "or unconstrained draws (n, m)"
)


def check_start(start: Any, num_chains: int) -> Any:
    """
    Checks what chains are to begin from.

    :param start: of :func:`~pyro_implicit.refine`.
    :param int num_chains: how many chains.
    :returns: ``start``; a number as a plain integer, guides as a list.
    :raises ArgumentError: for anything else.
    """
    if isinstance(start, Integral) and not isinstance(start, bool):
        why = " (the number of modes, each the start of one chain or more)"
        return check_count("start", start, 1, num_chains, why)
    if isinstance(start, Tensor):
        return check_tensor("start", start, "unconstrained draws (n, m)", dim=2)
    if isinstance(start, Mapping):
        return check_tensors("start", start, "draws by site (n, *shape)", dim=1)
    if isinstance(start, Sequence) and not isinstance(start, (str, bytes)):
        if not 1 <= len(start) <= num_chains:
            raise ArgumentError(
                f"start is a list of {len(start)} guides for {num_chains} chains; expected one "
                "guide at least, and a chain for each."
            )
        return [check_guide(guide, f"start[{i}]") for i, guide in enumerate(start)]
    if callable(start):
        return [check_guide(start, "start")]
    raise ArgumentError(f"start={shown(start)}; expected {_EXPECTED_STARTS}.")


def given_starts(
    start: Any,
    sites: list[LatentSite],
    num_chains: int,
    like: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """
    The starting points that guides or draws give.

    Chains take turns over guides, and over draws if these are fewer; of more draws, evenly spaced
    ones are taken.

    :param start: checked, and not a number.
    :param sites: the latents of the model.
    :param int num_chains: how many chains.
    :param torch.Tensor like: gives dtype and device.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    :returns: shape ``(C, m)``.
    :raises ShapeError: for draws of another shape than the latents'.
    :raises SiteError: for draws of other sites, or outside of a support.
    """
    if isinstance(start, Tensor):
        size = sum(site.numel for site in sites)
        if start.dim() != 2 or start.shape[-1] != size or not len(start):
            raise ShapeError(
                f"start is a tensor of shape {tuple(start.shape)}; expected unconstrained draws "
                f"(n, {size}), the sites in the order {[site.name for site in sites]}."
            )
        return _spread(start.detach().to(like), num_chains)
    if isinstance(start, Mapping):
        return _spread(_unconstrained(start, sites, like), num_chains)
    counts = [len(range(i, num_chains, len(start))) for i in range(len(start))]
    parts = [
        _unconstrained(draws_of(guide, count, *args, **kwargs), sites, like)
        for guide, count in zip(start, counts, strict=True)
    ]
    return torch.stack([parts[i % len(parts)][i // len(parts)] for i in range(num_chains)])


def check_finite(u: Tensor, found: tuple[Tensor, Tensor], log_joint: LogJoint) -> None:
    """
    Refuses to begin where the density or its gradient is not finite.

    :param torch.Tensor u: shape ``(C, m)``.
    :param found: log-densities there, shape ``(C,)``, and their gradients, ``(C, m)``.
    :param LogJoint log_joint: to tell which site is to blame.
    :raises NonFiniteError: if one is not finite.
    """
    values, gradients = found
    bad = (~values.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise NonFiniteError(
            f"the model's log-density is not finite at the start of {len(bad)} of {len(u)} chains"
            f"{log_joint.explain(u[bad[0]])}. Look for NaN in the data, and for latents that lead "
            "out of a site's domain; or give other starts, such as a fitted guide."
        )
    bad = is_bad(found).nonzero().flatten().tolist()
    if bad:
        parts = (~gradients[bad[0]].isfinite()).split([site.numel for site in log_joint.sites])
        names = [s.name for s, part in zip(log_joint.sites, parts, strict=True) if part.any()]
        raise NonFiniteError(
            f"the model's log-density is finite at the start of {len(bad)} of {len(u)} chains, and "
            f"its gradient with respect to {names} is not. Common causes: NaN in data under a mask "
            "(fill them with any number of the support), a square root, norm or logarithm at 0, "
            "also on the side that torch.where leaves out."
        )


def is_bad(found: tuple[Tensor, Tensor]) -> Tensor:
    """
    Whether chains cannot begin at points.

    :param found: log-densities, shape ``(C,)``, and their gradients, ``(C, m)``.
    :returns: shape ``(C,)``.
    """
    values, gradients = found
    return ~(values.isfinite() & gradients.isfinite().all(-1))


def _spread(u: Tensor, num_chains: int) -> Tensor:
    count = len(u)
    if count >= num_chains:
        return u[[i * count // num_chains for i in range(num_chains)]]
    return u[[i % count for i in range(num_chains)]]


def _unconstrained(values: Mapping[str, Tensor], sites: list[LatentSite], like: Tensor) -> Tensor:
    names = [site.name for site in sites]
    if set(values) != set(names):
        raise SiteError(
            f"start has values of sites {sorted(values)}, and with these arguments the model has "
            f"the latents {names}; expected values of each of them and of no other. A latent that "
            "is missing may be data that were left out: refine(model, start, x, y)."
        )
    count = check_values(values, sites)
    rows = [
        torch.cat([site.invert(values[site.name][row].detach()) for site in sites])
        for row in range(count)
    ]
    return torch.stack(rows).to(like)
