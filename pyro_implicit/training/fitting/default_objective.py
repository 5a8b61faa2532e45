"""The objective that a guide is trained with unless one is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import LayerError, NonFiniteError
from pyro_implicit.handlers.enumeration.discrete_latents import nesting_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.objectives.exact_determinant import exact_is_cheap
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.objectives.particles.mapped_draws import VMAP
from pyro_implicit.ops.logdet import is_zero

__all__ = ["default_num_particles", "default_objective"]

_PARTICLES_BY_LATENTS = ((300, 8), (10_000, 4))  # up to so many latents, so many draws a step
_MIN_PARTICLES = 2  # of more latents than these
#: A step of few latents and numbers takes as long with four times the draws, and fits end sooner
#: and nearer to the posterior. Chosen on varying slopes, counts in groups and a growth curve.
_PARTICLES_IF_SMALL, _MAX_LATENTS_IF_SMALL, _MAX_OBSERVED_IF_SMALL = 32, 100, 5000
#: The limit of latents where gradients have little noise (path_gradient). Chosen on a 2PL model of
#: 147 latents: 1000 steps of 32 draws end at a k-hat of 0.45, in the time in which those of 8 end
#: at 0.74.
_MAX_LATENTS_IF_QUIET = 256
#: Observed numbers times draws of a step with many rows. On 256 digits of MNIST a step with one
#: draw takes a fifth of that with eight, and 45 seconds of it bring 26 nats a digit more.
_MAX_OBSERVED_OF_ALL_DRAWS = 50_000
_MAX_ERROR_CHARACTERS = 800  # of an error that a hint quotes
#: Where a quoted error is cut: Pyro's table of shapes, and the advice that is followed here.
_BEGINNINGS_LEFT_OUT_OF_ERRORS = (" Trace Shapes:", " Write vectorize_particles=False")


def default_objective(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    others: Iterable[tuple[Any, Any]] = (),
) -> tuple[ELBO, list[str]]:
    """
    Chooses an objective by the sizes of a guide's implicit sites.

    :class:`~pyro_implicit.LinearisedELBO`, whose determinant is exact, for generators that know
    theirs by structure and for Jacobians of up to four million entries (five million products for
    the Gram matrix of those of an ``MMNNGuide``), else :class:`~pyro_implicit.LanczosELBO`. The
    draws of a step: :func:`default_num_particles`. Of rows in minibatches the first takes the whole
    gradient, not that along the path. Draws are vectorised if the model allows it,
    which one trial tells, else mapped by ``vmap`` (of a ``LinearisedELBO``) if it allows that, else
    looped. A guide without an implicit site, and one that draws others that are not reparameterised
    beside implicit ones with a density, is trained with Pyro's ``Trace_ELBO`` (``TraceEnum_ELBO``
    where latents are marked for enumeration), looped; by one draw if it is a point (``AutoDelta``),
    whose draws are all the same.

    :param model: the model.
    :param guide: the guide; it is built by this.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :param others: arguments of other steps, which may have other latents to enumerate.
    :returns: the objective, and hints in words.
    """
    nodes = _drawn_by(guide, args, kwargs)
    fns = [node["fn"] for node in nodes]
    sites = [fn for fn in fns if isinstance(fn, ImplicitDistribution)]
    if not sites or _needs_densities(fns):
        is_point = bool(fns) and all(isinstance(_innermost(fn), dist.Delta) for fn in fns)
        draws = 1 if is_point else _PARTICLES_BY_LATENTS[1][1]
        listing: Any = (args, kwargs) if _lists_values(model, guide, args, kwargs) else None
        if listing is None:
            listing = next((call for call in others if _lists_values(model, guide, *call)), None)
        if listing is None:
            return Trace_ELBO(num_particles=draws), _hints_on_scores(nodes)
        nesting = max(nesting_of(one, *listing) for one in (model, guide))
        return TraceEnum_ELBO(num_particles=draws, max_plate_nesting=nesting), []
    num_latents = sum(fn.generator.output_dim for fn in sites)
    num_rows = max(fn.batch_shape.numel() for fn in sites)
    num_observed = _num_observed(model, guide, args, kwargs)
    quiet = all(fn.generator.draws_with_log_det and is_zero(fn.scale) for fn in sites)
    num_particles = default_num_particles(num_latents, num_observed, num_rows, quiet=quiet)
    exact = all(exact_is_cheap(fn.generator, fn.scale) for fn in sites)
    kind: type[ImplicitELBO] = LinearisedELBO if exact else LanczosELBO
    # of rows in minibatches: their noise is the larger, and steps along the path take half as long
    # again (own_guides: 1.6 times the steps in the same time, level or ahead)
    frames = [frame for node in nodes for frame in node["cond_indep_stack"] if frame.vectorized]
    is_cut = num_rows > 1 and any(frame.size < frame.full_size for frame in frames)
    options: dict[str, Any] = {"path_gradient": False} if exact and is_cut else {}
    refused: list[str] = []
    for way in (True, VMAP) if kind.can_be_mapped else (True,):
        objective = kind(num_particles, vectorize_particles=way, **options)
        why = _why_looped(objective, model, guide, args, kwargs)
        if why is None:
            return objective, []
        refused.append(why)
    hint = (
        "draws are made one after the other, since the model cannot be run for all at once; a step "
        f"is several times faster if it can: {refused[0]}"
    )
    if len(refused) > 1 and not refused[0].startswith((refused[1], LayerError.__name__)):
        hint += f" Nor can it be mapped (torch.func.vmap): {refused[1]}"
    return kind(min(num_particles, _PARTICLES_BY_LATENTS[0][1]), **options), [hint]


def default_num_particles(
    num_latents: int, num_observed: int, num_rows: int = 1, *, quiet: bool = False
) -> int:
    """
    How many draws a step takes.

    :param int num_latents: numbers of all implicit sites; of a conditional guide those of one row.
    :param int num_observed: observed numbers.
    :param int num_rows: rows with latents of their own, of a conditional guide, over which the
        noise of a step averages out.
    :param bool quiet: whether the generators tell the score of their draws, so that gradients have
        little noise.
    :returns: 32 up to 100 latents (of all rows), quiet ones without rows up to 256, and 5000
        observed numbers, else 8 up to 300 latents, 4 up to 10 000 and 2 above; with rows as many of
        these as see 50 000 observed numbers, or one.
    """
    small = _MAX_LATENTS_IF_QUIET if quiet and num_rows == 1 else _MAX_LATENTS_IF_SMALL
    if num_latents * num_rows <= small and num_observed <= _MAX_OBSERVED_IF_SMALL:
        return _PARTICLES_IF_SMALL
    found = next((n for most, n in _PARTICLES_BY_LATENTS if num_latents <= most), _MIN_PARTICLES)
    if num_rows == 1:
        return found
    return max(1, min(found, _MAX_OBSERVED_OF_ALL_DRAWS // max(num_observed, 1)))


def _needs_densities(fns: Iterable[Any]) -> bool:
    """Whether a part has no gradient through its draws, and all implicit ones have a density."""
    implicit = [fn for fn in fns if isinstance(fn, ImplicitDistribution)]
    others = [fn for fn in fns if not isinstance(fn, ImplicitDistribution)]
    return all(fn.is_bijective for fn in implicit) and not all(fn.has_rsample for fn in others)


def _hints_on_scores(nodes: Iterable[Any]) -> list[str]:
    """Tells of continuous latents whose gradients go by the scores of their draws."""
    scored = [
        node["name"]
        for node in nodes
        if not (node["fn"].has_rsample or getattr(node["fn"].support, "is_discrete", False))
    ]
    if not scored:
        return []
    return [
        f"guide sites {scored} are trained by the scores of their draws, which are so noisy that "
        "the fit may end far from the posterior. A MixtureDensityGuide of one component has "
        "gradients through its draws (num_components=1); for several, of latents of rows alone, "
        "write objective=PosteriorPredictiveLoss(10)."
    ]


@torch.no_grad()
def _num_observed(model: Any, guide: Any, args: Any, kwargs: Any) -> int:
    """Numbers that the model observes at a draw of the guide; none where it has no densities."""
    with unseen_run(), pyro.validation_enabled(False):
        drawn = poutine.trace(guide).get_trace(*args, **kwargs)
        trace = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args, **kwargs)
    nodes = [trace.nodes[name] for name in trace.observation_nodes]
    given = [node for node in nodes if not node["infer"].get("_deterministic")]
    values = [node["value"] for node in given]  # what is no tensor is refused by the first look
    return sum(value.numel() for value in values if isinstance(value, Tensor))


@torch.no_grad()
def _lists_values(model: Any, guide: Any, args: Any, kwargs: Any) -> bool:
    """Whether a latent of either is marked for enumeration, and not drawn by the guide as it is."""
    with unseen_run(), pyro.validation_enabled(False):
        drawn = poutine.trace(guide).get_trace(*args, **kwargs)
        trace = poutine.trace(poutine.block(model, hide=list(drawn.nodes))).get_trace(
            *args, **kwargs
        )
    nodes = [*drawn.nodes.values(), *trace.nodes.values()]
    latent = [node for node in nodes if node["type"] == "sample" and not node["is_observed"]]
    return any((node["infer"] or {}).get("enumerate") for node in latent)


@torch.no_grad()
def _drawn_by(guide: Any, args: Any, kwargs: Any) -> list[Any]:
    """The latent sites of a guide."""
    trace = poutine.trace(guide).get_trace(*args, **kwargs)
    nodes = [trace.nodes[name] for name in trace.stochastic_nodes]
    return [node for node in nodes if not site_is_subsample(node)]


def _innermost(fn: Any) -> Any:
    """What is within ``to_event`` and masks."""
    while not isinstance(fn, dist.Delta) and hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def _why_looped(
    objective: ImplicitELBO, model: Any, guide: Any, args: Any, kwargs: Any
) -> str | None:
    """Why the model cannot be run for all draws at once; None if it can."""
    try:
        with _warning_if_it_works(), unseen_run(warns=True), torch.enable_grad():
            loss = objective.differentiable_loss(model, guide, *args, **kwargs)
            if objective.is_mapped and loss.requires_grad and isinstance(guide, torch.nn.Module):
                params = [p for p in guide.parameters() if p.requires_grad]
                torch.autograd.grad(loss, params, allow_unused=True)  # which may have no rule
    except NonFiniteError:  # a bad draw, which may come in any step
        return None
    except Exception as error:  # what a model raises on shapes that it does not expect
        said = " ".join(str(error).split())
        for end in _BEGINNINGS_LEFT_OUT_OF_ERRORS:
            said = said.partition(end)[0].rstrip()
        return f"{type(error).__name__}: {_whole_sentences(said)}"
    return None


@contextmanager
def _warning_if_it_works() -> Iterator[None]:
    """Keeps warnings within to itself if an error ends it: they are of shapes that nobody uses."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _whole_sentences(text: str) -> str:
    """As many sentences as fit into a hint: the last of a message tells what to write instead."""
    if len(text) <= _MAX_ERROR_CHARACTERS:
        return text
    cut = text[:_MAX_ERROR_CHARACTERS]
    end = cut.rfind(". ") + 1
    return cut[:end] if end else f"{cut[: cut.rfind(' ')] if ' ' in cut else cut} ..."
