"""The log-densities of an enumerated run, with its discrete latents summed out."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from opt_einsum import shared_intermediates  # type: ignore[import-untyped]
from pyro.distributions.util import scale_and_mask
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.rings import LogRing
from pyro.poutine import Trace
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.mapped.mappable_logarithm import mappable_logarithm

__all__ = ["OutsidePlateError", "inseparable", "sum_out"]


class OutsidePlateError(SiteError):
    """A site depends on discrete latents of a plate that it is not in."""


@dataclass(frozen=True)
class _Factor:
    """The log-density of one site, its dimensions by symbol."""

    node: Any
    ordinal: frozenset[str]  # symbols of the site's plates
    values: frozenset[str]  # symbols of the enumerated latents that it depends on
    log_prob: Any  # packed; None if it was not computed


def sum_out(trace: Trace) -> dict[str, tuple[str, ...]]:
    r"""
    Replaces the sites of an enumerated run that depend on its discrete latents by marginal factors.

    For each group of sites that share enumerated latents :math:`z` it is :math:`\log\sum_z
    \prod_i p_i`, contracted by Pyro's message passing along plates, as in ``TraceEnum_ELBO``: masks
    are applied inside of the sum, and the common scale outside. A datum's rows stay apart as far
    as the latents do: a factor has the plates that all sites of its group are in.

    :param pyro.poutine.Trace trace: of a model made by :func:`enumerated`, with log-densities of
        all sites that are read; changed in place.
    :returns: by factor, the names of the sites that it stands for, latents that a guide draws among
        them.
    :raises SiteError: if sites of one group are weighed differently, or the prior of a latent that
        is not read depends on an enumerated one; if a log-density has a dimension that neither a
        plate nor an enumerated latent declares; if plates are not nested as a sum over the latents
        needs it, or a site outside of a plate depends on latents of its rows.
    """
    trace.symbolize_dims()
    nodes = [node for node in trace.nodes.values() if node["type"] == "sample"]
    sizes = dict(_cardinalities(nodes))
    if not sizes:
        return {}
    factors = [_factor(trace, node, sizes) for node in nodes]
    made = {}
    for group in _groups([factor for factor in factors if factor.values]):
        read = [factor for factor in group if factor.log_prob is not None]
        if len(read) < len(group) and not any(f.node["is_observed"] for f in group):
            for factor in read:  # a prior of which nothing is read
                trace.remove_node(factor.node["name"])
            continue
        name, node = _contracted(trace, group, sizes)
        for factor in group:
            trace.remove_node(factor.node["name"])
        trace.add_node(name, **node)
        made[name] = tuple(factor.node["name"] for factor in group)
    return made


def _cardinalities(nodes: list[Any]) -> Iterator[tuple[str, int]]:
    """The symbol of each enumerated latent and the number of its values."""
    for node in nodes:
        dim = node["infer"].get("_enumerate_dim")
        if dim is not None:
            shape = node["value"].shape
            place = dim - node["fn"].event_dim
            if len(shape) >= -place and shape[place] > 1:
                yield node["infer"]["_enumerate_symbol"], shape[place]


def _factor(trace: Trace, node: Any, sizes: Mapping[str, int]) -> _Factor:
    frames = [f for f in node["cond_indep_stack"] if f.vectorized]
    ordinal = frozenset(trace.plate_to_symbol[f.name] for f in frames)
    symbols = node["infer"]["_dim_to_symbol"]
    if "log_prob" not in node:
        shape = node["fn"].batch_shape
        dims = [dim for dim in range(-len(shape), 0) if shape[dim] > 1]
        return _Factor(node, ordinal, frozenset(map(symbols.get, dims)) & sizes.keys(), None)
    is_listed = node["infer"].get("_enumerate_dim") is not None
    mask = None if is_listed else node["mask"]  # the probabilities of a latent add up to one
    log_prob = scale_and_mask(node["unscaled_log_prob"], mask=mask)
    _check_dims(node, log_prob.shape, symbols, sizes)
    log_prob = packed.pack(log_prob, symbols)
    return _Factor(node, ordinal, frozenset(log_prob._pyro_dims) & sizes.keys(), log_prob)


def _check_dims(
    node: Any, shape: torch.Size, symbols: Mapping[int, str], sizes: Mapping[str, int]
) -> None:
    """Refuses dimensions that stand where an enumerated latent or nothing is declared."""
    for dim in range(-len(shape), 0):
        symbol = symbols.get(dim)
        if shape[dim] == 1 or (symbol and sizes.get(symbol, shape[dim]) == shape[dim]):
            continue
        listed = {symbols[d]: d for d in symbols if symbols[d] in sizes}
        places = ", ".join(f"{sizes[s]} values at {d}" for s, d in listed.items()) or "none"
        raise SiteError(
            f"site {node['name']!r} of the model has log-densities of shape {tuple(shape)}, whose "
            f"dimension {dim} (size {shape[dim]}) belongs to no plate and to no enumerated latent "
            f"({places}). An enumerated latent has its values left of all plates: index by "
            "pyro.ops.indexing.Vindex(locs)[..., z], not by locs[z], and keep dimensions of size 1."
        )


def _groups(factors: list[_Factor]) -> list[list[_Factor]]:
    """Those that share enumerated latents, directly or by way of others."""
    groups: list[list[_Factor]] = []
    for factor in factors:
        joined, rest = [factor], []
        for group in groups:
            linked = any(other.values & factor.values for other in group)
            if linked:
                joined = group + joined
            else:
                rest.append(group)
        groups = [*rest, joined]
    return groups


def _contracted(
    trace: Trace, group: list[_Factor], sizes: Mapping[str, int]
) -> tuple[str, dict[str, Any]]:
    """The name of a group's factor, and the node that takes the place of its sites."""
    nodes = [factor.node for factor in group]
    listed = [n["name"] for n in nodes if n["infer"].get("_enumerate_dim") is not None]
    _check_read(group, listed)
    _check_plates(trace, group)
    scale = _common_scale(nodes, listed)
    frames = [f for f in nodes[0]["cond_indep_stack"] if all(_is_in(f, n) for n in nodes)]
    term = _logsumexp(trace, group, {s: sizes[s] for f in group for s in f.values}, listed)
    for frame in frames:
        if frame.vectorized and (term.dim() < -frame.dim or term.shape[frame.dim] != frame.size):
            shape = [1] * (-frame.dim - term.dim()) + list(term.shape)
            shape[frame.dim] = frame.size
            term = term.expand(shape)
    others = [node["name"] for node in nodes if node["name"] not in listed]
    name = f"{', '.join(others) or 'nothing'} with {', '.join(listed)} summed out"
    log_prob = scale_and_mask(term, scale)
    return name, {
        "type": "sample",
        "name": name,
        "fn": dist.Unit(term),
        "value": term.new_zeros((*term.shape, 0)),
        "is_observed": any(node["is_observed"] for node in nodes),
        "infer": {"marginal_of": tuple(others), "marginal_nodes": tuple(nodes)},
        "args": (),
        "kwargs": {},
        "done": True,
        "scale": scale,
        "mask": None,
        "cond_indep_stack": tuple(frames),
        "unscaled_log_prob": term,
        "log_prob": log_prob,
        "log_prob_sum": log_prob.sum(),
    }


def _is_in(frame: Any, node: Any) -> bool:
    """Whether a site is in a plate, and in the same turn of a loop over it."""
    turn = None if frame.vectorized else frame.counter
    stack = node["cond_indep_stack"]
    return any(f.name == frame.name and (f.vectorized or f.counter == turn) for f in stack)


def _check_read(group: list[_Factor], listed: list[str]) -> None:
    """Refuses a group of which the density of a site was not computed."""
    unread = [factor.node["name"] for factor in group if factor.log_prob is None]
    if unread:
        raise inseparable(unread, ", ".join(listed))


def _check_plates(trace: Trace, group: list[_Factor]) -> None:
    """
    Refuses sites outside of a plate whose rows have a latent each that they depend on.

    One value for all rows would be summed over, as ``TraceEnum_ELBO`` does: no probability of
    anything.
    """
    owners = {factor.node["infer"].get("_enumerate_symbol"): factor.node for factor in group}
    for factor in group:
        for symbol in sorted(factor.values & owners.keys()):
            owner = owners[symbol]
            for frame in owner["cond_indep_stack"]:
                is_own = trace.plate_to_symbol.get(frame.name) in factor.ordinal
                if frame.vectorized and frame.size > 1 and not is_own:
                    raise _outside(factor.node["name"], owner["name"], frame)


def _outside(name: str, latent: str, frame: Any) -> OutsidePlateError:
    return OutsidePlateError(
        f"site {name!r} depends on {latent!r}, which is summed out and has a value for each of the "
        f"{frame.size} rows of plate {frame.name!r}; {name!r} is not in that plate, so that a sum "
        "over one value for all rows would be no probability of it. Put it there (with a dimension "
        "of the plate for each group's data, and poutine.mask where groups have fewer); use one "
        "plate, made once, where both are the same rows; or make a site of each latent by a loop, "
        f"for i in pyro.plate({frame.name!r}, {frame.size}): pyro.sample(f'{latent}_{{i}}', ...), "
        "with the data of its own in the loop too, or else all combinations of their values summed."
    )


def inseparable(latents: list[str], summed: str) -> SiteError:
    """
    The error for priors that depend on what is summed out.

    :param latents: names of the latents.
    :param str summed: what is summed out.
    :returns: the error.
    """
    return SiteError(
        f"the prior of {', '.join(latents)} depends on discrete latents that are summed out "
        f"({summed}), so that it has no term apart from the likelihood, which is needed here (for "
        "a power, a weight, a comparison of draws or a score). The joint density is enough for "
        "LinearisedELBO with kl_weight=1, prior_weight=1 and likelihood='expected'."
    )


def _common_scale(nodes: list[Any], listed: list[str]) -> Any:
    """
    The one number that all sites of a group are multiplied by.

    :raises SiteError: if they differ.
    """
    scales = {}
    for node in nodes:
        scale = node["scale"]
        if isinstance(scale, Tensor) and scale.numel() > 1:
            raise SiteError(
                f"site {node['name']!r} depends on {', '.join(listed)}, which is summed out, and "
                f"has a scale of shape {tuple(scale.shape)}; expected one number. Write "
                "poutine.scale with a number, or a mask."
            )
        scales[node["name"]] = float(scale)
    values = list(scales.values())
    if any(abs(value - values[0]) > 1e-6 * abs(values[0]) for value in values):
        notes = ", ".join(f"{name!r}: {value:.4g}" for name, value in scales.items())
        raise SiteError(
            f"sites that depend on {', '.join(listed)}, which is summed out, have different scales "
            f"({notes}): a weight stands outside of the sum, and can only if it is that of the "
            "latent too. Of a minibatch, put the latent into the plate of the rows, or pass all of "
            "them; write poutine.scale around both, or around neither."
        )
    return nodes[0]["scale"]


def _logsumexp(
    trace: Trace, group: list[_Factor], sizes: dict[str, int], listed: list[str]
) -> Tensor:
    """Pyro's contraction of one group, with the plates in their dimensions."""
    tree: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
    dim_to_size: dict[str, int] = {}
    dtypes = [factor.log_prob.dtype for factor in group]
    dtype = functools.reduce(torch.promote_types, dtypes)
    for factor in group:
        tree.setdefault(factor.ordinal, []).append(_in_numbers_of(factor.log_prob, dtype))
        dim_to_size.update(zip(factor.log_prob._pyro_dims, factor.log_prob.shape, strict=True))
    try:
        with shared_intermediates() as cache, mappable_logarithm():
            ring = LogRing(cache=cache, dim_to_size=dim_to_size)
            contracted = contract_tensor_tree(tree, set(sizes), ring=ring)
    except NotImplementedError as error:
        raise SiteError(
            f"{', '.join(listed)} cannot be summed out: the plates of what depends on it are not "
            f"nested in those of the latents ({str(error).strip().splitlines()[0]}). Put the "
            "latents in the innermost plate that all of these sites share."
        ) from error
    ((term,),) = contracted.values()
    unpacked: Tensor = packed.unpack(term, trace.symbol_to_dim)
    return unpacked


def _in_numbers_of(term: Tensor, dtype: torch.dtype) -> Tensor:
    """A packed tensor in another precision, which the contraction does not do by itself."""
    if term.dtype == dtype:
        return term
    moved = term.to(dtype)
    moved._pyro_dims = term._pyro_dims  # type: ignore[attr-defined]
    return moved
