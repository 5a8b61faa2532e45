"""The methods of the comparison of objectives, and one fit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.infer.mcmc import MCMC, NUTS
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import stopwatch
from benchmarks.posterior._generators_methods import coupling_flow
from benchmarks.posterior._objectives_targets import SETTINGS, Target
from benchmarks.shared.memory import peak_bytes
from pyro_implicit import (
    AdversarialELBO,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    SemiImplicitELBO,
    SingularValueELBO,
    posterior_draws,
)
from pyro_implicit.objectives import AISIVI, IWAE, KPG, KSIVI, UIVI, AmortisedSVGD

__all__ = ["AT_EQUAL_TIME", "METHODS", "fit", "nuts", "train"]

_PRIOR: dict[str, Any] = {"contrast": "prior"}

#: the guides of Pyro, then objectives for the default HyperNetworkGuide
METHODS: dict[str, Callable[..., Any]] = {
    "mean-field": Trace_ELBO,
    "full Gaussian": Trace_ELBO,
    "coupling flow": Trace_ELBO,
    "no KL": partial(LinearisedELBO, kl_weight=0.0),
    "linearised": LinearisedELBO,
    "linearised, output noise": LinearisedELBO,
    "lanczos": LanczosELBO,
    "singular value": SingularValueELBO,
    "kernel adaptive": KernelDensityRatioELBO,
    "kernel published": partial(KernelDensityRatioELBO, published=True),
    "kernel prior": partial(KernelDensityRatioELBO, **_PRIOR),
    "critic adaptive": AdversarialELBO,
    "critic prior": partial(AdversarialELBO, **_PRIOR),
    "critic prior, 1 step": partial(AdversarialELBO, **_PRIOR, num_critic_steps=1),
    "semi-implicit": SemiImplicitELBO,
    "semi-implicit GN": partial(SemiImplicitELBO, proposal="gauss-newton", num_inner=10),
    "KSIVI": KSIVI,
    "KSIVI, Riesz": partial(KSIVI, kernel="riesz"),
    "KPG": KPG,
    "KPG, weighed": partial(KPG, importance=True),
    "amortised SVGD": AmortisedSVGD,
    "UIVI": UIVI,
    "AISIVI": AISIVI,
    "AISIVI, without own": partial(AISIVI, include_own=False),
    "IWAE": IWAE,
    "IWAE, output noise": IWAE,
    "VR-IWAE 0.5": partial(IWAE, alpha=0.5),
}
#: those that are compared at equal CPU time
AT_EQUAL_TIME = (
    "mean-field",
    "full Gaussian",
    "coupling flow",
    "linearised",
    "linearised, output noise",
    "lanczos",
    "kernel adaptive",
    "critic adaptive",
    "semi-implicit",
    "semi-implicit GN",
    "KSIVI",
    "KPG",
    "KPG, weighed",
    "amortised SVGD",
    "UIVI",
    "AISIVI",
    "AISIVI, without own",
    "IWAE",
    "IWAE, output noise",
)
#: those whose guide has output noise, which is learned
_NOISY = (
    "linearised, output noise",
    "semi-implicit",
    "KSIVI",
    "KPG",
    "UIVI",
    "AISIVI",
    "IWAE, output noise",
)
#: those whose value is no estimate of the evidence
_NO_EVIDENCE = ("no KL", "KSIVI", "KSIVI, Riesz", "KPG", "KPG, weighed", "amortised SVGD", "UIVI")
_GUIDES = {"mean-field": AutoNormal, "full Gaussian": AutoMultivariateNormal}


def make_guide(target: Target, method: str) -> Any:
    """All start where the target says, with its ``init_scale``."""
    options: dict[str, Any] = {"init_loc_fn": target.start, "init_scale": target.init_scale}
    if method == "coupling flow":
        return coupling_flow(InitMessenger(target.start)(target.model))
    if method in _GUIDES:
        return _GUIDES[method](target.model, **options)
    if method.startswith(_NOISY):
        options |= target.guide_noise
    return HyperNetworkGuide(target.model, init_from=None, **options)


def fit(
    target: Target, method: str, num_steps: int, quiet: bool, cpu_seconds: float = 0.0
) -> tuple[Tensor, dict[str, Any]]:
    """
    One fit; the learning rate falls geometrically over the steps, or over the CPU time if given.

    :returns: draws, shape ``(num_draws, dim)``; and what :func:`train` returns.
    """
    guide, found = train(target, method, num_steps, quiet, cpu_seconds)
    values = posterior_draws(guide, SETTINGS["num_draws"])
    return torch.cat([v.reshape(len(v), -1) for v in values.values()], -1), found


def train(
    target: Target, method: str, num_steps: int, quiet: bool, cpu_seconds: float = 0.0
) -> tuple[Any, dict[str, Any]]:
    """
    A fit without its draws.

    :returns: the guide; and the divergence that the objective claims at the end, or its value where
        the evidence is not known, the CPU time of training, the memory of a step, and what is to be
        noted of a ratio: clipped draws, the critic's accuracy.
    """
    guide = make_guide(target, method)
    num_particles = target.num_particles or SETTINGS["num_particles"]
    objective = METHODS[method](
        num_particles, vectorize_particles=True, max_plate_nesting=target.nesting
    )
    optimiser = pyro.optim.Adam({"lr": SETTINGS["lr"]})  # type: ignore[attr-defined]
    svi = SVI(target.model, guide, optimiser, objective)
    losses: list[float] = []
    bar = trange(num_steps, desc=f"{target.name}: {method}", disable=quiet, leave=False)
    with stopwatch() as watch:
        start = time.process_time()
        for i in bar:
            losses.append(svi.step())
            spent = (time.process_time() - start) / cpu_seconds if cpu_seconds else 0.0
            _set_rate(optimiser, spent if cpu_seconds else (i + 1) / num_steps)
            if spent >= 1:
                break
    peak = peak_bytes(lambda: svi.loss_and_grads(target.model, guide))
    bound = None if method in _NO_EVIDENCE else -statistics.fmean(losses[-SETTINGS["last"] :])
    known = target.log_evidence
    return guide, {
        **({"bound": bound} if known is None else {}),
        "claimed_kl": None if known is None or bound is None else known - bound,
        "cpu_seconds": watch.cpu_seconds,
        "steps": len(losses),
        "peak_mb": peak / 1e6,
        "note": _note(objective),
    }


def _set_rate(optimiser: Any, done: float) -> None:
    """The learning rate of the next step, once a share of the fit is done."""
    rate = SETTINGS["lr"] * (SETTINGS["last_lr"] / SETTINGS["lr"]) ** min(done, 1.0)
    for one in optimiser.optim_objs.values():
        for group in one.param_groups:
            group["lr"] = rate


def _note(objective: Any) -> str:
    """Of the last steps."""
    if isinstance(objective, AdversarialELBO):
        return f"critic right {max(objective.critic_accuracy.values()):.0%}"
    if isinstance(objective, KernelDensityRatioELBO):
        return f"clipped {max(objective.clipped.values()):.0%}"
    return ""


def nuts(target: Target, num_draws: int, quiet: bool) -> Tensor:
    """One chain of Pyro's NUTS, half as many steps of warm-up."""
    kernel = NUTS(target.model, jit_compile=False)
    chain = MCMC(kernel, num_draws, warmup_steps=num_draws // 2, disable_progbar=quiet)
    chain.run()
    return torch.cat([v.reshape(num_draws, -1) for v in chain.get_samples().values()], -1)
