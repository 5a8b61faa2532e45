"""The guides that are compared, a fit of a given time, and what is measured of it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import torch
from pyro.distributions.transforms import ComposeTransformModule, Permute, affine_coupling
from pyro.infer import ELBO, Trace_ELBO
from pyro.infer.autoguide import (
    AutoIAFNormal,
    AutoMultivariateNormal,
    AutoNormalizingFlow,
    init_to_median,
)
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.optim.clipped_adam import ClippedAdam
from torch import Tensor
from torch.distributions import transform_to

from benchmarks.posterior._generators_targets import Target
from benchmarks.posterior._objectives_targets import entropy
from benchmarks.posterior._posteriordb_reference import compare
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, entropy_report
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.generators import BijectiveGenerator, ResidualGenerator
from pyro_implicit.training import RecordedObjective

__all__ = ["METHODS", "SETTINGS", "fit", "measure"]

SETTINGS: dict[str, Any] = {
    "lr": 1e-2,
    "last_lr": 2e-4,
    "clip_norm": 10.0,
    "num_particles": 32,
    # of known densities and of posteriors of data
    "num_draws": (20_000, 4000),
    "num_at_once": 500,
    "num_for_signs": 1000,
    "num_for_density": 200,
    "num_gibbs": 5000,
}

NUM_COUPLINGS = 4
#: beyond it the true entropy is not estimated
MAX_NOISE_DIM = 100


def coupling_flow(model: Callable[..., Any]) -> AutoNormalizingFlow:
    """Pyro's affine couplings, the order of the entries reversed between two of them."""

    def transform(size: int) -> ComposeTransformModule:
        parts: list[Any] = []
        for _ in range(NUM_COUPLINGS):
            parts += [affine_coupling(size), Permute(torch.arange(size).flip(0))]
        return ComposeTransformModule(parts)

    return AutoNormalizingFlow(model, transform)


def _residual(num_blocks: int, hidden_dim: int) -> Callable[..., Any]:
    return partial(
        HyperNetworkGuide,
        generator=partial(
            ResidualGenerator, hidden_dim=hidden_dim, num_blocks=num_blocks, init_scale=0.1
        ),
        init_from=None,
    )


METHODS: dict[str, Callable[..., Any]] = {
    "perceptron": partial(HyperNetworkGuide, hidden_dims=(40, 40), init_from=None),
    "perceptron, Laplace": partial(HyperNetworkGuide, hidden_dims=(40, 40), init_from="laplace"),
    "residual, K = 1": _residual(1, 50),
    "residual, K = 4": _residual(4, 20),
    "residual, K = 8": _residual(8, 20),
    "bijective residual": partial(HyperNetworkGuide, generator=BijectiveGenerator, init_from=None),
    "autoregressive": HyperNetworkGuide,
    "autoregressive, bare": partial(HyperNetworkGuide, init_from=None),
    "autoregressive, Laplace": partial(HyperNetworkGuide, init_from="laplace"),
    "Pyro: couplings": coupling_flow,
    "Pyro: AutoIAFNormal": AutoIAFNormal,
    "Pyro: AutoMultivariateNormal": AutoMultivariateNormal,
}


def start(site: dict[str, Any]) -> Tensor:
    """Pyro's own start, and the constraint's image of zero for priors that cannot be drawn from."""
    try:
        return init_to_median(site)
    except NotImplementedError:
        shape = site["fn"].batch_shape + site["fn"].event_shape
        return transform_to(site["fn"].support)(torch.zeros(shape))


def _objective(target: Target, method: str, num_particles: int) -> ELBO:
    options: dict[str, Any] = {"vectorize_particles": True, "max_plate_nesting": target.nesting}
    if method.startswith("Pyro"):
        return Trace_ELBO(num_particles, **options)
    return LinearisedELBO(num_particles, watch_folds=0, **options)


def fit(target: Target, method: str, seconds: float) -> tuple[Any, dict[str, Any]]:
    """
    Train a guide for some CPU time, its start included; steps of our guides are recorded.

    :returns: the guide, and how many steps it took, how many of them had no finite loss, and CPU
        seconds.
    """
    begin, seconds = time.process_time(), max(seconds, 1e-9)
    pyros = method.startswith("Pyro")
    guide = METHODS[method](InitMessenger(start)(target.model) if pyros else target.model)
    objective = _objective(target, method, SETTINGS["num_particles"])
    objective(target.model, guide)(*target.arguments)  # makes the parameters
    stepper = objective if pyros else RecordedObjective(objective, hints=False)
    params = [param for param in guide.parameters() if param.requires_grad]
    optimiser = ClippedAdam(params, lr=SETTINGS["lr"], clip_norm=SETTINGS["clip_norm"])
    ratio = SETTINGS["last_lr"] / SETTINGS["lr"]
    count = skipped = 0
    while (share := (time.process_time() - begin) / seconds) < 1 or count == 0:
        optimiser.param_groups[0]["lr"] = SETTINGS["lr"] * ratio ** min(share, 1)
        optimiser.zero_grad()
        try:
            loss = stepper.loss_and_grads(target.model, guide, *target.arguments)
        except NonFiniteError:
            loss = math.nan
        count += 1
        if not math.isfinite(loss):
            skipped += 1
            continue
        optimiser.step()
    passed = time.process_time() - begin
    return guide, {"steps": count, "skipped": skipped, "cpu_seconds": passed}


@torch.no_grad()
def measure(target: Target, method: str, guide: Any) -> dict[str, Any]:
    """What is known of the guide: see the columns of the benchmark."""
    num_draws = SETTINGS["num_draws"][target.log_density is None]
    once = min(SETTINGS["num_at_once"], num_draws)
    objective = _objective(target, method, once)
    losses = [
        float(objective.loss(target.model, guide, *target.arguments))
        for _ in range(num_draws // once)
    ]
    found: dict[str, Any] = {"claimed_elbo": -sum(losses) / len(losses)}
    found |= _folds(guide)
    draws = _draw(guide, target.arguments, num_draws)
    if target.parameters is not None:
        found |= compare(target.parameters(draws), target.moments)
        del found["errors"]
    if target.score is not None:
        found |= target.score(draws)
    if target.log_density is not None:
        found["claimed_kl"] = -found["claimed_elbo"]
        found["kl"] = _divergence(draws["x"], target.log_density, found)
    return found


def _divergence(x: Tensor, density: Any, found: dict[str, Any]) -> float | None:
    """In the plane by nearest neighbours, else what is claimed and the excess."""
    if x.shape[-1] == 2:
        return -entropy(x) - float(density(x).mean())
    excess = found["excess"]
    return None if excess is None else found["claimed_kl"] + excess


def _draw(guide: Any, arguments: tuple[Tensor, ...], num_draws: int) -> dict[str, Tensor]:
    if isinstance(guide, HyperNetworkGuide):
        return guide.sample(num_draws)
    with pyro.plate("draws", num_draws, dim=-2):
        return {name: value.squeeze(1) for name, value in guide(*arguments).items()}


def _folds(guide: Any) -> dict[str, Any]:
    """
    Whether the map folds: the share of draws whose determinant has the rarer sign, and by how much
    the linearised entropy exceeds the true one, with and without a warning.
    """
    if not isinstance(guide, HyperNetworkGuide) or guide.is_bijective:
        return {"minority": 0.0, "excess": 0.0, "excess_error": 0.0, "warned": False}
    sampler: Any = guide.samplers[0]
    generator = sampler.generator
    z = torch.randn(SETTINGS["num_for_signs"], generator.noise_dim)
    signs = torch.cat([torch.linalg.slogdet(generator.jacobian(part))[0] for part in z.split(200)])
    positive = float((signs > 0).double().mean())
    if generator.noise_dim > MAX_NOISE_DIM:  # the report would refuse, after costly decompositions
        return {"minority": min(positive, 1 - positive), "excess": None, "warned": False}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = entropy_report(guide, num_samples=SETTINGS["num_for_density"], num_inner=100)
    known = math.isfinite(report.excess)  # not where no noise was found for a draw
    return {
        "minority": min(positive, 1 - positive),
        "excess": report.excess if known else None,
        "excess_error": report.standard_error if known else None,
        "warned": any("the guide" in str(one.message) for one in told),
    }
