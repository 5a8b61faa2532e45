"""Refuses what depends on summed-out latents otherwise than their listed values show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import enumerated, nesting_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.rows.row_slices import is_recording
from pyro_implicit.ops.log_prob_tolerance import log_prob_tolerance

__all__ = ["CoupledRowsError", "check_listed_rows"]

_MAX_RUNS = 6  # one for each digit of a row's place; each takes as long as a draw of a step


class CoupledRowsError(SiteError):
    """Rows of a plate, or steps of a chain, depend on latents that their sums leave out."""


@dataclass(frozen=True)
class _Listed:
    """A latent that is summed out: its values, and the sizes of its plates."""

    name: str
    symbol: str
    support: Tensor  # (K, *event_shape)
    sizes: tuple[int, ...]  # of its plates, the last dimension last

    @property
    def num_rows(self) -> int:
        """How many it has one for."""
        return torch.Size(self.sizes).numel()

    def chosen(self, digit: int, first: int, most: int) -> Tensor:
        """
        A value of each row, by number: a digit of its place among all rows of all latents.

        Any two so differ in one, as long as there are digits enough; else they are at random.

        :param int digit: which one.
        :param int first: place of the first row.
        :param int most: number of all rows of all latents.
        """
        count, rows = len(self.support), first + torch.arange(self.num_rows)
        if most > count**_MAX_RUNS:
            index = torch.randint(count, rows.shape)
        else:
            index = rows // count**digit % count
        return index.to(self.support.device).reshape(self.sizes)


def check_listed_rows(
    model: Any, args: Any, kwargs: Mapping[str, Any], values: Mapping[str, Any], nesting: int | None
) -> None:
    """
    Refuses models whose rows depend on discrete latents of other rows, all of which are summed out.

    So it does those of ``pyro.markov`` that look further back than its ``history``: dimensions of
    values are used again there.

    Enumeration lists one value for all rows of a plate at a time. A site of which an entry looks at
    the latents of other rows (``z.roll(1)``, ``z.cumsum(0)``, ``z.sum()``) so has a density at
    rows that all agree, and the sum over these is no probability of anything: Pyro's
    ``TraceEnum_ELBO`` says nothing of it. Here the model is run with some values of the latents
    that differ by row, and each density held against the listed one at the same values. What draws
    numbers of its own, or does not run so, is not judged.

    :param model: a Pyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param values: of its other latents, by name, of the shapes that they have in it.
    :param int nesting: number of its plate dimensions; None to count them by one more run.
    :raises CoupledRowsError: naming the site.
    """
    if is_recording():
        return
    try:
        with unseen_run(), torch.no_grad(), Unvalidated(), pyro.validation_enabled(False):
            found = next(
                _coupled(poutine.condition(model, data=dict(values)), args, kwargs, nesting), None
            )
    except Exception:  # whatever a model does with values of its latents
        return
    if found is not None:
        raise found


def _coupled(
    model: Any, args: Any, kwargs: Mapping[str, Any], nesting: int | None
) -> Iterator[CoupledRowsError]:
    """An error for each site that has another density than the listed one."""
    nesting = nesting_of(model, args, kwargs) if nesting is None else nesting
    together = _traced(enumerated(model, nesting), args, kwargs)
    together.symbolize_dims()
    nodes: list[Any] = [n for n in together.nodes.values() if n["type"] == "sample"]
    listed = [_listed(node) for node in nodes if _is_listed(node)]
    firsts = [0, *accumulate(one.num_rows for one in listed)]
    if firsts[-1] < 2:
        return  # no others that one could depend on
    held = {
        node["name"]: node["value"]
        for node in nodes
        if not (node["is_observed"] or _is_listed(node) or _depends(node, nesting))
    }
    own: set[str] = set()  # sites that draw numbers of their own
    for digit in range(min(_MAX_RUNS, (firsts[-1] - 1).bit_length())):
        index = {
            one.symbol: one.chosen(digit, first, firsts[-1])
            for one, first in zip(listed, firsts, strict=False)
        }
        drawn = {one.name: one.support[index[one.symbol]] for one in listed}
        given = poutine.condition(model, data={**held, **drawn})
        alone = _densities(given, args, kwargs, nodes)
        if not digit:
            again = _densities(given, args, kwargs, nodes)
            own = {name for name in alone if not torch.equal(alone[name], again[name])}
        for node in nodes:
            many, single = _at(node, index, nesting), alone.get(node["name"])
            if many is None or single is None or node["name"] in own:
                continue
            if not _are_near(many, single):
                yield _error(node, listed, many, single)


def _densities(model: Any, args: Any, kwargs: Any, nodes: list[Any]) -> dict[str, Tensor]:
    """Of a run, by site, masked as those of the listed run are."""
    found = _traced(model, args, kwargs).nodes
    return {
        node["name"]: _log_prob(found[node["name"]], not _is_listed(node))
        for node in nodes
        if node["name"] in found
    }


def _traced(model: Any, args: Any, kwargs: Mapping[str, Any]) -> Trace:
    trace: Trace = poutine.trace(model).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    return trace


def _is_listed(node: Any) -> bool:
    return (node["infer"] or {}).get("_enumerate_dim") is not None


def _depends(node: Any, nesting: int) -> bool:
    """Whether a latent that nobody holds has a value for each listed one."""
    sizes = () if site_is_subsample(node) else node["fn"].batch_shape
    return any(size > 1 for size in sizes[: max(0, len(sizes) - nesting)])


def _listed(node: Any) -> _Listed:
    """What there is to know of a latent with all its values."""
    frames = {frame.dim: frame.size for frame in node["cond_indep_stack"] if frame.vectorized}
    depth = max((-dim for dim in frames), default=0)
    event_shape = node["fn"].event_shape
    place = node["infer"]["_enumerate_dim"] - len(event_shape)
    values = node["value"].movedim(place, 0)
    by_row = values.reshape(len(values), -1, *event_shape)  # several where they were expanded
    if not torch.equal(by_row, by_row[:, :1].expand_as(by_row)):
        raise ValueError("rows have values of their own")  # not judged
    return _Listed(
        node["name"],
        node["infer"]["_enumerate_symbol"],
        by_row[:, 0],
        tuple(frames.get(dim, 1) for dim in range(-depth, 0)),
    )


def _log_prob(node: Any, masked: bool) -> Tensor:
    """Of a site as it is summed: what is masked counts nowhere, but for listed latents."""
    log_prob: Tensor = scale_and_mask(
        node["unscaled_log_prob"], mask=node["mask"] if masked else None
    )
    return log_prob


def _at(node: Any, index: Mapping[str, Tensor], nesting: int) -> Tensor | None:
    """Listed log-densities at chosen values; None if they have dimensions that nobody declares."""
    log_prob = _log_prob(node, not _is_listed(node))
    log_prob = log_prob.reshape([1] * (nesting - log_prob.dim()) + list(log_prob.shape))
    symbols, places = node["infer"]["_dim_to_symbol"], []
    for dim in range(-log_prob.dim(), 0):
        size = log_prob.shape[dim]
        if size == 1:
            places.append(torch.zeros((), dtype=torch.long, device=log_prob.device))
        elif dim >= -nesting:
            rows = torch.arange(size, device=log_prob.device)
            places.append(rows.reshape(-1, *[1] * (-dim - 1)))
        elif symbols.get(dim) in index:
            places.append(index[symbols[dim]].to(log_prob.device))
        else:
            return None
    return log_prob[tuple(places)] if places else log_prob


def _are_near(one: Tensor, other: Tensor) -> bool:
    tolerance = log_prob_tolerance(one, other)
    apart = (one - other).abs() > tolerance * (1 + other.abs())
    return not bool((apart & (one != other) & ~one.isnan() & ~other.isnan()).any())


def _error(node: Any, listed: list[_Listed], many: Tensor, alone: Tensor) -> CoupledRowsError:
    symbols = set(node["infer"]["_dim_to_symbol"].values())
    named = [one.name for one in listed if one.symbol in symbols and one.name != node["name"]]
    far = (many - alone).abs().nan_to_num(0.0, posinf=torch.inf).argmax()
    notes, found = (float(x.expand((many - alone).shape).reshape(-1)[far]) for x in (alone, many))
    names = ", ".join(map(repr, named)) or "latents"
    return CoupledRowsError(
        f"site {node['name']!r} of the model depends on {names} of other rows, or further back in "
        f"a chain than its history: its log-density is {notes:.6g} at values drawn for each, and "
        f"{found:.6g} at the same values where all are summed out. Enumeration lists one value "
        "for all rows of a plate at a time, so that a row may depend on its own latents alone: "
        "not on z.roll(1), z.cumsum(-1) or z.sum(-1). Make a site of each row by a loop, for i in "
        "pyro.markov(range(n)) for a chain (history=2 where a step looks two back), or for i in "
        "pyro.plate('rows', n) where a datum depends on several (all combinations of their values "
        "are then summed)."
    )
