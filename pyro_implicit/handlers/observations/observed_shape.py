"""Whether the shape of an observation fits its distribution."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from pyro.distributions.hmm import HiddenMarkovModel
from torch import Tensor

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.wrapped import is_of_library

__all__ = [
    "check_duration",
    "check_is_tensor",
    "check_observation",
    "is_event",
    "observed_batch_shape",
    "warning_of_one_for_all",
]


def check_is_tensor(site: Any) -> None:
    """
    Refuses a number or a text as an observation; lists and tables are told of as arguments.

    :param site: the message of an observed site.
    :raises ArgumentError: for such a value.
    """
    value = site["value"]
    if not isinstance(value, (Number, str)):
        return
    advice = "as_tensor(y)"
    if isinstance(value, (float, int)) and math.isfinite(value):
        advice = f"tensor({float(value)}), or torch.tensor({int(value)}) for the number of a class"
    raise ArgumentError(
        f"site {site['name']!r} is observed at {shown(value)}, a {type(value).__name__}; expected "
        f"a tensor. Write obs=torch.{advice}."
    )


def check_observation(site: Any) -> None:
    """
    Refuses an observation that is copied along its plates, or pairs its entries with others.

    Unlike :func:`observed_batch_shape` it takes distributions with dimensions of their own in
    front, of particles or of values that are summed out.

    :param site: the message of an observed site.
    :raises ArgumentError: for complex numbers, and for a number or a text.
    :raises ShapeError: for such a column beside a row, one row in a plate of several or the
        reverse, and more dimensions than plates.
    """
    if not isinstance(site["value"], Tensor) and not is_of_library(site["fn"]):
        return  # a distribution of a user's own may take a number
    check_is_tensor(site)
    _refuse_complex(site)
    fn, found = site["fn"], site["value"].shape
    own = torch.Size(found[: max(len(found) - fn.event_dim, 0)])
    if not _fits_plates(site, own):
        raise _other_shape(site)
    try:
        batch = torch.broadcast_shapes(own, fn.batch_shape)
    except RuntimeError:
        observed_batch_shape(site)  # raises
        return
    if batch.numel() > max(own.numel(), torch.Size(fn.batch_shape).numel()):
        observed_batch_shape(site)


def observed_batch_shape(site: Any, rows: str = "") -> torch.Size:
    """
    The batch shape of an observed site, value and distribution together.

    :param site: the message, with its value.
    :param str rows: which rows were looked at, for the message.
    :returns: what both broadcast to.
    :raises ArgumentError: for complex numbers, and for a number or a text.
    :raises ShapeError: if the observed value does not fit the distribution.
    """
    check_is_tensor(site)
    _refuse_complex(site)
    fn, found = site["fn"], site["value"].shape
    split = len(found) - fn.event_dim
    try:
        batch: torch.Size | None = torch.broadcast_shapes(found[: max(split, 0)], fn.batch_shape)
    except RuntimeError:
        batch = None
    # one number for all is one; one row for many, or a column beside a row, is a mistake
    fits = batch is not None and (split == 0 or found[:split].numel() == batch.numel())
    if batch is None or not fits or not is_event(fn, found[split:]):
        raise _other_shape(site, rows)
    return batch


def _refuse_complex(site: Any) -> None:
    """No density of torch or Pyro is one of complex numbers, though many compute something."""
    if not site["value"].is_complex():
        return
    if is_of_library(site["fn"]):  # a user's own may have one
        raise ArgumentError(
            f"site {site['name']!r} observes complex numbers ({site['value'].dtype}), of which its "
            "distribution has no density. Observe two real numbers each, "
            "torch.view_as_real(y), with .to_event(1)."
        )


def _fits_plates(site: Any, own: torch.Size) -> bool:
    """Whether an observation has a value for each row of the plates whose dimensions it has."""
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    sizes = {frame.dim: frame.size for frame in frames if len(own) >= -frame.dim}
    if any(own[dim] != size for dim, size in sizes.items()):
        return False
    is_more = len(own) > len(site["fn"].batch_shape) > 0 and bool(frames)
    return not is_more or all(own[dim] == 1 for dim in range(-len(own), 0) if dim not in sizes)


def _other_shape(site: Any, rows: str = "") -> ShapeError:
    return ShapeError(
        f"site {site['name']!r} observes a tensor of shape {tuple(site['value'].shape)}, and its "
        f"distribution has shape {tuple(site['fn'].shape())}{rows}; expected one observation for "
        "each row of the inputs. Look for arguments of other lengths, or a last dimension of size "
        "1 (f.squeeze(-1))."
    )


def is_event(fn: Any, shape: torch.Size) -> bool:
    """
    Tells whether a shape is that of an event.

    :param fn: a distribution.
    :param torch.Size shape: the last dimensions of a value, as many as an event has.
    :returns: True of any number of steps for a homogeneous hidden Markov model without a duration.
    """
    if _is_endless(fn):
        return len(shape) == fn.event_dim and bool(shape[1:] == fn.event_shape[1:])
    return bool(shape == fn.event_shape)


def check_duration(fn: Any) -> None:
    """
    Refuses to draw a hidden Markov model of any number of steps.

    :param fn: a distribution that is to be drawn from.
    :raises SiteError: saying what to write.
    """
    if _is_endless(fn):
        raise SiteError(
            f"a {type(fn).__name__} without a duration can be observed and not drawn: nothing says "
            f"how many steps there are. Write dist.{type(fn).__name__}(..., duration=len(y))."
        )


def _is_endless(fn: Any) -> bool:
    while isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return isinstance(fn, HiddenMarkovModel) and fn.duration is None and fn.event_shape[0] == 1


def warning_of_one_for_all(site: Any) -> str:
    """
    Says of a value that several rows of plates observe.

    :param site: the message of an observed site, or a node of a trace.
    :returns: a text for a warning; empty for a value of each row, and for a single row.
    """
    fn, value = site["fn"], site["value"]
    rows = torch.Size(fn.batch_shape).numel()
    if rows < 2 or not isinstance(value, Tensor) or site["infer"].get("_deterministic"):
        return ""
    if value.dim() > fn.event_dim:
        return _warning_of_outer_plates(site)
    if not value.dim():
        if isinstance(fn, torch.distributions.Bernoulli):
            return ""  # "it has happened in all rows", as of censoring
        return (
            f"site {site['name']!r} observes one number for all of its {rows} rows; if the data "
            "were meant, pass all of them, as in (model, guide, x, y)."
        )
    return (
        f"site {site['name']!r} observes one value of shape {tuple(value.shape)} in each of the "
        f"{rows} rows of its plates, and counts {rows} times. Independent rows need no .to_event; "
        "rows that are one event (MultivariateNormal, ImplicitProcess) belong in no plate of rows."
    )


def _warning_of_outer_plates(site: Any) -> str:
    """Of values that have the dimensions of some plates, and count alike in each row of others."""
    fn, value = site["fn"], site["value"]
    missing = len(fn.batch_shape) - (value.dim() - fn.event_dim)
    times = torch.Size(fn.batch_shape[: max(missing, 0)]).numel()
    if times < 2 or not any(f.vectorized and f.size > 1 for f in site["cond_indep_stack"]):
        return ""
    with torch.no_grad():
        each = fn.log_prob(value).reshape(times, -1)
    if not torch.equal(each, each[:1].expand_as(each)):
        return ""  # several models of the same data, say
    return (
        f"site {site['name']!r} observes a tensor of shape {tuple(value.shape)} in plates of shape "
        f"{tuple(fn.batch_shape)}: each of its values counts {times} times, once for each row of "
        "the plates that it has no dimension for. Pass data of all plates; what no datum depends "
        "on belongs in a plate of latents alone."
    )
