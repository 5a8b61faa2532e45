"""The base of all implicit guides: from a Pyro model's latents to generators and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from pyro.infer.autoguide import AutoGuide, init_to_median
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor, nn

from pyro_implicit._checks import (
    check_callable,
    check_choice,
    check_count,
    check_model,
    check_tensors,
)
from pyro_implicit._inference_mode import refuse_inference_mode
from pyro_implicit._misspelt import check_class_options
from pyro_implicit._params import emit_params, take_loaded
from pyro_implicit._signature import leading_arguments, places_of
from pyro_implicit.distributions.implicit_sites import draw_site
from pyro_implicit.exceptions import ArgumentError, SiteError, StateError
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.guides.argument_dims import shapes_of_arguments
from pyro_implicit.guides.argument_order import is_guide
from pyro_implicit.guides.created_plates import created_plates
from pyro_implicit.guides.diverged import refuse_spoilt_draws
from pyro_implicit.guides.draw_quantiles import DrawQuantiles
from pyro_implicit.guides.first_call import FirstCall
from pyro_implicit.guides.held_data import HeldData, model_of
from pyro_implicit.guides.initialization.auto import MAX_LATENTS_FOR_HESSIAN, auto_start
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart, gaussian_start
from pyro_implicit.guides.initialization.network import is_network
from pyro_implicit.guides.initialization.prototype import (
    check_all_rows,
    forgiving,
    is_summed_out,
    unconstrained_start,
)
from pyro_implicit.guides.initialization.start_report import StartReport
from pyro_implicit.guides.latent_site import LatentSite, pack
from pyro_implicit.guides.model_parameters import ModelParameters
from pyro_implicit.guides.model_statistics import ModelStatistics
from pyro_implicit.guides.parts import Factorized, check_factorized, check_parts, divide, parts_of
from pyro_implicit.guides.sampler import Sampler, check_scale_arguments
from pyro_implicit.guides.saved_guide import SavedGuide
from pyro_implicit.guides.sequential_plates import vectorised_frames
from pyro_implicit.guides.values import check_values, unconstrain
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.flat_latents import by_site
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.networks.called_networks import CalledNetworks
from pyro_implicit.handlers.networks.still_statistics import still_statistics
from pyro_implicit.handlers.rows.numbered_rows import TakesDataByNumbers
from pyro_implicit.handlers.rows.own_subsample import RowsOfABatch, sizes_of_arguments
from pyro_implicit.handlers.rows.same_rows import fingerprint

__all__ = ["ImplicitGuide"]

_OTHER_CHOICE_OF_INIT_FROM = ", or a fitted autoguide"
_INIT_FROM_CHOICES = ("auto", None, "mean-field", "laplace", "hessian", "ggn", "full-rank")
#: in deviations of the Gaussian start, the rest of which learned output noise begins as
_GENERATOR_SD_BESIDE_NOISE = 0.1
#: where neither an argument nor a start tells the output noise
_DEFAULT_OUTPUT_NOISE_SD = 0.01
_Self = TypeVar("_Self", bound="ImplicitGuide")


class ImplicitGuide(DrawQuantiles, SavedGuide):
    """
    An :class:`~pyro.infer.autoguide.AutoGuide` whose latents are draws of a generator.

    All latents are mapped to the real line (``biject_to`` of their supports, log-Jacobians
    accounted for), flattened and generated together, so that the guide can express any dependence
    between them; with ``factorized=True`` each site has a generator of its own. Train it with an
    objective of this package (:class:`~pyro_implicit.LinearisedELBO`, ...): an ordinary ELBO
    raises, unless the generators are certain to be bijective (:attr:`is_bijective`).

    A subclass fills :meth:`_make_generator`; nothing else needs to be overridden.

    The guide is built at its first call, by :meth:`setup`, or from a saved state, which needs
    neither the data nor a call of the model. With ``init_from="auto"`` the first call also tries
    several locations and Gaussians, by at most some 1800 gradients of one draw (of a network of up
    to 256 latents 5000 more of 16 draws at once), and the guide begins as the best of them;
    :attr:`start_report` lists them. Networks of more than 256 latents begin narrow, at their own
    initial values. :doc:`Where a guide starts </howto/start>` has the procedure.

    Example::

        class WideGuide(ImplicitGuide):
            def _make_generator(self, output_dim, sites, preconditioned):
                return MLPGenerator(output_dim, output_dim, (200,), skip=True)

        fit(model, WideGuide(model), x, y, seed=0)

    :param model: a Pyro model whose latents are continuous. Discrete ones that are marked
        ``infer={"enumerate": "parallel"}`` are left out: objectives sum over their values.
    :param init_loc_fn: per-site function giving the centre of the first draws, as for Pyro's
        autoguides; without a search ``init_to_median`` by default (``init_to_fan_in`` for matrix
        guides). Sites without a density to draw from (``ImproperUniform``) start at the image of
        zero.
    :param init_from: ``"auto"``, the best of several Gaussians; None, bare at ``init_loc_fn``;
        ``"mean-field"``, ``"full-rank"``, ``"laplace"``, ``"hessian"``, ``"ggn"`` or a fitted
        Gaussian autoguide: start as that Gaussian, preconditioned by it, see
        :func:`~pyro_implicit.guides.initialization.gaussian_start.gaussian_start`.
    :param float scale: standard deviation of the output noise, in the generator's coordinates. By
        default 0 for a generator of full rank; for any other nearly all of the Gaussian that it
        begins as, or 0.01 where it begins bare or ``learn_scale`` is False (a tenth of an
        ``init_scale`` below 0.1). If it is given,
        ``init_from="auto"`` finds the location alone, and no widths and correlations; with a start
        by name the guide begins as that Gaussian, and the number is a part of it.
    :param learn_scale: False, ``"scalar"`` (one learned sigma) or ``"diagonal"`` (one per latent).
        By default the last where the noise begins as a Gaussian start, else False.
    :param factorized: which latents have a generator of their own, independent of the others:
        False (none), True (each site), ``"layer"`` (sites whose names agree up to the last dot: the
        weight and the bias of a layer), or a function from a site's name to that of its group.
    :param create_plates: function of the model's arguments that returns the plates the guide should
        share with the model, for local latents under a subsampled plate.
    :param unknown: options of other names, which are refused.
    :raises ArgumentError: for a bad ``scale``, ``learn_scale`` or ``init_from``.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_from: str | AutoGuide | None = "auto",
        scale: float | None = None,
        learn_scale: bool | str | None = None,
        factorized: Factorized = False,
        create_plates: Callable[..., Any] | None = None,
        **unknown: Any,
    ) -> None:
        self._check_hooks()
        check_class_options(type(self), unknown)
        check_model(model)
        if is_guide(model):
            raise ArgumentError(
                f"{type(self).__name__}(model) needs a Pyro model; found a guide, "
                f"{type(model).__name__}: hand over the model that it is of."
            )
        if init_loc_fn is not None:
            check_callable("init_loc_fn", init_loc_fn, "a function such as init_to_median")
        if create_plates is not None:
            check_callable("create_plates", create_plates, "a function that returns plates")
        scale = check_scale_arguments(scale, learn_scale)
        locate = InitMessenger(forgiving(init_loc_fn or self._default_init_loc_fn))
        super().__init__(  # type: ignore[no-untyped-call]
            locate(model), create_plates=create_plates
        )
        if not isinstance(init_from, AutoGuide):
            check_choice("init_from", init_from, _INIT_FROM_CHOICES, _OTHER_CHOICE_OF_INIT_FROM)
        # in lists: neither the other guide nor the model is a part of this one
        self._init_from = [init_from]
        self._bare_model: list[Any] = [model]
        self._has_location = init_loc_fn is not None
        self._is_network = False  # known once it is built
        self._guessed: float | None = None  # the first draws' deviation, as a start judged it
        self._start_report: StartReport | None = None
        self._scale = scale
        self._learn_scale = learn_scale
        check_factorized(factorized)
        self.factorized = factorized
        self._parts: list[tuple[str, int]] = []  # name of each part, and how many sites it has
        self._sites: list[LatentSite] | None = None
        self._divided: list[list[LatentSite]] = []  # the sites of each part
        # follows .to(...), so that a guide which is not built yet knows where it was sent
        self.register_buffer("_place", torch.zeros(()), persistent=False)
        self._born = (self._place.dtype, self._place.device)

    #: the deviation of the first draws that the user asked for
    _init_scale: float | None = None

    # ---- what a subclass fills

    _default_init_loc_fn: Callable[[dict[str, Any]], Tensor] = staticmethod(init_to_median)

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Any:
        """
        Makes the generator of one part of the latents: the hook that a subclass fills.

        :param int output_dim: number of unconstrained entries to generate.
        :param sites: the sites that they belong to, in order.
        :param bool preconditioned: whether a preconditioner follows: outputs should then start
            with the deviation :meth:`_own_scale` rather than with the guide's ``init_scale``.
        :returns: a :class:`~pyro_implicit.generators.Generator` of ``output_dim`` outputs.
        """
        raise NotImplementedError  # refused when the guide is made

    @classmethod
    def _check_hooks(cls) -> None:
        """Refuses a class that fills neither hook, as the bases themselves."""
        makes = (cls._make_generator, cls._make_sampler)
        if makes == (ImplicitGuide._make_generator, ImplicitGuide._make_sampler):
            raise ArgumentError(
                f"{cls.__name__} is a base without a generator of its own: a subclass fills "
                "_make_generator (_make_sampler, if each row has a distribution of its own). "
                "HyperNetworkGuide(model) and ConditionalHyperNetworkGuide(model) are ready."
            )

    def _start(self, sites: list[LatentSite], start: GaussianStart) -> GaussianStart:
        """The initialisation of one part; a subclass may set units for latents without a scale."""
        return start

    def _has_units(self) -> bool:
        """Whether the user's arguments fix the generator's units, so that no start may set them."""
        return self._scale is not None

    def _own_scale(self, full_rank: bool) -> float:
        """The deviation that a preconditioned generator begins with: little where noise has it."""
        return _GENERATOR_SD_BESIDE_NOISE if self._takes_noise(full_rank) else 1.0

    def _takes_noise(self, full_rank: bool) -> bool:
        """Whether output noise begins as the start's Gaussian, and the generator learns more."""
        return not full_rank and self._scale is None and self._learn_scale is not False

    # ---- building

    @property
    def model(self) -> Callable[..., Any]:
        """The wrapped model."""
        if self._model is None or self._model[0] is None:
            raise StateError(
                "this guide has no model (it was unpickled or made from a state_dict): it can draw "
                "but not be built anew. Make one with HyperNetworkGuide(model) and load_state_dict."
            )
        model: Callable[..., Any] = self._model[0]
        return model

    @property
    def samplers(self) -> nn.ModuleList:
        """
        One :class:`~pyro_implicit.guides.sampler.Sampler` per independent part.

        :raises StateError: before the guide is built.
        """
        if self._sites is None:
            raise StateError(
                f"{type(self).__name__} is not built yet: fit it first (fit(model, guide, *args)), "
                "load a saved state, or call guide.setup(*args, **kwargs) with the model's "
                "arguments, which trains nothing."
            )
        return self._modules["_samplers"]  # type: ignore[return-value]

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Moves the bounds of supports, too: draws are mapped on them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for site in self._sites or ():
            site.move(fn)
        return self

    @property
    def start_report(self) -> StartReport | None:
        """
        What ``init_from="auto"`` tried, its scores, and why it took what it took.

        None for any other start, and before the guide is built.
        """
        return self._start_report

    @property
    def sites(self) -> list[LatentSite]:
        """The model's latent sites; see :attr:`samplers` for the error."""
        self.samplers  # noqa: B018
        return list(self._sites or ())

    @property
    def latent_dim(self) -> int:
        """Number of unconstrained latent entries."""
        return sum(site.numel for site in self.sites)

    def setup(self: _Self, *args: Any, **kwargs: Any) -> _Self:
        """
        Builds the guide now, with the model's arguments; ``init_from`` looks at these data.

        :param args: the model's arguments.
        :param kwargs: its keyword arguments.
        :raises SiteError: if the model has no latent, a discrete one, or one local to a subsampled
            plate, or to one without a size, without ``create_plates``.
        :raises ShapeError: if a site has batch dimensions that no plate declares.
        :raises StateError: within ``torch.inference_mode()``.
        """
        self._setup_prototype(*args, **kwargs)
        return self

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        refuse_inference_mode(f"{type(self).__name__}.setup")
        nodes = self._trace_prototype(args, kwargs)
        self._first_call = self._know_call(args, kwargs)
        pairs = [self._read_site(node) for node in nodes]
        parts = parts_of(self.factorized, [site.name for site, _ in pairs])
        sites, locs = zip(*(pairs[i] for part in parts.values() for i in part), strict=True)
        loc = torch.cat(locs)
        sizes = [(name, len(part)) for name, part in parts.items()]
        groups = divide(sites, [size for _, size in sizes])
        numels = [sum(site.numel for site in group) for group in groups]
        check_parts(dict(zip(parts, numels, strict=True)))
        log_joint = LogJoint(self._bare_model[0], sites, args, kwargs)
        self._is_network = is_network(sites, self.prototype_trace)
        start = self._find_start(log_joint, loc, numels)
        starts = [start] if len(groups) == 1 else start.in_blocks(numels).split(numels)
        samplers = [self._make_sampler(g, begin) for g, begin in zip(groups, starts, strict=True)]
        self._build(list(sites), sizes, samplers)
        for node in nodes:  # the start is found, and values take as much memory as a draw
            node["value"] = node["value"].new_zeros(()).expand(node["value"].shape)

    def _trace_prototype(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Runs the model once; its latent sites, those left out that a sum takes out."""
        with explained_errors(args, kwargs), still_statistics():
            try:
                super()._setup_prototype(*args, **kwargs)  # type: ignore[no-untyped-call]
            except NotImplementedError as error:
                if "sequential" not in str(error):
                    raise
                self._prototype_frames = vectorised_frames(self.prototype_trace)
        prototype: Any = self.prototype_trace
        nodes = [n for _, n in prototype.iter_stochastic_nodes() if not is_summed_out(n)]
        if not nodes:
            raise SiteError(
                "the model has no latent site to infer: every sample statement is observed or "
                "hidden. Write a latent pyro.sample(...) without obs=, or train without a guide."
            )
        return nodes

    def _know_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FirstCall:
        """What tells these arguments from those of later calls."""
        model, called = self._bare_model[0], CalledNetworks()
        held = HeldData(model, args, kwargs)
        parameters = ModelParameters(held.parameters, ModelStatistics(called.outermost()))
        first = leading_arguments(model, args, kwargs)
        shapes, rows = shapes_of_arguments(first), fingerprint(first)
        return FirstCall(shapes, rows, held, parameters, places_of(model))

    def _find_start(self, log_joint: LogJoint, loc: Tensor, sizes: Sequence[int]) -> GaussianStart:
        init_from, fixed, has_units = self._init_from[0], self._has_location, self._has_units()
        if init_from is None or (init_from == "auto" and fixed and has_units):
            return GaussianStart(loc)
        if init_from != "auto":
            check_all_rows(log_joint.sites, init_from)
            return gaussian_start(init_from, log_joint, loc, is_network=self._is_network)
        start, self._start_report = auto_start(
            log_joint, self.model, loc, sizes=sizes, fixed=fixed, location_only=has_units
        )
        return start

    def _read_site(self, node: dict[str, Any]) -> tuple[LatentSite, Tensor]:
        """A site of the prototype trace, and its flat unconstrained initial value."""
        local = self.create_plates is not None or self.master is not None
        site = LatentSite.from_trace(node, local)
        for frame in site.frames:
            if frame.size < 0 and self.create_plates is None:
                raise SiteError(
                    f"latent site {site.name!r} is in plate {frame.name!r}, which has no size, so "
                    "that the guide cannot make such a plate of its own. Write it, "
                    f"pyro.plate({frame.name!r}, size), or pass create_plates."
                )
        return site, unconstrained_start(site, node["value"])

    def _make_sampler(self, sites: list[LatentSite], start: GaussianStart) -> Sampler:
        self._guessed, found = start.guess, start.factor is not None
        start = self._start(sites, start)
        generator = self._make_generator(start.loc.numel(), sites, found)
        if found and start.guess is not None and generator.full_rank:
            # nothing is known of single latents: their own coordinates, where steps are longer
            generator = self._make_generator(start.loc.numel(), sites, False)
            start = replace(start, factor=torch.ones_like(start.loc))
        if found and self._init_from[0] == "auto":
            start = start.padded(MAX_LATENTS_FOR_HESSIAN)
        noisy = self._takes_noise(generator.full_rank)
        unit = None
        if noisy and found:
            unit = start.deviations() if start.is_settled else torch.ones_like(start.loc)
        preconditioner = Preconditioner(start.loc, start.factor, unit)
        begins = math.sqrt(1 - _GENERATOR_SD_BESIDE_NOISE**2) if found else start.guess
        noise = self._noise(generator, begins if noisy else None)
        return Sampler(generator, preconditioner, *noise).to(start.loc)

    def _noise(self, generator: Any, begins: float | None) -> tuple[float, bool | str]:
        """The output noise that a sampler begins with, and how it is learned."""
        learned = self._learn_scale or False
        if self._scale is not None:
            return self._scale, learned
        if begins is not None:
            return begins, learned or "diagonal"
        # little beside the first draws
        least = min(_DEFAULT_OUTPUT_NOISE_SD, 0.1 * (self._init_scale or 1.0))
        return 0.0 if generator.full_rank and not learned else least, learned

    def _follow(self, module: nn.Module) -> nn.Module:
        """``module`` in the dtype and on the device that ``.to`` asked for, if it did."""
        asked = (self._place.dtype, self._place.device)
        changed = [now for now, born in zip(asked, self._born, strict=True) if now != born]
        for change in changed:
            module = module.to(change)
        return module

    def _build(
        self,
        sites: list[LatentSite],
        parts: list[tuple[str, int]],
        samplers: Sequence[nn.Module],
    ) -> None:
        self._sites, self._parts = sites, parts
        self._divided = divide(sites, [size for _, size in parts])
        self._prototype_frames = {f.name: f for site in sites for f in site.frames}
        built = nn.ModuleList(samplers)
        if not self.training:  # while training, a module that came in evaluation mode stays there
            built.eval()
        self._modules["_samplers"] = self._follow(built)

    def _groups(self) -> list[tuple[str, list[LatentSite], Any]]:
        """Name of the flat latent, its sites and its sampler, for each independent part."""
        samplers = self.samplers
        prefix = f"_{self._pyro_name}"
        return [
            (f"{prefix}_{part}_latent" if part else f"{prefix}_latent", group, sampler)
            for (part, _), group, sampler in zip(self._parts, self._divided, samplers, strict=True)
        ]

    # ---- drawing

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Draws all latents once, as Pyro sample sites.

        :returns: constrained values by site.
        """
        if self._sites is None:
            self._setup_prototype(*args, **kwargs)
        emit_params(f"{self._pyro_name}.samplers", self.samplers, is_whole=False)
        plates = self._shared_plates(args, kwargs)
        result: dict[str, Tensor] = {}
        for name, sites, sampler in self._groups():
            flat = self._sample_flat(name, sampler, sites, *args, **kwargs)
            for site, part in by_site(flat, sites):
                result[site.name] = site.sample(part, plates)
        return result

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """
        Draws the flat unconstrained latents once, as Pyro's continuous autoguides do.

        :returns: shape ``(*batch, latent_dim)``, in the order of :attr:`sites`.
        """
        if self._sites is None:
            self._setup_prototype(*args, **kwargs)
        flat = [
            self._sample_flat(n, sampler, s, *args, **kwargs) for n, s, sampler in self._groups()
        ]
        return torch.cat(flat, -1)

    def _shared_plates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The plates that guide and model share, whose rows this guide knows by their numbers."""
        named = {frame.name for site in self._sites or () for frame in site.frames}
        sizes = sizes_of_arguments(args, kwargs) if named else ()
        known = self.__dict__.setdefault("_plates_of_data", {})
        by_numbers = TakesDataByNumbers(model_of(self), args, kwargs, known)
        with RowsOfABatch(named, sizes, by_numbers):
            return created_plates(self, args, kwargs)

    def _sample_flat(
        self, name: str, sampler: Sampler, sites: list[LatentSite], /, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The flat unconstrained latent of one part, shape ``(*batch, numel)``."""
        latents = tuple(site.name for site in sites)
        return draw_site(name, sampler.distribution(), latents, True, partial(pack, sites))

    @torch.no_grad()
    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Draws from the posterior, in the latents' own spaces.

        :param int num_samples: number of draws.
        :param args: arguments of the model, of no use here; a conditional guide needs them.
        :param kwargs: keyword arguments of the model, likewise.
        :returns: constrained draws by site, shape ``(num_samples, *site_shape)``.
        :raises ArgumentError: if ``num_samples`` is no positive number.
        :raises NonFiniteError: if draws are not finite.
        :raises StateError: before the guide is built.
        """
        num_samples = check_count("num_samples", num_samples)
        take_loaded(f"{self._pyro_name}.samplers", self.samplers, is_whole=False)
        draws = {}
        for _, sites, sampler in self._groups():
            flat = sampler.distribution().sample((num_samples,))
            refuse_spoilt_draws(flat, self)
            for site, part in by_site(flat, sites):
                value = part.reshape(num_samples, *site.unconstrained_shape)
                draws[site.name] = site.value(value)
        return draws

    @property
    def is_bijective(self) -> bool:
        """
        Whether noise and draw determine each other for certain, so that the density is known.

        That is so if all generators are bijective and there is no output noise.
        """
        return all(sampler.distribution().is_bijective for _, _, sampler in self._groups())

    @property
    def never_folds(self) -> bool:
        """
        Whether no two noises lead to one draw, for certain, if only of one row and context.

        :raises StateError: before the guide is built.
        """
        return self.is_bijective or all(s.generator.never_folds for _, _, s in self._groups())

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        r"""
        Evaluate the exact density of a bijective guide, differentiably.

        For any other guide see :func:`~pyro_implicit.diagnostics.log_density`, which estimates it.

        :param dict values: constrained values of every latent site, ``(n, *site_shape)`` each.
        :returns: :math:`\log q(\theta)` in the constrained space, shape ``(n,)``.
        :raises DensityError: unless :attr:`is_bijective`.
        :raises ShapeError: for values of another shape than the sites'.
        :raises SiteError: for values of other sites, or outside of a support.
        """
        check_values(check_tensors("values", values, "values by site"), self.sites)
        total = torch.zeros(())
        for _, sites, sampler in self._groups():
            u, log_jacobian = unconstrain(values, sites, sampler.preconditioner.loc)
            total = total + sampler.distribution().log_prob(u) + log_jacobian
        return total
