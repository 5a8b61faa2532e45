"""Run the guide, then the model with its draws, and check what an objective relies on."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor

from pyro_implicit.distributions._base_dist import loses_gradients
from pyro_implicit.distributions.diagonal_mixture import WeightedDraws
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.distributions.implicit_sites import KeptLinearisations
from pyro_implicit.exceptions import DensityError, GuideError, NonFiniteError, SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import NoticeEnumeration, enumerated
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.masks.replicates import Replicates
from pyro_implicit.handlers.rows.latent_rows import ParametersAtRows
from pyro_implicit.objectives.checks.batch_dims import check_batch_dims, is_vectorised
from pyro_implicit.objectives.checks.latent_pairing import check_pairing
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.large_normal import is_large_normal, log_density_of_large
from pyro_implicit.objectives.particles.particle import (
    READS_OF_A_BOUND,
    Particle,
    Reads,
    sample_nodes,
)
from pyro_implicit.objectives.particles.replayed_run import replayed_run
from pyro_implicit.objectives.particles.summed_out import summed_out

__all__ = ["draw_particle", "lost_gradients", "plate_nesting"]

#: Their ``score_parts`` have no score of what is reparameterised, or that of what they wrap.
_MODULES_WITHOUT_SCORE = (
    "pyro.distributions.distribution",
    "pyro.distributions.torch_distribution",
)


def draw_particle(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    max_plate_nesting: float,
    reads: Reads = READS_OF_A_BOUND,
    implicit_prior: Callable[[ImplicitDistribution, Tensor], Tensor] | None = None,
    *,
    enumerate_latents: bool = False,
) -> Particle:
    """
    Runs the guide, then the model with its draws.

    :param Reads reads: what is computed; all of it by default.
    :param implicit_prior: log-density, or a bound on it, for latents whose prior is itself an
        :class:`~pyro_implicit.ImplicitDistribution`.
    :param bool enumerate_latents: whether to sum out the model's latents that are marked so; this
        needs a finite ``max_plate_nesting``.
    :raises EnumerationNeeded: without it, if the model has such a latent.
    :raises DensityError: if it is needed and the prior of a latent has none.
    :raises GuideError: if the guide has no implicit site, or one drawn without its noise; if its
        entropy is needed and rows share their noise.
    :raises NonFiniteError: if validation is on and the draws of an implicit site are not finite.
    :raises SiteError: if an explicit guide site, or noise with learned parameters, is not
        reparameterised, or is in part; if the guide fails after a site that it wants enumerated; if
        a plate of the guide and the model's minibatch, or its size, disagree; if a log-density has
        a batch dimension that no plate declares (with vectorised particles also with validation
        off); if a site of the model cannot be summed out as it is marked; if the entropy of a
        latent is needed that the model does not sample; with validation on, if a latent that the
        guide maps on a support has another one in the model.
    """
    kept = reads.linearisation or reads.log_det
    keeping = KeptLinearisations(every=reads.linearisation) if kept else nullcontext()
    with keeping, nullcontext() if reads.guide else WeightedDraws():
        guide_trace = _traced(guide, args, kwargs)
    guide_nodes, validated = sample_nodes(guide_trace), is_validation_enabled()
    implicit = _implicit_sites(guide_nodes, reads.implicit_site)
    if validated:
        _check_draws(implicit)
    model = Replicates(guide_nodes)(model)
    if enumerate_latents:
        model = enumerated(model, int(max_plate_nesting), guide_nodes)
        model_trace = replayed_run(model, guide_trace, args, kwargs)
    else:
        with NoticeEnumeration():
            model_trace = replayed_run(model, guide_trace, args, kwargs)
    model_nodes = sample_nodes(model_trace)
    check_pairing(model_nodes, guide_nodes, entropy=reads.guide, supports=validated)
    if validated:
        check_model_guide_match(model_trace, guide_trace, max_plate_nesting)
    rows = {name: node["value"] for name, node in model_nodes.items() if site_is_subsample(node)}
    guide_trace = prune_subsample_sites(guide_trace)
    model_trace = prune_subsample_sites(model_trace)
    particle = Particle(model_trace, guide_trace, implicit, rows)
    _compute_densities(particle, reads, implicit_prior)
    if enumerate_latents:
        particle = summed_out(particle, max_plate_nesting, reads)
    _check_shapes(particle, max_plate_nesting)
    _check_reparameterised(particle)
    _check_noise(particle)
    return particle


def _traced(guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    """
    The guide's trace.

    :raises SiteError: if it fails after a site of its own that it wants enumerated: it may rely on
        dimensions that are not there.
    """
    tracer = poutine.trace(guide)
    try:
        with ParametersAtRows():
            return _without_data(guide, tracer.get_trace(*args, **kwargs))
    except Exception as error:
        for name, node in sample_nodes(tracer.trace).items():
            how = (node["infer"] or {}).get("enumerate")
            if how and not getattr(node["fn"], "has_rsample", False):
                raise SiteError(
                    f"the guide failed after its site {name!r}, which is to be enumerated "
                    f"(infer={{'enumerate': {how!r}}}) and was not: objectives for implicit guides "
                    "draw a site of the guide once, and sum over the values of latents of the "
                    "model alone. If that is why, leave it out of the guide and mark it in the "
                    "model, or train a guide that has a density with Pyro's TraceEnum_ELBO. The "
                    f"error was {type(error).__name__}: {error}"
                ) from error
        raise


def _without_data(guide: Callable[..., Any], trace: Trace) -> Trace:
    """The trace of a guide that runs the model as its own program, without what that observes."""
    if isinstance(poutine.unwrap(guide), GuideMessenger):
        for name, node in sample_nodes(trace).items():
            if node["is_observed"] and not site_is_subsample(node):
                trace.remove_node(name)
    return trace


def _compute_densities(
    particle: Particle,
    reads: Reads,
    implicit_prior: Callable[[ImplicitDistribution, Tensor], Tensor] | None,
) -> None:
    """The log-densities that an objective reads, and no others."""
    left_out: set[str] = set() if reads.prior else set(particle.implicit_latents)
    nodes = particle.model_nodes.items()
    if not (reads.prior or reads.guide):
        left_out = {n for n, x in nodes if not (x["is_observed"] or "_enumerate_dim" in x["infer"])}
    known = set()  # in the model alone: the guide's site of that name has a density of its own
    for name, node in nodes:
        if isinstance(node["fn"], ImplicitDistribution) and name not in left_out:
            _set_log_prob(name, node, implicit_prior)
            known.add(name)
        elif name not in left_out and is_large_normal(node):
            _set_log_prob(name, node, log_density_of_large)
            known.add(name)
    particle.model.compute_log_prob(lambda name, _: name not in left_out | known)
    explicit = set(particle.guide_nodes) - left_out if reads.guide else set()
    particle.guide.compute_log_prob(lambda name, _: name in explicit)
    _sum_in_float32(particle)


def plate_nesting(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> int:
    """
    The number of plate dimensions of model and guide, by one run of both.

    It moves no random numbers, and no running statistics: an objective that has not met a guide
    yet, as where a run is resumed in another process, goes on with those that one which has would
    draw.
    """
    with unseen_run(warns=True), pyro.validation_enabled(False):
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        model_trace = replayed_run(model, guide_trace, args, kwargs)
    dims = [
        frame.dim
        for trace in (guide_trace, model_trace)
        for node in sample_nodes(trace).values()
        for frame in node["cond_indep_stack"]
        if frame.vectorized
    ]
    return -min(dims) if dims else 0


def _implicit_sites(nodes: dict[str, Any], required: bool) -> dict[str, ImplicitSite]:
    sites = {}
    for name, node in nodes.items():
        if not isinstance(node["fn"], ImplicitDistribution):
            continue
        if node["infer"].get("implicit_noise") not in nodes:
            raise GuideError(
                f"implicit site {name!r} was drawn without a site for its noise. Write "
                f"sample_implicit({name!r}, ImplicitDistribution(...)) in place of pyro.sample."
            )
        sites[name] = ImplicitSite.of_node(node)
    if not sites and required:
        raise GuideError(
            "the guide has no implicit site, so this objective has nothing to estimate. Train an "
            "ordinary guide with Trace_ELBO(), or use HyperNetworkGuide(model)."
        )
    return sites


def _set_log_prob(name: str, node: Any, log_prob: Callable[..., Tensor] | None) -> None:
    """
    Notes the log-density of a site, computing it if need be.

    :raises DensityError: without a function to compute it.
    """
    if log_prob is None:
        raise DensityError(
            f"the prior of site {name!r} is itself implicit: it has no density for this objective "
            "to evaluate. Use one that compares draws, KernelDensityRatioELBO(contrast='prior') or "
            "AdversarialELBO(contrast='prior'), or SemiImplicitELBO if the prior's scale is not 0."
        )
    node["unscaled_log_prob"] = log_prob(node["fn"], node["value"])
    node["log_prob"] = scale_and_mask(node["unscaled_log_prob"], node["scale"], node["mask"])
    node["log_prob_sum"] = node["log_prob"].sum()


def lost_gradients(what: str, fn: ImplicitDistribution) -> str:
    """The message for a base with learned parameters and draws that do not move with them."""
    return (
        f"{what} has noise from a {type(fn.base_dist).__name__} with learned parameters and no "
        "rsample: its draws do not move with them, so that the gradients would be wrong. Keep the "
        "parameters of base_dist fixed (the generator learns where the modes go), or use a base "
        "with rsample, such as dist.Normal(loc, scale).to_event(1)."
    )


def _sum_in_float32(particle: Particle) -> None:
    """
    Scales and sums log-densities that came in half precision (under autocast) in float32.

    A sum of thousands keeps three digits in bfloat16.
    """
    for node in chain(particle.model_nodes.values(), particle.guide_samples.values()):
        if "log_prob" not in node or node["log_prob"].dtype not in (torch.float16, torch.bfloat16):
            continue
        node["unscaled_log_prob"] = node["unscaled_log_prob"].float()
        node["log_prob"] = scale_and_mask(node["unscaled_log_prob"], node["scale"], node["mask"])
        node["log_prob_sum"] = node["log_prob"].sum()


def _check_shapes(particle: Particle, max_plate_nesting: float) -> None:
    """
    Checks the shapes of log-densities before Pyro does.

    Our check costs nothing and spares vectorised particles a wrong value, so that there it does not
    ask whether validation is on, and comes first: Pyro's does not know what the user should write.
    """
    sides = {"model": particle.model_nodes.values(), "guide": particle.guide_samples.values()}
    vectorised = is_vectorised(sides["model"])
    if vectorised:
        check_batch_dims(sides)
    if not is_validation_enabled():
        return
    for node in sides["model"]:
        if "log_prob" in node:
            check_site_shape(node, max_plate_nesting)  # type: ignore[arg-type]
    if not vectorised:
        check_batch_dims(sides)


def _check_draws(implicit: dict[str, ImplicitSite]) -> None:
    """Blames the guide, before a distribution of the model is made from such a draw and blamed."""
    for name, site in implicit.items():
        value = site.value.detach()
        # the sum of finite numbers may be too large, and is one operation where the other is four
        if not math.isfinite(value.sum().item()) and not value.isfinite().all():
            raise NonFiniteError(
                f"the draws of implicit site {name!r} (for {', '.join(site.latents)}) are not "
                "finite: its generator has diverged, or a context is not finite. Use a lower "
                "learning rate, clip gradients (pyro.optim.ClippedAdam), start with "
                "init_from='laplace' or 'ggn', or fill in what is missing in the context."
            )


def _check_reparameterised(particle: Particle) -> None:
    for node in particle.guide_nodes.values():
        if _rejects(node["fn"]):
            raise SiteError(
                f"guide site {node['name']!r} ({type(node['fn']).__name__}) is drawn by rejection "
                "and so reparameterised in part only: its draws do not have all of the gradient, "
                "which objectives for implicit guides take through the draws alone. Use a "
                "distribution with a full rsample, such as dist.Gamma, or train with Trace_ELBO."
            )
        reparameterised = getattr(node["fn"], "has_rsample", False)
        if not (reparameterised or "log_weight" in node["infer"]):
            raise SiteError(
                f"guide site {node['name']!r} ({type(node['fn']).__name__}) is not "
                "reparameterised; objectives for implicit guides need gradients through every "
                "draw. Use a distribution with rsample, or sum a discrete latent out in the model."
            )


def _rejects(fn: Any) -> bool:
    """Whether a distribution, or one that it is made from, has a score beside its rsample."""
    while fn is not None:
        home = getattr(
            getattr(type(fn), "score_parts", None), "__module__", _MODULES_WITHOUT_SCORE[0]
        )
        if home not in _MODULES_WITHOUT_SCORE:
            return True
        fn = getattr(fn, "base_dist", None)
    return False


def _check_noise(particle: Particle) -> None:
    """Refuses noise whose draws do not move with the parameters that are learned of it."""
    for name, site in particle.implicit.items():
        infer: Any = particle.guide.nodes[name]["infer"]
        node: Any = particle.guide.nodes[infer["implicit_noise"]]
        if "log_weight" in node["infer"] or site.distribution.base_dist.has_rsample:
            continue
        if loses_gradients(site.distribution.base_dist, node["value"]):
            raise SiteError(lost_gradients(f"implicit site {name!r}", site.distribution))
