"""From a guide, or from modes, to chains."""

# Shape legend: C chains, m unconstrained latents.
from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_flag,
    check_model,
    check_number,
    check_seed,
)
from pyro_implicit._inference_mode import refuse_inference_mode
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._progress import progress_bar
from pyro_implicit._random import RandomStream
from pyro_implicit._signature import in_order, leading_arguments
from pyro_implicit._warn import warn
from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.chains.domain import check_domain
from pyro_implicit.chains.kernel import Kernel
from pyro_implicit.chains.kernels import make_kernel
from pyro_implicit.chains.latents import dispersed_start, read_latents
from pyro_implicit.chains.modes import find_modes
from pyro_implicit.chains.program import Program
from pyro_implicit.chains.result import Chains
from pyro_implicit.chains.starts import check_finite, check_start, given_starts, is_bad
from pyro_implicit.chains.supports import check_supports_at
from pyro_implicit.chains.tuning import check_draws
from pyro_implicit.chains.walk import Walk
from pyro_implicit.exceptions import ArgumentError, ImplicitError
from pyro_implicit.guides.argument_order import check_order
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.held_data import HeldData
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.model_parameters import WatchedParameters
from pyro_implicit.guides.since_fit import remember_fit
from pyro_implicit.handlers.errors.explained_errors import RAW_ERRORS, explained_errors
from pyro_implicit.handlers.errors.type_errors import first_line, joins_types
from pyro_implicit.handlers.errors.value_errors import entries_not_finite, is_outside_support
from pyro_implicit.handlers.errors.weights_around import refuse_weights_around
from pyro_implicit.handlers.held.held_sites import refuse_condition_around
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.masks.masked_latents import warning_of_masked_latent
from pyro_implicit.handlers.observations.data_gradient import warning_of_no_gradient
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.handlers.rows.same_rows import fingerprint

__all__ = ["refine"]

_MAX_REDRAWS_OF_A_START = 10  # where the density is not finite


def refine(
    model: Callable[..., Any],
    start: Any,
    *args: Any,
    num_chains: int = 16,
    num_steps: int = 2000,
    num_warmup: int | None = None,
    kernel: str | Kernel = "mclmc",
    mode_steps: int = 1500,
    dispersion: float = 0.3,
    dtype: torch.dtype | None = None,
    progress: bool = True,
    seed: int | None = None,
    **kwargs: Any,
) -> Chains:
    r"""
    Samples the posterior of a model by chains that begin at modes, at a guide, or at draws.

    A guide followed by steps of a chain is an implicit distribution itself: what comes back is
    used as a guide is, in ``predict``, ``posterior_draws``, ``log_predictive_density`` and
    ``to_arviz``. It costs a few times a mean-field fit, and closes most of the gap to long
    Hamiltonian Monte Carlo on small networks and small data.

    The model is evaluated for all chains at once (``torch.func.vmap``, recorded as a graph where
    that gives the same bits); one chain after the other where it does not vectorise, with a warning
    that says why. Latents are moved to the real line; all data are seen at each step.

    *When not*: where the posterior under the model's prior is not the better predictor (large
    classifiers with standard normal priors), and where one gradient on all data is too dear. It is
    not converged because it has ended: ``print(chains)`` has the worst r-hat of latents; of
    networks look at ``chains.predictive_r_hat(...)``.

    :param model: a Pyro model with continuous latents and full batches.
    :param start: where chains begin. A number: so many modes, each sought from its own place
        between the prior's median and a draw of it (a centred hierarchical model may have its mode
        where a scale vanishes: start from a guide there). A fitted guide, or a list of guides:
        their draws. Draws by site, ``(n, *site_shape)``, or unconstrained, ``(n, m)``. Chains take
        turns over modes, guides and draws.
    :param args: arguments of the model: all data.
    :param int num_chains: number of chains ``C``.
    :param int num_steps: gradients per chain, the warm-up included. 0 keeps the starts.
    :param int num_warmup: of these, how many are for tuning, half by default. Give it if the chains
        are to go on: ``chains.run(more)`` then has the bits of one long run.
        Of what is left, ``"mclmc"`` keeps every tenth draw (``MCLMC(thin=1)``: all), 100 of each
        chain by default; ``"hmc"`` one for each trajectory of several gradients.
    :param kernel: ``"mclmc"`` (biased by its step size, see :class:`~pyro_implicit.chains.MCLMC`;
        cheap), ``"hmc"`` (exact: the one to take up to 64 latents, unless their widths are
        thousands of times apart), or one with settings, such as
        ``chains.MCLMC(energy_error=1e-3)``.
    :param int mode_steps: most steps of the search for modes, one gradient each. (Up to 32 latents
        the search goes by curvature, and ends by itself.)
    :param float dispersion: how far from the prior's median towards a draw that search begins.
    :param torch.dtype dtype: that chains move in, such as ``torch.float64``, for models whose
        density is too steep for single precision; the model's own by default. Floating-point
        arguments are converted.
    :param bool progress: whether to show progress bars.
    :param int seed: of all that is drawn: the same call gives the same bits, and random numbers
        outside go on as if nothing had been drawn. None: one that torch draws.
    :param kwargs: keyword arguments of the model.
    :returns: the chains. Ctrl-C keeps what was reached.
    :raises ArgumentError: for bad values, a guide in the place of the model, or too few steps for a
        draw.
    :raises NonFiniteError: if the density is not finite at a start.
    :raises SiteError: for discrete latents, plates that show some of their rows, supports that
        depend on another latent, models that draw random numbers beside their latents, and chains
        that go where a distribution of the model has no parameters; within ``with
        poutine.condition(...)``, ``poutine.scale`` or ``poutine.mask``.
    :raises StateError: within ``torch.inference_mode()``.
    :raises ShapeError: for starts of another shape than the latents', observations of another shape
        than their distributions, and for no rows.
    :warns UserWarning: if data were given and none are observed, the model does not vectorise, or
        the step size does not suit the posterior: the warm-up was too short; if the chains have not
        mixed by the r-hat of their latents (from 1.1 on; from 1.5 of fewer than 50 draws of each or
        400 in all, and not of fewer than 10; up to 1000 latents, weights of layers left out: of
        these ask ``chains.predictive_r_hat``, as of more), or if ``"mclmc"`` is biased by its step
        size, as the gradients at the draws of such latents show; if parameters of the model were
        lost that the guide was fitted with; if no observation has a gradient for the latents.

    Example::

        chains = refine(model, 16, x, y, num_steps=5000, seed=0)
        chains.predictive_r_hat(x_test)["y"].max()
        predict(model, chains, x_test, num_samples=1000)

    Source: `Microcanonical Langevin Ensembles: Advancing the Sampling of Bayesian Neural Networks`,
    E. Sommer, J. Robnik, G. Nozadze, U. Seljak, D. Rügamer, ICLR.
    """
    refuse_inference_mode("refine")
    refuse_condition_around("refine")
    refuse_weights_around("refine")
    check_model(model)
    check_order(model, "refine(model, guide, ...)", start)
    refuse_diverged(start)
    check_misspelt(refine, model, kwargs)
    num_chains = check_count("num_chains", num_chains)
    watched = WatchedParameters(start)
    given, start = start, check_start(start, num_chains)
    moves, num_steps, num_warmup = _planned(kernel, num_steps, num_warmup)
    mode_steps = check_count("mode_steps", mode_steps)
    dispersion = check_number("dispersion", dispersion, minimum=0)
    check_choice("dtype", dtype, (None, torch.float32, torch.float64))
    check_flag("progress", progress)
    seed = int(torch.randint(2**31, ())) if seed is None else check_seed("seed", seed)
    kwargs = in_order(model, kwargs)
    number_of_rows(args, kwargs)  # which are some
    program = Program(model, args, kwargs)
    with RandomStream(seed), explained_errors(args, kwargs, given):
        sites, centre = _read(model, given, args, kwargs)
        own = centre.dtype
        centre = centre.to(dtype or own)
        job = _Start(program, sites, centre, start, num_chains, mode_steps, dispersion, progress)
        u = job.first_points()
        density = program.density(sites, u.dtype)
        _check_data(density, u[0], own)
        with density.ready(u):
            u, interrupted = job.points(density, u)
            density.fit_to(u)
            _check_starts(density, u)
            for text in filter(None, [*watched.warnings(), *_described(density.log_joint, u[0])]):
                warn(text)
            generator = torch.Generator(u.device).manual_seed(seed)
            walk = Walk.begin(moves, num_warmup, generator, u, density)
            chains = Chains(sites, own, walk, program, interrupted)
            chains.how = density.how
            _note_data(chains, program)
            if num_steps and not interrupted:
                chains._run(density, num_steps, progress)
        if not interrupted:
            check_domain(program, sites, chains.unconstrained if num_steps else u)
        remember_fit(model, chains, args, kwargs, are_chains=True)
        return chains


def _check_starts(density: ChainDensity, u: Tensor) -> None:
    """Chains begin where the model has a density, and its supports hold."""
    log_joint = density.log_joint
    check_finite(u, density(u), log_joint)
    check_supports_at(log_joint.model, log_joint.sites, u, log_joint.args, log_joint.kwargs)


def _described(log_joint: LogJoint, u: Tensor) -> list[str]:
    """What looks wrong with the model where chains begin, in words, or empty ones."""
    values, _ = log_joint.values(u)
    no_gradient = warning_of_no_gradient(log_joint.model, values, log_joint.args, log_joint.kwargs)
    nodes = _nodes(log_joint.trace(u)[0])
    return [no_gradient, *(warning_of_masked_latent(nodes[site.name]) for site in log_joint.sites)]


def _note_data(chains: Chains, program: Program) -> None:
    """Keeps what tells these data from others."""
    model, args, kwargs = program.model, program.args, program.kwargs
    held = HeldData(model, args, kwargs)
    chains.observed, chains.sampled = frozenset(held.observed), held.sampled
    chains.rows_seen = fingerprint(leading_arguments(model, args, kwargs))


def _nodes(trace: Any) -> dict[str, Any]:
    """All sites by name, those too that a sum over discrete latents has put together."""
    infers = (node.get("infer") or {} for node in trace.nodes.values())
    together = (infer.get("marginal_nodes", ()) for infer in infers)
    return {**trace.nodes, **{node["name"]: node for nodes in together for node in nodes}}


def _check_data(density: ChainDensity, u: Tensor, own: torch.dtype) -> None:
    """Lets a distribution refuse data outside of its support, while checks are on."""
    log_joint = density.log_joint
    try:
        with torch.no_grad(), warnings.catch_warnings(), density.typed():
            warnings.simplefilter("ignore")
            log_joint(u)
    except RAW_ERRORS as error:  # other errors are those of this point, and told where chains begin
        finite = entries_not_finite(log_joint.args, log_joint.kwargs) is None
        if finite and is_outside_support(error):
            raise
        if joins_types(error) and u.dtype != own:
            raise ArgumentError(
                f"dtype={u.dtype} is that of the latents and of the arguments, and the model joins "
                f"them with numbers of another type: {first_line(error)}. Such are layers without "
                "a prior, and data that the model holds and does not take. Write network.double() "
                "and x.double() for all of them, or leave dtype out."
            ) from error


def _read(model: Any, start: Any, args: Any, kwargs: Any) -> tuple[list[LatentSite], Tensor]:
    """The latents; a start that looks like data is told where the model does not run without it."""
    try:
        return read_latents(model, args, kwargs)
    except (*RAW_ERRORS, ImplicitError) as error:
        if not isinstance(start, Tensor):
            raise
        raise ArgumentError(
            f"the model does not run on the arguments that come after start, which is a tensor of "
            f"shape {tuple(start.shape)}: the second argument is where chains begin, as in "
            f"refine(model, 16, x, y) or refine(model, guide, x, y). The model says: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        ) from error


def _planned(
    kernel: str | Kernel, num_steps: int, num_warmup: int | None
) -> tuple[Kernel, int, int]:
    """The kernel, its steps, and those of them for the warm-up."""
    num_steps = check_count("num_steps", num_steps, 0)
    moves = make_kernel(kernel)
    num_warmup = _warmup(num_warmup, num_steps, moves)
    if num_warmup < num_steps:  # told before the search for modes, as far as it is known
        check_draws((num_steps - num_warmup) // moves.thin, num_warmup, num_steps, moves.thin)
    return moves, num_steps, num_warmup


def _warmup(num_warmup: Any, num_steps: int, kernel: Kernel) -> int:
    if num_warmup is None:
        return -(-num_steps // 2)
    warmup = check_count("num_warmup", num_warmup, 0)
    if num_steps and not warmup and getattr(kernel, "step_size", 1.0) is None:
        raise ArgumentError(
            "num_warmup=0 leaves the step size untuned. Give one, such as "
            "kernel=MCLMC(step_size=0.05), or a warm-up."
        )
    if warmup > num_steps:
        raise ArgumentError(
            f"num_warmup={warmup} of num_steps={num_steps}; expected fewer: num_steps counts "
            "the warm-up."
        )
    return warmup


@dataclass
class _Start:
    """From what was given to the points where chains begin."""

    program: Program
    sites: list[LatentSite]
    centre: Tensor
    start: Any
    num_chains: int
    mode_steps: int
    dispersion: float
    progress: bool

    def first_points(self) -> Tensor:
        """Of a search for modes its beginnings, one for each; else the starts themselves."""
        program = self.program
        if not isinstance(self.start, int):
            return given_starts(
                self.start, self.sites, self.num_chains, self.centre, program.args, program.kwargs
            )
        return torch.stack([self._drawn() for _ in range(self.start)])

    def _drawn(self) -> Tensor:
        model, args, kwargs = self.program.model, self.program.args, self.program.kwargs
        return dispersed_start(model, self.sites, self.centre, self.dispersion, args, kwargs)

    def points(self, density: ChainDensity, u: Tensor) -> tuple[Tensor, bool]:
        """
        The starts of all chains, and whether the search for them was interrupted.

        :param ChainDensity density: ready for ``u``.
        :param torch.Tensor u: of :meth:`first_points`.
        """
        if not isinstance(self.start, int):
            return u, False
        found = density(u)
        for _ in range(_MAX_REDRAWS_OF_A_START):
            bad = is_bad(found)
            if not bool(bad.any()):
                break
            u = torch.where(bad[:, None], torch.stack([self._drawn() for _ in u]), u)
            found = density(u)
        check_finite(u, found, density.log_joint)
        with progress_bar(shown=self.progress, desc="modes", leave=False) as bar:
            modes, interrupted = find_modes(density, u, self.mode_steps, bar)
        return modes[[i % len(modes) for i in range(self.num_chains)]], interrupted
