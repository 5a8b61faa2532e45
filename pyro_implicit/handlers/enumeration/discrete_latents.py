"""Discrete latents of a model that are summed out, by Pyro's own enumeration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import is_validation_enabled
from pyro.util import warn_if_inf, warn_if_nan
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration.sum_out import sum_out
from pyro_implicit.handlers.masks.hidden_observations import HiddenObservations
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.pointwise import wide_log_prob
from pyro_implicit.handlers.rows.latent_rows import AtDraw
from pyro_implicit.handlers.rows.row_order import BY_PLACE, RowOrder
from pyro_implicit.handlers.supports.served_supports import cut_off

__all__ = [
    "EnumerationNeeded",
    "NoticeEnumeration",
    "enumerated",
    "is_to_be_enumerated",
    "nesting_of",
    "run_summed_out",
]

_ADVICE_ON_DISCRETE_LATENTS = (
    "Mark it infer={'enumerate': 'parallel'}, or all such sites by pyro.infer.config_enumerate, or "
    "sum it out in the model: dist.MixtureSameFamily(dist.Categorical(weights), components) in "
    "place of a choice and what depends on it, dist.DiscreteHMM for a chain, or torch.logsumexp "
    "and pyro.factor."
)


class EnumerationNeeded(Exception):  # noqa: N818 (a signal between two functions, never shown)
    """The model has a latent that is to be summed out; it is to be run by :func:`enumerated`."""


class NoticeEnumeration(Messenger):
    """
    Ends a run at the first latent that is to be summed out.

    It is to be outside of the handlers that give latents their values.

    :raises EnumerationNeeded: there.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["done"] and is_to_be_enumerated(msg):
            raise EnumerationNeeded


def is_to_be_enumerated(site: Any) -> bool:
    """
    Whether a latent site is to be summed out.

    :param site: a sample site that no guide draws.
    :returns: whether it is marked ``infer={"enumerate": "parallel"}``.
    :raises SiteError: if it is marked so that it cannot be summed out exactly: sequentially, by
        draws, or without a finite number of values.
    """
    infer = site["infer"] or {}
    how = infer.get("enumerate")
    if site["is_observed"] or not how:
        return False
    finite = getattr(site["fn"], "has_enumerate_support", False)
    if how == "parallel" and finite and infer.get("num_samples") is None:
        return True
    found = f"infer={{'enumerate': {how!r}}}"
    if infer.get("num_samples") is not None:
        found = f"infer={{'enumerate': {how!r}, 'num_samples': {infer['num_samples']!r}}}"
    if not finite:
        found += f" on a {type(site['fn']).__name__}, whose values cannot be listed"
    raise SiteError(
        f"site {site['name']!r} of the model is to be enumerated ({found}), which objectives for "
        "implicit guides do not do: they sum over all values of a latent of the model, in "
        f"parallel. {_ADVICE_ON_DISCRETE_LATENTS if finite else cut_off(site['name'], site['fn'])}"
    )


def enumerated(
    model: Callable[..., Any], nesting: int, drawn: Collection[str] = ()
) -> Callable[..., Any]:
    """
    Makes a model list the values of its marked latents along dimensions of their own.

    :param model: a model.
    :param int nesting: number of its plate dimensions, that of vectorised draws among them.
    :param drawn: names of the sites that a guide draws: marks of these change nothing.
    :returns: the model; ``sum_out`` then contracts its trace.
    """
    inner = poutine.infer_config(model, config_fn=partial(_checked, frozenset(drawn)))
    return _Enumeration(first_available_dim=-1 - nesting)(inner)


def _checked(drawn: frozenset[str], site: Any) -> Any:
    """Unmarks what a guide draws, and refuses other marks that cannot be followed."""
    if site["type"] == "sample":
        if site["name"] in drawn:
            return {"enumerate": None}
        is_to_be_enumerated(site)
    return {}


def nesting_of(model: Callable[..., Any], args: Any, kwargs: Any) -> int:
    """
    Counts the plate dimensions of a model, by one run of it.

    :param model: a model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: the number of dimensions.
    """
    with poutine.block(), pyro.validation_enabled(False), torch.no_grad():
        trace = poutine.trace(model).get_trace(*args, **kwargs)
    nodes = [node for node in trace.nodes.values() if node["type"] == "sample"]
    dims: list[Any] = [f.dim for n in nodes for f in n["cond_indep_stack"] if f.vectorized]
    return -min(dims) if dims else 0


def run_summed_out(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    visit: Callable[[Any], None],
    *,
    values: Mapping[str, Tensor],
    order: RowOrder = BY_PLACE,
    nesting: int | None = None,
    wide: bool = False,
) -> None:
    """
    Runs a model once, without gradients, with some sites fixed and its marked latents summed out.

    :param model: a model with latents to sum out.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param visit: called with each sample site that is left; a marginal factor has the names of what
        it stands for as ``infer["marginal_of"]``.
    :param values: site name to the value that it takes, of the shape of the site, at the rows that
        its plates show.
    :param RowOrder order: which values are in the order of the rows' numbers, see
        :class:`~pyro_implicit.handlers.rows.latent_rows.AtDraw`.
    :param int nesting: plate dimensions of the model; None to count them by one more run.
    :param bool wide: in float64, with every sum taken in it.
    """
    fixed = AtDraw(values, order)(model)
    with torch.no_grad(), evaluation_mode():
        if nesting is None:
            nesting = nesting_of(fixed, args, kwargs)
        program = enumerated(fixed, nesting)
        trace = _traced(program, args, kwargs, wide)
        hidden = HiddenObservations(trace, values)
        if hidden.names:  # once more, looking at what depends on them
            with hidden.asked:
                trace = _traced(hidden(program), args, kwargs, wide)
            hidden.remove(trace)
        sum_out(trace)
    for node in trace.nodes.values():
        if node["type"] == "sample":
            visit(node)


def _traced(program: Callable[..., Any], args: Any, kwargs: Any, wide: bool) -> Trace:
    """A run with the log-densities of its sites."""
    with poutine.block():
        trace = poutine.trace(program).get_trace(*args, **kwargs)
    if wide:
        _add_wide(trace)
    trace.compute_log_prob()  # of those that have none
    return trace


def _add_wide(trace: Trace) -> None:
    """Gives sites their log-densities in float64, up to one that has none, if there is one."""
    nodes: dict[str, Any] = dict(trace.nodes)
    for name, node in nodes.items():
        if node["type"] != "sample":
            continue
        try:
            log_prob = wide_log_prob(node["fn"], node["value"], *node["args"], **node["kwargs"])
        except ValueError:  # of which Pyro tells more
            return
        node["unscaled_log_prob"] = log_prob
        node["log_prob"] = scale_and_mask(log_prob, node["scale"], node["mask"])
        node["log_prob_sum"] = total = node["log_prob"].sum()
        if is_validation_enabled():
            warn_if_nan(total, f"log_prob_sum at site {name!r}")
            warn_if_inf(total, f"log_prob_sum at site {name!r}", allow_neginf=True)


class _Shape:
    """Of a tensor the shape alone, in the words in which Pyro asks for it."""

    def __init__(self, tensor: Tensor) -> None:
        self.data, self.shape, self.dim = self, tensor.shape, tensor.dim


class _Enumeration(EnumMessenger):
    """Pyro's, which reads shapes from ``tensor.data``: there is no such thing under ``vmap``."""

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        if isinstance(value, Tensor):
            msg["value"] = _Shape(value)
        try:
            super()._pyro_post_sample(msg)
        finally:
            msg["value"] = value
