"""A fitted guide itself as the prior of the next data."""

# Shape legend: d entries of all noise.
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_implicit._checks import (
    check_guide,
    check_model,
    check_number,
    check_text,
)
from pyro_implicit.bayesian.sampled_sites import check_met
from pyro_implicit.exceptions import ArgumentError, GuideError, SiteError, StateError
from pyro_implicit.guides.argument_dims import rows_of_first_call
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.rows.row_slices import rows_of
from pyro_implicit.handlers.rows.same_rows import SameRows
from pyro_implicit.inference.noise_map import NoiseMap

__all__ = ["GuidePrior", "check_all_rows"]

_NAME_OF_NOISE_SITE = "prior_noise"  # with a number behind it where priors follow each other


class GuidePrior(nn.Module):
    r"""
    An implicit posterior as a prior, whole: the latents are what its network makes of noise.

    ``prior(model)`` is the model with one latent in place of the guide's, the guide's noise, which
    is standard normal; the sites of the guide are deterministic functions of it. So nobody has to
    evaluate the density of the guide, and every guide, objective and chain takes the model. Nothing
    is lost, neither modes nor bent ridges; what a guide has no draws of can never come back,
    whatever the new data say.

    Each update puts one more network between noise and latents: ``n`` updates cost ``n`` networks.
    Handlers within the model that scale or mask the sites' own priors do not reach the noise's.

    Example::

        prior = GuidePrior(guide)                         # fitted to yesterday's data
        model_today = prior(model)
        guide_today = HyperNetworkGuide(model_today)
        fit(model_today, guide_today, x, y)               # today's alone
        predict(model_today, guide_today, x, num_samples=100)

    The guide is copied, without gradients: training it further changes nothing here.

    :param ImplicitGuide guide: a guide that is built.
    :param float widen: the deviation of the noise, 1 in the guide: above 1 for what drifts, so that
        the old data count less and less.
    :param str noise_name: of the new latent; by default ``"prior_noise"``, and another one after
        each update. Two priors of different sites of one model need two names.
    :raises ArgumentError: for a ``widen`` that is no positive number, or a name that is none.
    :raises GuideError: for any other guide, and a conditional one.
    :raises SiteError: for latents in a plate that showed some of its rows.
    :raises StateError: for a guide that is not built yet.
    """

    widen: Tensor

    def __init__(
        self, guide: ImplicitGuide, *, widen: float = 1.0, noise_name: str | None = None
    ) -> None:
        super().__init__()
        self._map = NoiseMap(_checked(guide))
        scale = torch.tensor(check_number("widen", widen, above=0))
        self.register_buffer("widen", scale.to(self._map.like))
        for site in self._map.sites:
            check_all_rows(site)
        sizes = [(site.name, [f.full_size for f in site.frames]) for site in self._map.sites]
        self._same_rows = SameRows(rows_of_first_call(guide), sizes)
        #: name of the one latent of the new model
        self.noise_name = (
            _next_name(self.names) if noise_name is None else check_text("noise_name", noise_name)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites that it stands in for."""
        return tuple(site.name for site in self._map.sites)

    @property
    def noise_dim(self) -> int:
        """Number ``d`` of entries of the noise, output noise included."""
        return self._map.noise_dim

    def forward(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """
        Replaces the priors of a model's sites.

        :param model: the model that the guide was fitted to, or one with the same sites.
        :returns: a model of the latent :attr:`noise_name`, shape ``(d,)``, and of what else the
            model samples. When it is run it raises :class:`SiteError` if it samples none of the
            sites, observes one, or has one in other plates, of another shape or on another support,
            and warns once of those that it does not sample, and of latents of rows when it is run
            on as many other ones.
        :raises ArgumentError: if the model cannot be called, or is a guide or a prior.
        """
        if isinstance(model, (AutoGuide, GuidePrior)):
            raise ArgumentError(
                f"model is a {type(model).__name__}; expected the model that the guide was fitted "
                "to. Write prior(model), and a new guide: HyperNetworkGuide(prior(model))."
            )
        return _FromNoise(self)(self._same_rows.watch(check_model(model)))

    def get_extra_state(self) -> dict[str, Any]:
        """What its state holds beside tensors: the sites."""
        return {"names": list(self.names), "noise_name": self.noise_name}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """
        Takes what :meth:`get_extra_state` returned.

        :param dict state: of a prior of the same sites.
        :raises StateError: if it is of other sites.
        """
        if state["names"] != list(self.names):
            raise StateError(
                f"the state has sites {state['names']}; this prior has {list(self.names)}. Make "
                "the prior of a guide of the same model first."
            )
        self.noise_name = state["noise_name"]

    def transform_sample(self, noise: Tensor) -> dict[str, Tensor]:
        """
        Maps draws of the new model's latent to the model's own.

        :param torch.Tensor noise: shape ``(..., d)``.
        :returns: constrained values by site, shape ``(..., *site_shape)``.
        :raises ArgumentError: if it is no tensor.
        :raises ShapeError: for another size.
        """
        return self._map.transform_sample(noise, self.noise_name)

    def _draw(self) -> dict[str, Tensor]:
        zeros = self._map.like.new_zeros(self.noise_dim)
        base = dist.Normal(zeros, self.widen.expand_as(zeros), validate_args=False).to_event(1)
        return self._map.values(pyro.sample(self.noise_name, base))  # theory/after.md (guide-prior)

    def extra_repr(self) -> str:
        """What it makes of what, for ``repr``."""
        return f"{len(self.names)} sites of {self.noise_dim} entries of noise"


class _Outer(Messenger):
    """Notes the plates that are around a site."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def _pyro_post_sample(self, msg: Any) -> None:
        self.names = {frame.name for frame in msg["cond_indep_stack"]}


class _FromNoise(Messenger):
    """Makes the sites of a guide deterministic functions of its noise."""

    def __init__(self, prior: GuidePrior) -> None:
        super().__init__()
        self._prior, self._is_checked = prior, False
        self._sites = {site.name: site for site in prior._map.sites}
        self._values: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}  # that the model's plates show, by name
        self._outer: set[str] = set()
        self._given: dict[str, Tensor] = {}
        self._seen: list[str] = []

    def __enter__(self) -> Any:
        with _Outer() as outer:
            self._values = self._prior._draw()
        self._outer, self._seen, self._rows, self._given = outer.names, [], {}, {}
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        self._values, self._given = {}, {}
        if kind is None and not self._is_checked:
            remedy = "If that is meant, fit a guide of the sites that both models have."
            check_met(self._prior.names, self._seen, remedy)
            self._is_checked = True  # a branch may leave some out in another run

    def _pyro_sample(self, msg: Any) -> None:
        site = self._sites.get(msg["name"])
        if site is None:
            return
        if msg["value"] is not None and msg["value"] is self._given.get(site.name):
            return  # poutine.do sends it once more
        _check_free(msg)
        frames = [f for f in msg["cond_indep_stack"] if f.vectorized and f.name not in self._outer]
        _check_same(site, msg["fn"], frames)
        value, event_dim = self._values[site.name], site.event_dim
        for frame in frames:
            rows = self._rows.get(frame.name)
            if rows is not None:
                value = rows_of(value, frame.dim - event_dim, rows)
        self._seen.append(site.name)
        self._given[site.name] = value
        msg["fn"] = dist.Delta(value, event_dim=event_dim, validate_args=False).mask(False)
        msg["value"], msg["is_observed"] = value, True
        msg["infer"] = {**(msg["infer"] or {}), "_deterministic": True}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self._rows[msg["name"]] = msg["value"]
        given = self._given.get(msg["name"])
        if given is not None and msg["value"] is not given:
            raise SiteError(
                f"site {msg['name']!r} was given a value (condition, substitute, Predictive), and "
                f"is what the guide makes of the noise: condition {self._prior.noise_name!r}, "
                "whose draws prior.transform_sample maps to the sites."
            )


def _check_free(msg: Any) -> None:
    """Refuses a site that the model is told the value of."""
    if msg["is_observed"] or msg["value"] is not None:
        raise SiteError(
            f"site {msg['name']!r} has a value in this model (obs=, condition, deterministic), and "
            "the guide draws it: how dense its draws are at a value nobody knows. Leave it free, "
            "fit yesterday's guide without it (poutine.block(model, hide=[...])), or take its "
            "moments: prior_from(guide)."
        )


def _check_same(site: LatentSite, fn: Any, frames: list[Any]) -> None:
    """Refuses a site of another shape, support or other plates than the guide's."""
    event = tuple(site.shape[len(site.shape) - site.event_dim :])
    found = {frame.dim: frame.full_size or frame.size for frame in frames}
    expected = {frame.dim: frame.full_size for frame in site.frames}
    if tuple(fn.event_shape) != event or found != expected:
        raise SiteError(
            f"site {site.name!r} has event shape {tuple(fn.event_shape)} and plates {found} "
            f"(size by dimension) in this model, and {event} and {expected} in that of the guide. "
            "Use the model that the guide was fitted to, with plates of the same rows; latents of "
            "new rows keep their own prior under another name."
        )
    site.check_prior(fn)


def check_all_rows(site: LatentSite) -> None:
    """
    Refuses latents of rows that were not all seen.

    :param LatentSite site: a latent of a guide.
    :raises SiteError: if a plate around it showed some of its rows.
    """
    for frame in site.frames:
        if frame.size != frame.full_size:
            raise SiteError(
                f"latent {site.name!r} is in plate {frame.name!r}, which showed {frame.size} of "
                f"its {frame.full_size} rows: latents of rows are not carried on. Make the prior "
                "of those that all data share."
            )


def _next_name(taken: tuple[str, ...]) -> str:
    """A name for noise that no prior before this one can have taken."""
    numbers = [re.fullmatch(rf"{_NAME_OF_NOISE_SITE}(?:_(\d+))?", name) for name in taken]
    last = max((int(found[1] or 1) for found in numbers if found), default=0)
    return _NAME_OF_NOISE_SITE if last == 0 else f"{_NAME_OF_NOISE_SITE}_{last + 1}"


def _checked(guide: Any) -> ImplicitGuide:
    check_guide(guide)
    if not isinstance(guide, ImplicitGuide) or isinstance(guide, ConditionalGuide):
        raise GuideError(
            "a guide as a prior is an implicit one of this package with one distribution of the "
            f"latents, found {type(guide).__name__}. By their moments others are carried on too: "
            "prior_from(guide, form='low-rank')."
        )
    return guide
