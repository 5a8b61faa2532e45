"""The score of a fit on data that it has not seen: the log of the mean predictive density."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from pyro.poutine.util import site_is_factor
from torch import Tensor

from pyro_implicit._checks import check_num_samples, check_seed
from pyro_implicit._random import RandomStream, mixed_seed
from pyro_implicit._signature import in_order
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import (
    EnumerationNeeded,
    NoticeEnumeration,
    run_summed_out,
)
from pyro_implicit.handlers.enumeration.observed_in_sum import (
    counted_in_sum,
    data_in_sum,
    refuse_undrawn,
)
from pyro_implicit.handlers.enumeration.sum_out import inseparable
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.held.held_sites import HeldSites
from pyro_implicit.handlers.looks.upstream import upstream_sites
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.observations.without_density import refuse_data_without_density
from pyro_implicit.handlers.pointwise import (
    counted,
    is_auxiliary,
    is_delta,
    is_factor_of_rows,
    is_latent_of_model,
    pointwise_log_prob,
    run_model,
    warning_of_factors,
    warning_of_factors_alone,
)
from pyro_implicit.handlers.rows.joint_rows import is_joint_of_rows
from pyro_implicit.handlers.rows.own_subsample import OwnSubsample, sizes_of_arguments
from pyro_implicit.handlers.rows.row_order import RowOrder
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.inference.draws_one_by_one import DrawsOneByOne
from pyro_implicit.inference.fitted_call import FittedCall
from pyro_implicit.inference.from_prior import came_from_prior, forgotten_of, of_another_model
from pyro_implicit.inference.outside_support import drawn_outside, is_outside

__all__ = [
    "DataOfPlates",
    "Noted",
    "NothingToScore",
    "log_predictive_density",
    "mean_densities",
]


def log_predictive_density(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> Tensor:
    r"""
    The log of the mean likelihood over draws of the guide, for each datum.

    :math:`\log \tfrac1S \sum_s p(y_i \mid \theta_s)` for each datum ``i`` of a batch, without any
    minibatch scale. Observed sites in the same plates are one datum. Masked data are left out, as
    by :func:`~pyro_implicit.evaluate`; a datum of which a part is masked keeps the rest. What
    ``poutine.condition`` holds is no datum where the model observes others.

    Draws are gone through one after the other, and of each only its densities are kept. They are
    those of :func:`~pyro_implicit.evaluate` with the same seed where a guide draws many at once (of
    this package, several of them, chains) and latents are not made by row; of Pyro's guides, lists
    and functions they are others. In
    expectation the value rises with ``num_samples``: compare at the same number. Discrete latents
    that are marked for enumeration are summed out; what they join is one datum (a sequence of a
    hidden Markov model), and values that ``obs_mask`` hides of it are integrated out.

    Example::

        density = log_predictive_density(model, guide, x_test, y_test, num_samples=1000)
        density.mean(), density.argmin()                   # the mean, and the worst datum

    :param model: a model whose arguments include the observations.
    :param guide: any guide; called with the same arguments.
    :param args: the arguments of both.
    :param int num_samples: draws ``S``, which must be given.
    :param int seed: of the draws; batches of the same seed have the same ones, and random numbers
        outside go on as if nothing had been drawn. None: one that torch draws.
    :param kwargs: keyword arguments of both.
    :returns: shape ``(number of data,)``, of those that are not masked under every draw.
    :raises ArgumentError: if ``num_samples`` is no positive integer, ``seed`` no seed, or ``model``
        or ``guide`` nothing that can be run; for options that neither this function nor the model
        has.
    :raises NonFiniteError: if data are NaN, masked or not, naming the site: a mask hides numbers,
        so fill masked ones with any.
    :raises ShapeError: if a latent has a value for each row, or is held at one, and nobody has
        said which of them these are.
    :raises SiteError: within ``with poutine.condition(...):``, which would hold the guide's draws
        too; if the model observes nothing with these arguments, or all is masked; if it samples
        none of the guide's latents; if it draws some rows of a plate at random; if the prior of a
        latent of the guide and data are within one sum over a discrete latent; if such a sum has a
        latent that the guide does not draw, or depends on values that ``obs_mask`` hides.
    :warns UserWarning: if the first argument has lost a dimension since the guide was built;
        if the guide has a latent of each row, and these are other rows; if the model holds
        its observations itself and is given other inputs; if the guide makes its latents
        from what is observed; if it does not draw all of the model's latents, or draws one
        outside its prior's support; if a site is one datum of all rows, as that of a Gaussian
        process, and these are others; if the model has ``pyro.factor`` within a plate, which holds
        no data and is left out; if the guide draws what ``poutine.condition`` holds, or if all that
        it observes is held so and not clearly data.
    """
    call = FittedCall(log_predictive_density, model, guide, args, kwargs)
    call.warn(call.warning_of_arguments(is_scored=True))
    num_samples = check_num_samples("log_predictive_density(model, guide, ...", num_samples)
    seed = int(torch.randint(2**31, ())) if seed is None else check_seed("seed", seed)
    kwargs = in_order(model, kwargs)
    noted = Noted(rows=number_of_rows(args, kwargs))
    densities = mean_densities(model, guide, args, kwargs, num_samples, seed, noted)
    noted.forgotten = forgotten_of(model, guide, noted.forgotten)
    call.warn([*noted.warnings(), *call.warning_of_runs(noted.joint_rows)])
    call.warn(call.warning_of_seen_observations())  # last: a function's draws may end
    return densities


class NothingToScore(SiteError):
    """All observations are masked: a batch of a loader may be so, where others are not."""


class DataOfPlates(NamedTuple):
    """
    Data that are in the same plates.

    :param key: names of the plates, with a counter of those that are gone through one by one.
    :param dict dims: the negative dimension of each of the others.
    :param shape: of the data.
    """

    key: tuple[tuple[str, int | None], ...]
    dims: dict[str, int]
    shape: torch.Size


@dataclass
class Noted:
    """
    What runs of the model show, beside densities.

    :param set met: names of the guide's latents that the model samples.
    :param set forgotten: names of latents of the model that the guide does not draw.
    :param dict outside: the supports of those that it draws outside of the prior's.
    :param set factors: names of densities of rows that are no sites of data.
    :param set all_factors: the same, and those outside of plates.
    :param held: what is to be told of what ``poutine.condition`` holds, once a run was made.
    :param int rows: of the arguments.
    :param joint_rows: names of sites that are one datum of all rows.
    :param data: what the densities are of, in their order, with those that are masked.
    :param kept: which of these are not masked.
    """

    met: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    outside: dict[str, Any] = field(default_factory=dict)
    factors: set[str] = field(default_factory=set)
    all_factors: set[str] = field(default_factory=set)
    held: list[str] | None = None
    rows: int = 0
    joint_rows: set[str] = field(default_factory=set)
    data: list[DataOfPlates] = field(default_factory=list)
    kept: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def warnings(self) -> list[str]:
        """What is wrong with the densities."""
        notes = (
            came_from_prior(self.forgotten),
            drawn_outside(self.outside),
            warning_of_factors(self.factors) if self.factors else "",
            *(self.held or ()),
        )
        return [text for text in notes if text]


def mean_densities(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    num_samples: int,
    seed: int,
    noted: Noted | None = None,
) -> Tensor:
    """
    :func:`log_predictive_density` without its checks and warnings.

    :param model: see there.
    :param guide: see there.
    :param tuple args: positional arguments of both.
    :param dict kwargs: keyword arguments of both.
    :param int num_samples: draws.
    :param int seed: of the draws.
    :param noted: gets what is to be told of the runs.
    :returns: shape ``(number of data,)``, of those that are not masked under every draw.
    :raises SiteError: see there.
    """
    total: Any = None
    kept: Any = None
    noted = noted or Noted()
    with evaluation_mode():  # around all draws: what is told of it is told once
        draws = DrawsOneByOne(guide, args, kwargs, num_samples, seed)
        for index in range(num_samples):
            with RandomStream(mixed_seed(seed, index, 0)), explained_errors(args, kwargs, guide):
                latents = draws.at(index)
                one, counted = _log_densities(model, latents, draws.order, args, kwargs, noted)
            if latents and not noted.met:
                raise of_another_model(latents)
            if total is None:
                total, kept = one, counted
            else:
                total, kept = torch.logaddexp(total, one), kept | counted  # masks may follow draws
    if not bool(kept.any()):
        raise NothingToScore("all observations are masked, so that there is nothing to score.")
    noted.kept = kept
    densities: Tensor = (total - math.log(num_samples))[kept]
    return densities


class _Densities:
    """
    The log-densities of all data under one draw.

    :param dict latents: values of the guide's latents by name.
    :param noted: gets what is to be told of the run.
    """

    def __init__(self, latents: dict[str, Tensor], noted: Noted) -> None:
        self.latents, self.noted = latents, noted
        #: of each site with data its name, its plates, its densities, and whether each counts
        self.parts: list[tuple[str, Any, Tensor, Tensor]] = []
        self.dims: dict[str, int] = {}

    def clear(self) -> None:
        """Forgets the densities that were met so far."""
        self.parts.clear()

    def of_data(self, held: HeldSites, parents: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Densities, and whether they count, of the data of each set of plates."""
        data: dict[Any, Tensor] = {}
        kept: dict[Any, Tensor] = {}
        own = held.data([name for name, *_ in self.parts])
        parameters = held.sites.keys() - own
        if self.noted.held is None:
            self.noted.held = held.warnings(own, parents)
        for name, key, value, notes in self.parts:
            if name not in parameters:
                data[key] = data[key] + value if key in data else value
                kept[key] = kept[key] | notes if key in kept else notes
        if self.noted.data:  # the order of the first run, which latents may turn
            keys = [one.key for one in self.noted.data]
            if set(keys) != data.keys():
                raise SiteError(
                    "the model observes other data at one draw of the latents than at another: "
                    f"once in plates {_plates(keys)}, and once in {_plates(data)}. Observe the "
                    "same ones at all, and mask those that do not count."
                )
            data = {key: data[key] for key in keys}
        self.noted.data = [
            DataOfPlates(key, {n: self.dims[n] for n, one in key if one is None}, value.shape)
            for key, value in data.items()
        ]
        return list(data.values()), [kept[key] for key in data]

    def visit(self, site: Any) -> None:
        """Looks at a site of the model, and adds its density where it is of data."""
        marginal = site["infer"].get("marginal_of", ())  # sites that one density stands for
        self._look(site, marginal)
        if not self._is_of_data(site, marginal):
            return
        if is_joint_of_rows(site, self.noted.rows):
            self.noted.joint_rows.add(site["name"])
        frames = sorted(
            (f.name, None if f.vectorized else f.counter) for f in site["cond_indep_stack"]
        )
        self.dims.update({f.name: f.dim for f in site["cond_indep_stack"] if f.vectorized})
        value = pointwise_log_prob(site)
        refuse_data_without_density(site, value)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        notes = counted_in_sum(site, value.shape) if marginal else counted(site)
        if marginal and data_in_sum(site):  # a factor beside masked data counts nothing
            value = torch.where(notes, value, 0.0)
        self.parts.append((site["name"], tuple(frames), value, notes))

    def _look(self, site: Any, marginal: Any) -> None:
        """Notes latents that the guide leaves out, or draws where the prior never would."""
        if is_factor_of_rows(site):
            self.noted.factors.add(site["name"])
        if site_is_factor(site) and "marginal_of" not in site["infer"]:
            self.noted.all_factors.add(site["name"])
        if marginal:
            drawn = [name for name in marginal if name in self.latents]
            if drawn and len(drawn) < len(marginal):
                raise inseparable(drawn, site["name"])
            refuse_undrawn(site, self.latents)
        self.noted.met.update({site["name"], *marginal} & self.latents.keys())
        if site["name"] in self.latents and is_outside(site["fn"], site["value"]):
            self.noted.outside[site["name"]] = own_support(site["fn"])
        is_latent = is_latent_of_model(site) and site["name"] not in self.latents
        is_latent &= site.get("_intervener_id") is None  # poutine.do: no value of it is used
        if is_latent and not (marginal or site["infer"].get("enumerate")):
            self.noted.forgotten.add(site["name"])

    def _is_of_data(self, site: Any, marginal: Any) -> bool:
        if not site["is_observed"] or site["name"] in self.latents or is_delta(site):
            return False
        if marginal:
            return not all(name in self.latents for name in marginal)
        return not is_auxiliary(site)


def _plates(keys: Iterable[Any]) -> list[list[str]]:
    return [[name for name, _ in key] for key in keys]


def _log_densities(
    model: Callable[..., Any],
    latents: dict[str, Tensor],
    order: RowOrder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    noted: Noted,
) -> tuple[Tensor, Tensor]:
    """The log-densities of all data under one draw, and whether each is not masked."""
    found = _Densities(latents, noted)
    with OwnSubsample(sizes_of_arguments(args, kwargs)), HeldSites(latents) as held:
        try:
            with NoticeEnumeration():
                run_model(model, args, kwargs, found.visit, values=latents, order=order)
        except EnumerationNeeded:
            found.clear()
            run_summed_out(model, args, kwargs, found.visit, values=latents, order=order)
    if not found.parts and noted.all_factors:
        raise SiteError(warning_of_factors_alone(noted.all_factors))
    if not found.parts:
        raise SiteError(
            "the model observes nothing with these arguments, so there is no predictive density: "
            "a validation batch needs the observations too, as a training batch does."
        )
    data, kept = found.of_data(held, lambda: upstream_sites(model, args, kwargs, latents))
    return torch.cat([one.reshape(-1) for one in data]), torch.cat([k.reshape(-1) for k in kept])
