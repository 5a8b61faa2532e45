"""Guides that look at the data's inputs: each row has its own distribution of the parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_counts, check_flag, check_instance, shown
from pyro_implicit._memory import check_fits
from pyro_implicit._params import emit_params, take_loaded
from pyro_implicit._random import seed_torch
from pyro_implicit._signature import arguments_by_place, places_of
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.distributions.implicit_sites import draw_site
from pyro_implicit.exceptions import (
    ArgumentError,
    NonFiniteError,
    ShapeError,
    SiteError,
    StateError,
)
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.context import check_context, read_context
from pyro_implicit.guides.created_plates import created_plates
from pyro_implicit.guides.diverged import refuse_spoilt_draws
from pyro_implicit.guides.initialization.initial import init_to_fan_in
from pyro_implicit.guides.latent_site import LatentSite, PlateFrame
from pyro_implicit.guides.row_site import read_row_site
from pyro_implicit.handlers.flat_latents import by_site
from pyro_implicit.ops.logdet import is_zero

__all__ = ["ConditionalGuide"]

_FLAGS_IN_STATE = ("shared_noise", "model_chooses", "own_context")


class ConditionalGuide(ImplicitGuide):
    """
    The base of guides whose latents are local to a plate of rows and depend on each row's context.

    A subclass fills :meth:`_make_sampler`.

    Example::

        class GaussianGuide(ConditionalGuide):
            def _make_sampler(self, sites, start):
                return MixtureDensityNetwork(self._context_dim, start.loc, hidden_dims=(32,))

        num_data = len(x)
        net = BayesianModule(nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), local=True)

        def model(x, y=None):  # each row has weights of its own
            with pyro.plate("data", num_data, subsample_size=len(x)):
                f = net(x).squeeze(-1)
                return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

        fit(model, GaussianGuide(model), x, y, objective=PosteriorPredictiveLoss(10), seed=0)

    :param model: a Pyro model all of whose latents are in one plate, that of the rows, and in no
        other.
    :param context: see :class:`~pyro_implicit.ConditionalHyperNetworkGuide`.
    :param bool shared_noise: see there.
    :param options: ``init_loc_fn``, ``scale``, ``learn_scale``, ``factorized`` and
        ``create_plates``, see :class:`~pyro_implicit.guides.ImplicitGuide`.
    :raises ArgumentError: for ``init_from`` (here None by default), which looks for one
        distribution of the latents, or a ``context`` that is no function.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        context: Callable[..., Any] | None = None,
        shared_noise: bool = False,
        **options: Any,
    ) -> None:
        if options.setdefault("init_from", None) is not None:
            raise ArgumentError(
                "init_from is one Gaussian for all rows; a conditional guide has one for each. "
                "Give init_loc_fn (e.g. the init_to_module of a BayesianModule) instead."
            )
        check_context(context)
        super().__init__(model, **options)
        self._context: list[Any] = [None if isinstance(context, nn.Module) else context]
        self.context_network = context if isinstance(context, nn.Module) else None
        self.shared_noise = check_flag("shared_noise", shared_noise)
        self._context_dim: int | None = None
        self._first_context: Tensor | None = None  # while the guide is built
        self._model_chooses = False  # among the rows it is given; else they come as minibatches
        self._own_context = callable(self._context[0])  # which a saved guide leaves behind

    _default_init_loc_fn: Callable[[dict[str, Any]], Tensor] = staticmethod(init_to_fan_in)

    @property
    def is_bijective_given_context(self) -> bool:
        """
        Whether noise and draw of each row determine each other for certain, at its context.

        :raises StateError: before the guide is built.
        """
        silent = all(is_zero(sampler.scale) for _, _, sampler in self._groups())
        return silent and self.never_folds and not self.shared_noise

    # ---- what it looks at

    def read_context(self, *args: Any, **kwargs: Any) -> Tensor:
        """
        Reads from the model's arguments what the guide is conditioned on.

        :param args: the model's arguments.
        :param kwargs: its keyword arguments.
        :returns: what the guide is conditioned on, shape ``(rows, k)``.
        :raises ArgumentError: if there is no such tensor among them.
        :raises ShapeError: for another ``k`` than the guide was built with.
        :raises StateError: if it was saved and its own context function is not there.
        """
        if self._own_context and self._context[0] is None:
            raise StateError(
                "this guide was conditioned by a context function of its own, which is not stored "
                "with it. Make the guide as it was, with context=..., and load its state_dict()."
            )
        context = self._own_network or self._context[0]
        if context is None:
            args = arguments_by_place(self._names_of_arguments(), args, kwargs)
        value = read_context(context, args, kwargs)
        self._check_context(value)
        return value

    def _names_of_arguments(self) -> list[str]:
        """Of the model by place, which a guide that was loaded without it has in its state."""
        model, call = self._bare_model[0], self.first_call
        if model is not None or call is None:
            return places_of(model)
        return list(call.names)

    @property
    def _own_network(self) -> nn.Module | None:
        """``context_network``; Pyro's own access hangs weak references on it, against pickling."""
        return self._modules.get("context_network")

    def _check_context(self, context: Any) -> None:
        check_instance("the context", context, Tensor, "a tensor with one row per datum")
        found = context.shape[-1] if context.dim() == 2 else tuple(context.shape)
        if context.dim() != 2 or self._context_dim not in (None, context.shape[-1]):
            raise ShapeError(
                f"the context has {found} entries per row; the guide was built with "
                f"{self._context_dim}."
            )

    @property
    def row_frame(self) -> PlateFrame:
        """
        The plate of the rows, as it was when the guide was built.

        :raises StateError: before the guide is built.
        """
        return self.sites[0].frames[0]

    # ---- building

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        self._context_dim = None
        self._first_context = self.read_context(*args, **kwargs).detach()
        _check_finite(self._first_context)
        self._context_dim = self._first_context.shape[-1]
        try:
            super()._setup_prototype(*args, **kwargs)
            self._check_rows(len(self._first_context))
            self._model_chooses = self.row_frame.size < len(self._first_context)
        finally:
            self._first_context = None
        names = {frame.name for site in self.sites for frame in site.frames}
        if len(names) > 1:
            self._sites = None
            raise SiteError(
                f"the latents are local to plates {sorted(names)}; a conditional guide serves one "
                "plate of rows. Write one guide for each, in an AutoGuideList."
            )

    def _check_rows(self, count: int) -> None:
        """The context has a row for each that the model shows, or for each that it has."""
        frame = self.row_frame
        if count not in (frame.size, frame.full_size):
            self._sites = None
            raise ShapeError(
                f"the context has {count} rows, and plate {frame.name!r} of the model shows "
                f"{frame.size} of {frame.full_size}; expected one row for each of these, such as "
                "context=lambda x, y=None: x."
            )

    def _read_site(self, node: dict[str, Any]) -> tuple[LatentSite, Tensor]:
        return read_row_site(node)

    # ---- drawing

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Draws all latents of all rows once, as Pyro sample sites.

        :returns: constrained values by site.
        """
        if self._sites is None:
            self._setup_prototype(*args, **kwargs)
        emit_params(f"{self._pyro_name}.samplers", self.samplers, is_whole=False)
        if self._own_network is not None:
            emit_params(f"{self._pyro_name}.context_network", self._own_network, is_whole=False)
        context = self.read_context(*args, **kwargs)
        plate, context = self._rows(context, args, kwargs)
        draws = math.prod(f.size for f in pyro.poutine.runtime.get_plates() if f.vectorized)
        self._check_fits(draws * len(context))
        context = self._aligned(context)
        result = {}
        for name, sites, sampler in self._groups():
            flat = self._sample_rows(name, sampler.distribution(context), sites, plate)
            for site, part in by_site(flat, sites):
                value, log_density = site.constrain(site.unpack(part))
                fn = dist.Delta(value, log_density=log_density, event_dim=site.event_dim)
                with plate:
                    result[site.name] = pyro.sample(site.name, fn)
        return result

    def _sample_rows(
        self, name: str, fn: Any, sites: list[LatentSite], plate: pyro.plate
    ) -> Tensor:
        """The flat unconstrained latents of one part, shape ``(*batch, rows, ..., numel)``."""
        latents = tuple(site.name for site in sites)
        packed = partial(_no_pack, latents)
        if self.shared_noise and isinstance(fn, ImplicitDistribution):
            return draw_site(name, fn, latents, True, packed, shared_over=plate)
        with plate:
            if isinstance(fn, ImplicitDistribution):
                return draw_site(name, fn, latents, True, packed)
            auxiliary: Any = {"is_auxiliary": True}
            return pyro.sample(name, fn, infer=auxiliary)

    def _rows(
        self, context: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[pyro.plate, Tensor]:
        """
        The plate of the rows, and the context of those that it shows.

        These are all that were passed, or, where the model itself chooses among them, the guide's
        choice. Of rows that were passed the guide does not know the numbers, and says nothing of
        them: the model has its own.
        """
        frame, rows = self.row_frame, len(context)
        own = created_plates(self, args, kwargs) if self.create_plates or self.master else {}
        plate = own.get(frame.name)
        if plate is None:
            chooses = self._model_chooses and frame.size < frame.full_size == rows
            chosen = None if chooses else torch.arange(rows, device=context.device)
            with nullcontext() if chooses else poutine.block(hide=[frame.name]):
                plate = pyro.plate(
                    frame.name,
                    max(frame.full_size, rows),
                    subsample_size=frame.size if chooses else rows,
                    subsample=chosen,
                    dim=frame.dim,
                )
        if rows == plate.subsample_size:
            return plate, context
        if rows != plate.size:
            raise ShapeError(
                f"the context has {rows} rows, but plate {frame.name!r} shows "
                f"{plate.subsample_size} of {plate.size}; expected one of these numbers. The "
                "guide's create_plates must return the model's plate (for an AutoGuideList, its "
                "create_plates)."
            )
        return plate, context[plate._indices]

    def _shared_plates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return created_plates(self, args, kwargs)  # rows are known by their context

    def _aligned(self, context: Tensor) -> Tensor:
        """The context with its rows at the place of their plate."""
        return context.reshape(-1, *[1] * (-self.row_frame.dim - 1), context.shape[-1])

    def _check_fits(self, rows: int) -> None:
        loc = next(self.samplers.parameters())
        check_fits(
            rows * self.latent_dim,
            loc.dtype,
            loc.device,
            f"{self.latent_dim} parameters for each of {rows} rows and draws",
            "Use smaller minibatches, fewer vectorised particles, batch_size in predict, or make "
            "fewer parameters local.",
        )

    @torch.no_grad()
    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Draws from the posterior of each row, in the latents' own spaces.

        :param int num_samples: number of draws.
        :param args: arguments of the model, of which the context is read.
        :param kwargs: its keyword arguments, likewise.
        :returns: constrained draws by site, shape ``(num_samples, rows, *event_shape)``, with the
            dimensions of size 1 that the plate's place needs.
        :raises ArgumentError: without the arguments.
        :raises NonFiniteError: for a context, or draws, that are not finite.
        """
        num_samples = check_count("num_samples", num_samples)
        self.samplers  # noqa: B018 (the error if there are none)
        return self.sample_at(num_samples, self.read_context(*args, **kwargs))

    @torch.no_grad()
    def sample_at(
        self, num_samples: int, context: Tensor, seeds: tuple[int, int] | None = None
    ) -> dict[str, Tensor]:
        """
        Draws for rows whose context was read before.

        :param int num_samples: number of draws.
        :param torch.Tensor context: what :meth:`read_context` returned, or some rows of it, shape
            ``(rows, k)``.
        :param seeds: of the noise that all rows share and of the rest, so that rows can be drawn
            in pieces.
        :returns: as of :meth:`sample`, shape ``(num_samples, rows, *event_shape)``.
        :raises ArgumentError: for values outside of these.
        :raises NonFiniteError: for a context, or draws, that are not finite.
        :raises ShapeError: for another context than the guide was built with.
        """
        num_samples = check_count("num_samples", num_samples)
        self._check_context(context)
        _check_finite(context)
        take_loaded(f"{self._pyro_name}.samplers", self.samplers, is_whole=False)
        if seeds is not None:
            first, second = check_counts("seeds", seeds, 0, length=2)
            seeds = (first, second)
        self._check_fits(num_samples * len(context))
        context = self._aligned(context)
        draws = {}
        for part, (_, sites, sampler) in enumerate(self._groups()):
            fn, rows = sampler.distribution(context), context.shape[:-1]
            if isinstance(fn, ImplicitDistribution):
                noise_rows = [1] * len(rows) if self.shared_noise else rows
                _seed(seeds, 0 if self.shared_noise else 1, part)
                noise = fn.base_dist.expand(noise_rows).sample((num_samples,))
                fn = fn.given(noise.expand(num_samples, *rows, -1))
                _seed(seeds, 1, part + len(self._parts))
                flat = fn.sample()
            else:
                _seed(seeds, 1, part)
                flat = fn.sample((num_samples,))
            refuse_spoilt_draws(flat, self)
            for site, piece in by_site(flat, sites):
                draws[site.name] = site.value(site.unpack(piece))
        return draws

    # ---- saving

    def get_extra_state(self) -> dict[str, Any]:
        """See :meth:`ImplicitGuide.get_extra_state`."""
        extra: dict[str, Any] = {"context_dim": self._context_dim}
        extra |= {"shared_noise": self.shared_noise, "model_chooses": self._model_chooses}
        extra["own_context"] = self._own_context
        return super().get_extra_state() | extra

    def set_extra_state(self, state: Any) -> None:
        """
        See :meth:`ImplicitGuide.set_extra_state`.

        :raises StateError: also if it was conditioned on something of another size.
        """
        saved = isinstance(state, dict) and state.get("sites") is not None
        if saved:
            dim = state.get("context_dim")
            flags = {name: state.get(name) for name in _FLAGS_IN_STATE}
            if type(dim) is not int or dim < 0 or any(type(f) is not bool for f in flags.values()):
                notes = ", ".join(f"{name}={shown(flag)}" for name, flag in flags.items())
                raise StateError(
                    f"the state has context_dim={shown(dim)}, {notes}; "
                    "expected a number of entries, and True or False."
                )
            if self._sites is not None and self._context_dim != dim:
                raise StateError(
                    f"the state has a context of {dim} entries per row; this guide "
                    f"was built with {self._context_dim}."
                )
        super().set_extra_state(state)
        if saved:
            self._context_dim, self.shared_noise = dim, flags["shared_noise"]
            self._model_chooses, self._own_context = flags["model_chooses"], flags["own_context"]

    def __getstate__(self) -> dict[str, Any]:
        # often a lambda, which cannot be pickled
        return {**super().__getstate__(), "_context": [None]}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        clone = super().__deepcopy__(memo)
        clone.__dict__["_context"] = copy.copy(self._context)
        return clone


def _no_pack(latents: tuple[str, ...], values: dict[str, Tensor], num_samples: int) -> Tensor:
    """
    Refuses objectives that compare draws.

    :raises SiteError: always: an objective that compares draws fits one ratio to all of them.
    """
    raise SiteError(
        f"{num_samples} prior draws of latents {list(latents)} cannot be compared with those of a "
        "conditional guide, which has a distribution for each row, whether it shows some "
        "of the rows "
        "or all. Use contrast='adaptive'."
    )


def _seed(seeds: tuple[int, int] | None, which: int, offset: int) -> None:
    if seeds is not None:
        seed_torch((seeds[which] + offset) % 2**63)


def _check_finite(context: Tensor) -> None:
    bad = ~context.isfinite().all(-1)
    if bool(bad.any()):
        raise NonFiniteError(
            f"the context of {int(bad.sum())} of {len(bad)} rows is not finite, first of row "
            f"{int(bad.nonzero()[0])}: their draws would be NaN. Leave these rows out, or give the "
            "guide a context without missing entries, such as "
            "context=lambda x, y=None: torch.cat([x.nan_to_num(), x.isnan()], -1)."
        )
