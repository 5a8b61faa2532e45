"""From the first run of a model to the sites of a guide: how each is initialised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoGuide, init_to_mean
from pyro.ops.tensor_utils import periodic_repeat
from torch import Tensor
from torch.distributions import transform_to

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.initialization.initial import init_to_finite_mean
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.enumeration.discrete_latents import is_to_be_enumerated
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.handlers.supports.served_supports import check_support, plain_support

__all__ = ["check_all_rows", "forgiving", "is_summed_out", "unconstrained_start"]


def check_all_rows(sites: Sequence[LatentSite], init_from: str | AutoGuide) -> None:
    """
    Refuses to initialise by curvature where only some rows are shown.

    :raises SiteError: if a search for a start would see only some of a site's rows.
    """
    for site in sites:
        for frame in site.frames:
            if isinstance(init_from, str) and frame.size != frame.full_size:
                raise SiteError(
                    f"init_from={init_from!r} needs all data at once, but site {site.name!r} is in "
                    f"plate {frame.name!r}, which shows {frame.size} of its {frame.full_size} "
                    "rows. Call guide.setup(...) with the whole data first, or leave init_from out."
                )


def unconstrained_start(site: LatentSite, value: Tensor) -> Tensor:
    """The flat unconstrained initial value of a site; rows that the first batch lacks repeat."""
    for frame in site.frames:
        if frame.size != frame.full_size:
            dim = frame.dim - site.event_dim
            value = periodic_repeat(value, frame.full_size, dim).contiguous()
    return site.invert(value.detach())


def forgiving(init_loc_fn: Callable[[dict[str, Any]], Tensor]) -> Callable[..., Tensor]:
    """
    Makes an ``init_loc_fn`` serve all continuous sites, and refuse discrete ones by name.

    Those that objectives sum out are drawn. It then serves sites that cannot be drawn from and
    those whose mean is infinite, where Pyro's ``init_to_mean`` looks for NaN only.

    :raises ShapeError: when it is called, if a start has another shape than its site.
    :raises SiteError: when it is called, if a start is not finite, or outside of the support.
    """
    if init_loc_fn is init_to_mean:
        init_loc_fn = init_to_finite_mean

    def init(site: dict[str, Any]) -> Tensor:
        fn = site["fn"]
        if is_summed_out(site):
            drawn: Tensor = fn.sample()
            return drawn
        try:
            if fn.support.is_discrete:
                check_support(site["name"], fn)
            # even if unmappable: an enclosed reparam may remove the site
            start = _finite(site["name"], init_loc_fn(site))
            return _fitting(site, _inside_own(fn, start))
        except NotImplementedError:
            check_support(site["name"], fn)
            transform = transform_to(plain_support(own_support(fn)))
            shape = transform.inverse_shape(fn.batch_shape + fn.event_shape)
            value: Tensor = transform(torch.zeros(shape))
            return value

    return init


def _inside_own(fn: Any, value: Any) -> Any:
    """
    Moves a start that Pyro made from the support that a distribution states into the one it has.

    A transformed distribution may state a wider one (see ``own_support``),
    which ``init_to_feasible`` and ``init_to_uniform`` take the image of a number in. A start that
    was given by value is left for the check.
    """
    own = own_support(fn)
    if own is fn.support or getattr(value, "_pyro_custom_init", True):
        return value
    if bool(own.check(value).all()):
        return value
    moved: Tensor = transform_to(plain_support(own))(transform_to(fn.support).inv(value))
    return moved


def is_summed_out(site: Any) -> bool:
    """
    Whether a latent site is left to objectives, which sum over its values.

    :param site: a latent site.
    :returns: whether it is discrete and marked ``infer={"enumerate": "parallel"}``.
    :raises SiteError: if it is discrete and marked so that it cannot be summed out.
    """
    try:
        discrete = site["fn"].support.is_discrete
    except NotImplementedError:
        return False
    return discrete and is_to_be_enumerated(site)


def _fitting(site: dict[str, Any], value: Tensor) -> Tensor:
    """
    Checks that the first value of a site is one of its values.

    :raises ShapeError: if it has another shape.
    :raises SiteError: if it is outside of the support.
    """
    fn, value = site["fn"], torch.as_tensor(value)
    expected = fn.batch_shape + fn.event_shape
    if value.shape != expected:
        raise ShapeError(
            f"init_loc_fn returned a start of shape {tuple(value.shape)} for latent site "
            f"{site['name']!r}, which has shape {tuple(expected)}."
        )
    support = plain_support(own_support(fn))
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if not _is_inside(support, value):
        raise SiteError(
            f"init_loc_fn returned a start for latent site {site['name']!r} outside of its "
            f"support, {support}; the values are those of the site, not unconstrained ones."
        )
    return value


def _is_inside(support: constraints.Constraint, value: Tensor) -> bool:
    """Whether all entries are in a support of numbers; sums of simplices round, and the like."""
    try:
        is_looked_at = support.event_dim == 0 and not support.is_discrete
        return not is_looked_at or bool(support.check(value).all())
    except (NotImplementedError, AttributeError):  # of one's own
        return True


def _finite(name: str, value: Tensor) -> Tensor:
    """
    Checks that the first value of a site is finite.

    :raises SiteError: if it is not, or no number at all.
    """
    try:
        numbers = torch.as_tensor(value)
    except (TypeError, RuntimeError, ValueError):
        raise SiteError(
            f"init_loc_fn returned {shown(value)}, a {type(value).__name__}, for latent site "
            f"{name!r}; expected a tensor of the site's shape, in its support."
        ) from None
    if not bool(numbers.isfinite().all()):
        raise SiteError(
            f"init_loc_fn returned a start for latent site {name!r} that is not finite. Use "
            "init_to_median (the default of most guides) or init_to_sample from "
            "pyro.infer.autoguide, or a function that returns a finite value in the support."
        )
    return value
