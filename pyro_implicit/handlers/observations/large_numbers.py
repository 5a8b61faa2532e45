"""Densities of large numbers, of which single precision loses digits."""

from __future__ import annotations

import copy
from typing import Any

import pyro.distributions as dist
import torch
import torch.distributions as torch_dist
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions.transforms import Transform

__all__ = ["InDouble", "in_double_if_large", "precise_log_prob", "warning_of_rounding"]

#: Their density is a small difference of terms as large as y log y.
_FAMILIES_WITH_LARGE_TERMS = (
    torch_dist.Beta,
    torch_dist.Binomial,
    torch_dist.Dirichlet,
    torch_dist.Gamma,
    torch_dist.Multinomial,
    torch_dist.NegativeBinomial,
    torch_dist.Poisson,
    torch_dist.StudentT,
    dist.BetaBinomial,
    dist.DirichletMultinomial,
    dist.GammaPoisson,
)
#: and references to inverses: no parts of the density
_CACHES_OF_TRANSFORMS = ("_inv", "_cached_x_y")
_MIN_ROUNDING_IN_NATS = 0.5  # in the loss of a fit, that is worth a warning
_MIN_LARGE_NUMBER = 1000.0  # here rounding of such a term is some ten thousandths of a nat


def in_double_if_large(fn: Any, value: Any) -> tuple[Any, Any]:
    """
    Casts a distribution and a value to double precision, if single one would not tell the density.

    A Poisson of counts of two millions has terms of 3e7 nats, which are known to a nat or two.

    :param fn: a distribution.
    :param value: its value, of any shape.
    :returns: both, in double precision if numbers of a distribution with such terms are large.
    """
    numbers = _numbers(fn, value)
    try:
        is_large = any(
            one.numel() and float(one.detach().abs().max()) >= _MIN_LARGE_NUMBER for one in numbers
        )
    except RuntimeError:  # of several draws in one pass, which no number can be read from
        return fn, value
    return (_in_double(fn), value.double()) if is_large else (fn, value)


def precise_log_prob(fn: Any, value: Any, *args: Any, **kwargs: Any) -> Tensor:
    """
    The log-probability, in double precision where :func:`in_double_if_large` says so.

    :param fn: a distribution.
    :param value: its value, of any shape.
    :param args: further arguments of ``fn.log_prob``.
    :param kwargs: keyword arguments of it.
    :returns: shape ``fn.batch_shape``, with dimensions that the value alone has in front.
    """
    wide, there = in_double_if_large(fn, value)
    if wide is not fn:
        try:
            log_prob: Tensor = wide.log_prob(there, *args, **kwargs)
        except RuntimeError:  # a distribution of one's own that joins it with other numbers
            pass
        else:
            return log_prob
    log_prob = fn.log_prob(value, *args, **kwargs)
    return log_prob


def warning_of_rounding(site: Any) -> str:
    """
    Tells of observations whose density single precision does not tell.

    :param site: the message of an observed site.
    :returns: what to write, for a warning; empty for all others.
    """
    name, fn, value = site["name"], site["fn"], site["value"]
    if not _numbers(fn, value) or value.dtype == torch.float64 or not value.numel():
        return ""
    most = float(value.abs().max())
    if most < _MIN_LARGE_NUMBER:
        return ""
    gaps = precise_log_prob(fn, value) - fn.log_prob(value)
    off = float(gaps.nan_to_num(0.0, 0.0, 0.0).square().sum().sqrt())
    if off < _MIN_ROUNDING_IN_NATS:
        return ""
    return (
        f"site {name!r} observes numbers up to {most:.3g}, of which single precision "
        f"knows the log density to some {off:.1g} nats in all: losses and bounds are off by as "
        "much; scores are taken in double precision, and gradients need none. Hand these data over "
        "in double precision, y.double()."
    )


class InDouble(Messenger):
    """Observes in double precision where the size of terms asks for it, whatever the numbers."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"] and _numbers(msg["fn"], msg["value"]):
            msg["fn"], msg["value"] = _in_double(msg["fn"]), msg["value"].double()


def _numbers(fn: Any, value: Any) -> list[Tensor]:
    """All numbers of a distribution with large terms, and its value; none of any other one."""
    if not isinstance(value, Tensor) or _has_network(fn):
        return []
    if not isinstance(fn, _FAMILIES_WITH_LARGE_TERMS):
        return [one for part in _parts(fn) for one in _numbers(part, value)]
    own = [one for one in vars(fn).values() if isinstance(one, Tensor)]
    return [value, *own, *(one for part in _parts(fn) for one in _numbers(part, value))]


def _has_network(fn: Any) -> bool:
    """Whether a density runs functions or networks of its own, which take their own precision."""
    if isinstance(fn, nn.Module):
        return True
    parts = [one for name, one in vars(fn).items() if name not in _CACHES_OF_TRANSFORMS]
    parts += [one for some in parts if isinstance(some, (list, tuple)) for one in some]
    kinds = (torch_dist.Distribution, Transform)
    inner = [one for one in parts if isinstance(one, kinds)]
    own = any(callable(one) and not isinstance(one, kinds) for one in parts)
    return own or any(map(_has_network, inner))


def _parts(fn: Any) -> list[Any]:
    """The distributions that one is made of."""
    return [one for one in vars(fn).values() if isinstance(one, torch_dist.Distribution)]


def _in_double(fn: Any) -> Any:
    new = copy.copy(fn)
    given = vars(fn).get("_param")
    for name, one in vars(fn).items():
        if name in ("probs", "logits") and given is not None and one is not given:
            del vars(new)[name]  # made of the other one, with its rounding, and made anew
        elif isinstance(one, Tensor) and one.is_floating_point():
            vars(new)[name] = one.double()
        elif isinstance(one, torch_dist.Distribution):
            vars(new)[name] = _in_double(one)
    return new
