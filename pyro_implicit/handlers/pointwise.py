"""Run a Pyro program once and look at its sites as they pass; no trace is ever built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_factor, site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.handlers.held.held_sites import is_held
from pyro_implicit.handlers.masks.missing_data import missing_data
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.observations.large_numbers import precise_log_prob
from pyro_implicit.handlers.observations.observed_shape import check_observation
from pyro_implicit.handlers.rows.latent_rows import AtDraw, Cuts, RowsNotNamed
from pyro_implicit.handlers.rows.row_order import BY_PLACE, RowOrder
from pyro_implicit.handlers.wrapped import base_distribution
from pyro_implicit.ops.logdet import upcast

__all__ = [
    "SiteVisitor",
    "Unobserve",
    "batch_log_prob",
    "counted",
    "is_auxiliary",
    "is_delta",
    "is_factor_of_rows",
    "is_latent_of_model",
    "latent_sites",
    "pointwise_log_prob",
    "reduced_dims",
    "warning_of_factors",
    "warning_of_factors_alone",
    "run_model",
    "unmasked",
    "wide_log_prob",
]


class SiteVisitor(Messenger):
    """
    Shows every sample site to a function once its value is known, and keeps nothing.

    :class:`~pyro.poutine.Trace` objects hold each value and distribution of a run alive; over
    thousands of draws that is how memory runs out. Sites that ask not to be traced are passed over.

    :param visit: called with the message (the site) of each sample statement.
    """

    def __init__(self, visit: Callable[[Any], None]) -> None:
        super().__init__()
        self.visit = visit

    def _pyro_post_sample(self, msg: Any) -> None:
        if not (msg["infer"] or {}).get("_do_not_trace"):
            self.visit(msg)


class Unobserve(Messenger):
    """
    Draws the named observed sites instead of taking their values.

    Unlike :func:`pyro.poutine.uncondition` it leaves ``pyro.deterministic`` and ``pyro.factor``
    sites alone: inside a plate the former would come back with one dimension too many.

    :param names: the sites to draw.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = frozenset(names)

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.names and msg["is_observed"]:
            msg["is_observed"] = False
            msg["value"] = None
            msg["done"] = False


def run_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    visit: Callable[[Any], None],
    *,
    values: Mapping[str, Tensor] | None = None,
    unobserve: Collection[str] = (),
    order: RowOrder = BY_PLACE,
) -> Cuts:
    """
    Runs the model once, without gradients, with the given sites fixed.

    A fixed site is never drawn, so that ``ImproperUniform`` sites are no obstacle. Networks are
    evaluated in evaluation mode, see :func:`evaluation_mode`.

    :param callable model: a Pyro model.
    :param tuple args: its positional arguments.
    :param dict kwargs: its keyword arguments.
    :param callable visit: called with each sample site, see :class:`SiteVisitor`.
    :param dict values: site name to the value that it takes, of the shape of the site, at the rows
        that its plates show.
    :param unobserve: names of observed sites to draw.
    :param RowOrder order: which values are in the order of the rows' numbers, see
        :class:`~pyro_implicit.handlers.rows.latent_rows.AtDraw`.
    :returns: how values were cut to the rows of their plates.
    :raises ShapeError: if nobody has said which rows of a latent these are.
    """
    with torch.no_grad(), evaluation_mode(), SiteVisitor(visit):
        with AtDraw(values or {}, order) as fixed, Unobserve(unobserve):
            model(*args, **kwargs)
    return fixed.cuts


def latent_sites(
    guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """
    Runs a guide once, without gradients.

    :param callable guide: a guide.
    :param tuple args: its positional arguments.
    :param dict kwargs: its keyword arguments.
    :returns: the latent sites (messages, as in a trace) by name, those among them that
        ``poutine.condition`` holds for the guide.
    :raises ShapeError: if a latent has a value for each row, and nobody has said which rows these
        are.
    """
    sites: dict[str, Any] = {}

    def visit(site: Any) -> None:
        held = is_held(site)  # by poutine.condition around a guide, perhaps at a number
        if (held or not site["is_observed"]) and not is_auxiliary(site):
            value = torch.as_tensor(site["value"]) if held else site["value"]
            sites[site["name"]] = {**site, "value": value}

    with torch.no_grad(), evaluation_mode(), SiteVisitor(visit), RowsNotNamed():
        guide(*args, **kwargs)
    return sites


_MARKS_OF_NOISE = ("is_implicit_noise", "implicit_noise")  # of implicit sites, and of these


def is_auxiliary(site: Any) -> bool:
    """
    Whether a site is neither data nor a latent of the model.

    :param site: a sample site.
    :returns: whether it is neither data nor a latent of the model: ``pyro.factor``, the indices of
        a subsampled plate, the joint latent of an autoguide.
    """
    special = site_is_factor(site) or site_is_subsample(site)
    return special or bool(site["infer"].get("is_auxiliary"))


def is_latent_of_model(site: Any) -> bool:
    """
    Whether a sample site of a model is one that a guide is to draw.

    A latent that is marked as auxiliary is one; what an implicit distribution is made of is none.

    :param site: a sample site of a model.
    :returns: whether it is neither observed nor a point, a factor, rows of a plate or of that kind.
    """
    if site["is_observed"] or is_delta(site):
        return False
    if site_is_factor(site) or site_is_subsample(site):
        return False
    return not any(site["infer"].get(mark) for mark in _MARKS_OF_NOISE)


def is_factor_of_rows(site: Any) -> bool:
    """
    Whether a site is a density that may be one of data, of which nobody can tell the data.

    :param site: a sample site.
    :returns: whether it is ``pyro.factor`` within a plate, and no sum over discrete latents.
    """
    if not site_is_factor(site) or "marginal_of" in site["infer"]:
        return False
    return any(one.vectorized for one in site["cond_indep_stack"])


def warning_of_factors(names: Iterable[str]) -> str:
    """
    Says that densities of rows are left out of scores.

    :param names: of ``pyro.factor`` sites.
    :returns: a warning.
    """
    return (
        f"the pyro.factor sites {sorted(names)} are within plates and count for nothing here: a "
        "factor holds no data. If they are likelihoods, of censored rows say, write observed "
        "sites: pyro.sample(name, dist.Bernoulli(survival), obs=torch.ones(n))."
    )


def warning_of_factors_alone(names: Iterable[str]) -> str:
    """
    Says that nothing is observed but densities of rows.

    :param names: of ``pyro.factor`` sites.
    :returns: a text for an error.
    """
    return (
        f"the model observes by pyro.factor alone ({', '.join(map(repr, sorted(names)))}), which "
        "is a density and no data: nobody can tell what was observed. Write pyro.sample(name, "
        "distribution, obs=data), with a distribution of your own if need be."
    )


def is_delta(site: Any) -> bool:
    """
    Whether a site's distribution is a point mass.

    :param site: a sample site.
    :returns: whether its distribution is a point mass: ``pyro.deterministic``, or a site that
        a reparameterisation has made a function of others.
    """
    return isinstance(base_distribution(site["fn"]), dist.Delta)


def reduced_dims(site: Any) -> list[int]:
    """
    Batch dimensions of a site that belong to no plate and are not of size 1.

    :param site: a sample site.
    :returns: negative positions in ``site["fn"].batch_shape``.
    """
    plates = {frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    batch_shape = site["fn"].batch_shape
    return [d for d in range(-len(batch_shape), 0) if d not in plates and batch_shape[d] != 1]


def pointwise_log_prob(site: Any, *, wide: bool = False) -> Tensor:
    """
    The log-probability of each datum of a site.

    Event dimensions and batch dimensions outside of every plate are summed. A minibatch scale (or
    ``poutine.scale``) is not applied; a mask is: masked data get 0.

    :param site: a sample site with a value.
    :param bool wide: in float64, with every sum taken in it: scores such as those of ArviZ take
        exponentials of differences of these numbers, and overflow in float32.
    :returns: tensor of the shape of the plates (dimensions of size 1 between them are kept).
    """
    log_prob = batch_log_prob(site, wide=wide)
    dims = reduced_dims(site)
    return log_prob.sum(dims) if dims else log_prob


def unmasked(site: Any, shape: torch.Size) -> Tensor:
    """
    Whether each entry of a site's value counts: masks around the site, and in its distribution.

    :param site: a sample site with a value.
    :param torch.Size shape: of the value in full, event dimensions last.
    :returns: flags of that shape.
    """
    fn = site["fn"]
    kept = torch.ones(shape, dtype=torch.bool, device=site["value"].device)
    masks = [(site["mask"], fn.event_dim)]
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution)):
        masks.append((getattr(fn, "_mask", None), len(fn.event_shape)))
        fn = fn.base_dist
    for mask, event_dim in masks:
        if mask is not None:
            notes = torch.as_tensor(mask, device=kept.device)
            kept = kept & notes.reshape(notes.shape + (1,) * event_dim)
    return kept


def counted(site: Any, keepdim: bool = False) -> Tensor:
    """
    Whether each datum of a site has anything that is not masked.

    :param site: a sample site with a value.
    :param bool keepdim: keep the dimensions that :func:`pointwise_log_prob` sums, at size 1.
    :returns: flags of the shape of :func:`pointwise_log_prob`; a mask that has more dimensions than
        the site (those of enumerated latents) leaves them in front, as in the log-density.
    """
    fn, found = site["fn"], site["value"].shape
    split = len(found) - fn.event_dim
    batch = torch.broadcast_shapes(found[: max(split, 0)], fn.batch_shape)
    kept = unmasked(site, batch + fn.event_shape)
    if fn.event_dim:
        kept = kept.flatten(kept.dim() - fn.event_dim).any(-1)
    dims = reduced_dims(site)
    return kept.sum(dims, keepdim=keepdim) > 0 if dims else kept


def batch_log_prob(site: Any, *, wide: bool = False) -> Tensor:
    """
    The log-probability of each event of a site, without scale and with masked ones at 0.

    :param site: a sample site with a value.
    :param bool wide: in float64.
    :raises NonFiniteError: if a distribution with checks refuses observations that are NaN.
    :raises ShapeError: for an observation that is a column beside a row.
    :returns: tensor of the batch shape, with dimensions that the value alone has in front.
    """
    if site["is_observed"]:
        check_observation(site)
    evaluate = wide_log_prob if wide else precise_log_prob
    try:
        log_prob = evaluate(site["fn"], site["value"], *site["args"], **site["kwargs"])
    except ValueError as error:  # a distribution with checks, which tells the whole tensor
        notes = missing_data(site)
        if notes is None:
            raise
        raise NonFiniteError(notes) from error
    log_prob = scale_and_mask(log_prob, mask=site["mask"])
    shape = torch.broadcast_shapes(log_prob.shape, site["fn"].batch_shape)
    expanded: Tensor = log_prob.expand(shape)
    return expanded


def wide_log_prob(fn: Any, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """
    The log-probability in float64, with dims that ``.to_event`` added summed in it.

    :param fn: a distribution.
    :param torch.Tensor value: its value, of any shape that it takes, event dimensions last.
    :param args: further arguments of ``fn.log_prob``.
    :param kwargs: keyword arguments of it.
    :returns: tensor of the batch shape, with dimensions that the value alone has in front.
    """
    if isinstance(fn, torch.distributions.Independent):
        entries = wide_log_prob(fn.base_dist, value, *args, **kwargs)
        count = fn.reinterpreted_batch_ndims
        return entries.flatten(entries.dim() - count).sum(-1) if count else entries
    return upcast(precise_log_prob(fn, value, *args, **kwargs))
