"""One simulation of simulation-based calibration: draw, fit, rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer.autoguide import AutoCallable, AutoGuide, AutoGuideList
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.diagnostics._data_places import DataPlaces
from pyro_implicit.diagnostics._unconstrained import constrained_draws
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, SiteError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.unbuilt import is_unbuilt
from pyro_implicit.handlers.pointwise import (
    is_auxiliary,
    is_delta,
    is_latent_of_model,
    run_model,
)

__all__ = ["Quantity", "Simulation", "accepts", "isolated", "simulate"]

#: of the values of the latents (with draws in front, or not) and the data
Quantity = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Simulation:
    """
    Everything that one simulation needs, so that it can be run in another process.

    :param model: a Pyro model.
    :param fit: from the data by site to a guide or to draws.
    :param DataPlaces places: arguments of the model, and where in them the data are.
    :param observed: names of the sites that are data.
    :param int num_samples: draws that each value is ranked among.
    :param quantities: further numbers to rank.
    :param int seed: of all simulations.
    """

    model: Callable[..., Any]
    fit: Callable[[dict[str, Tensor]], Any]
    places: DataPlaces
    observed: tuple[str, ...]
    num_samples: int
    quantities: Mapping[str, Quantity]
    seed: int

    def __call__(self, number: int) -> dict[str, Tensor]:
        """
        Runs one simulation and one fit.

        :param int number: which simulation.
        :returns: the rank of each latent entry and quantity among the draws, ``0 ... num_samples``.
        """
        with isolated(self.seed, number):
            values = simulate(self.model, self.places.args, self.places.kwargs, self.observed)
            data = {name: values[name] for name in self.observed}
            fitted = self.fit(dict(data))
            with torch.no_grad():
                draws = constrained_draws(fitted, self.num_samples, *self._call(fitted, data))
                return self._ranks(values, data, draws)

    def _call(self, fitted: Any, data: dict[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The guide's arguments: the simulated data wherever the caller's would reach it."""
        if self.places.lost and may_look_at_arguments(fitted):
            raise SiteError(
                f"the data of sites {list(self.places.lost)} are computed inside the model, not "
                f"passed to it as they are, so that simulated ones cannot be passed to the guide "
                f"({type(fitted).__name__}) in their place. Let fit return draws: "
                f"posterior_draws(guide, {self.num_samples}, ...), called with its data"
            )
        call = self.places.fill(data)
        return call if accepts(fitted, *call) else self.places.without_names().fill(data)

    def _ranks(
        self, values: dict[str, Tensor], data: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        unknown = sorted(set(draws) - set(values))
        if unknown:
            raise SiteError(
                f"fit returned draws of sites {unknown}, which the model does not have; it has "
                f"{sorted(values)}"
            )
        for name, drawn in draws.items():
            if drawn.shape[1:] != values[name].shape:
                raise ShapeError(
                    f"fit returned draws of site {name!r} of shape {tuple(drawn.shape)}; expected "
                    f"{(self.num_samples, *values[name].shape)}: the site's own shape after the "
                    "draws."
                )
        ranks = {name: _rank(draws[name], values[name]) for name in draws}
        taken = sorted(set(ranks) & set(self.quantities))
        if taken:
            raise ArgumentError(f"quantities {taken} have the names of sites; rename them")
        for name, quantity in self.quantities.items():
            truth = _number_of(name, quantity, {site: values[site] for site in draws}, data)
            each = [
                _number_of(name, quantity, {site: v[s] for site, v in draws.items()}, data)
                for s in range(self.num_samples)
            ]
            if any(one.shape != truth.shape for one in each):
                raise ShapeError(
                    f"quantities[{name!r}] has other shapes at other values: "
                    f"{sorted({tuple(one.shape) for one in (truth, *each)})}; expected one shape."
                )
            ranks[name] = _rank(torch.stack(each), truth)
        return ranks


def _number_of(
    name: str, quantity: Quantity, values: Mapping[str, Tensor], data: Mapping[str, Tensor]
) -> Tensor:
    """What a user's function makes of latents, which are called what they are in the model."""
    try:
        found = torch.as_tensor(quantity(values, data))
    except (KeyError, TypeError) as error:
        raise ArgumentError(
            f"quantities[{name!r}] could not be evaluated ({type(error).__name__}: {error}); "
            "expected a function of the latents and of the data, by site, that returns numbers: "
            f"lambda values, data: ... of values with {sorted(values)} and data with "
            f"{sorted(data)}."
        ) from error
    if bool(found.isnan().any()):
        raise NonFiniteError(
            f"quantities[{name!r}] is NaN at a draw, which has no rank; expected numbers at all "
            "values that latents may take."
        )
    return found


def simulate(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    observed: tuple[str, ...],
) -> dict[str, Tensor]:
    """
    Draws latents and data from a model.

    :param model: a Pyro model.
    :param tuple args: its arguments.
    :param dict kwargs: its keyword arguments.
    :param observed: names of the sites that are data, drawn whether the model observes them or not.
    :returns: one draw of every latent and of the data, from the model alone.
    :raises SiteError: if a data site is not in the model.
    """
    values: dict[str, Tensor] = {}

    def visit(site: Any) -> None:
        if is_latent_of_model(site) or not (is_auxiliary(site) or is_delta(site)):
            values[site["name"]] = site["value"]

    run_model(model, args, kwargs, visit, unobserve=observed)
    missing = sorted(set(observed) - set(values))
    if missing:
        raise SiteError(f"observed names {missing}; the model has {sorted(values)}")
    return values


def may_look_at_arguments(guide: Any) -> bool:
    """
    Whether draws of a guide may depend on the arguments.

    :param guide: a guide, or draws by site.
    :returns: whether draws may depend on the arguments. The unconditional guides of this package
        do not look at them, and Pyro's do so once, when they are set up.
    """
    if isinstance(guide, AutoGuideList):
        return any(may_look_at_arguments(part) for part in guide)
    if isinstance(guide, ImplicitGuide):
        return isinstance(guide, ConditionalGuide)
    if isinstance(guide, AutoGuide) and not isinstance(guide, AutoCallable):
        return is_unbuilt(guide)
    return callable(guide) and not callable(getattr(guide, "sample", None))


def accepts(guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """
    Whether a guide can be called with some arguments.

    :param guide: a guide, or draws by site.
    :returns: whether it can be called like that, as far as its signature tells.
    """
    function = guide.forward if isinstance(guide, torch.nn.Module) else guide
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one that hides its signature
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@contextmanager
def isolated(seed: int, number: int) -> Iterator[None]:
    """
    A seed and an empty parameter store of its own; the caller's are as they were afterwards.

    :param int seed: of all simulations.
    :param int number: which simulation.
    """
    stream = RandomStream(seed * 1_000_003 + number)
    with stream, pyro.get_param_store().scope():
        yield


def _rank(draws: Tensor, value: Tensor) -> Tensor:
    """How many draws are below the value; ties are broken at random."""
    value = torch.as_tensor(value).to(draws)
    below, equal = (draws < value).sum(0), (draws == value).sum(0)
    return below + (torch.rand(equal.shape).to(equal.device) * (equal + 1)).long()
