"""
The terms of an objective by brute force: one plain run of the model for each draw of the guide.

Nothing of the package is called but the guide, which is what draws, and the generator's own
``forward``, which is its definition. Scales are those of Pyro's handlers; sums, masks, averages,
Jacobians and determinants are done here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to

from pyro_implicit.objectives.checks.batch_dims import is_vectorised
from tests.sweeps.random_models import Problem

PARTICLES = "num_particles_vectorized"


class Recorder:
    """Runs a program and keeps the trace of every run."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program
        self.traces: list[Any] = []

    def __call__(self, *args: Any) -> Any:
        trace = poutine.trace(self.program).get_trace(*args)
        self.traces.append(trace)
        return trace.nodes["_RETURN"]["value"]


def weights(node: Any) -> tuple[Any, Any]:
    """Scale and mask of a site, 1 and True if it has none."""
    mask = True if node["mask"] is None else node["mask"]
    return node["scale"], torch.as_tensor(mask)


def weighed(node: Any, value: Tensor) -> Tensor:
    """The sum of a value for each entry of a site's batch, under its scale and mask."""
    scale, mask = weights(node)
    return (torch.where(mask, value, torch.zeros_like(value)) * scale).sum()


def _sampled(trace: Any) -> list[Any]:
    return [node for node in trace.nodes.values() if node["type"] == "sample"]


class BruteForce:
    """
    :param Problem problem: model and arguments.
    :param guide: the recorder of the guide.
    :param model: that of the model.
    :param int num_particles: draws that an objective has just made.
    :param bool vectorised: whether in one pass.
    """

    def __init__(
        self,
        problem: Problem,
        guide: Recorder,
        model: Recorder,
        num_particles: int,
        vectorised: bool,
    ) -> None:
        self.problem, self.count = problem, num_particles
        self.vectorised = vectorised and num_particles > 1
        runs = 1 if self.vectorised else num_particles
        # an objective also runs a vectorised model for one draw, to compare
        made = [t for t in model.traces if is_vectorised(_sampled(t)) == self.vectorised]
        self.guides, models = guide.traces[-runs:], made[-runs:]
        self.runs = [
            self._plain_run(self.guides[0 if self.vectorised else s], models, s)
            for s in range(num_particles)
        ]

    # ---- the model, once per draw

    def _plain_run(self, guide: Any, models: list[Any], draw: int) -> Any:
        values = {}
        model = models[0 if self.vectorised else draw]
        for latent in self.problem.spec.latents:
            value = guide.nodes[latent.name]["value"]
            event = value.shape[value.dim() - latent.event_dim :]
            shape = self.problem.shape(latent, tuple(event))
            if self.vectorised:
                assert len(value) == self.count, f"{latent.name} has no draws in front"
                value = value[draw]
            assert value.numel() == math.prod(shape), f"{latent.name}: {value.shape} for {shape}"
            values[latent.name] = value.reshape(shape)
        for name, node in model.nodes.items():
            if node["type"] == "sample" and site_is_subsample(node):
                values[name] = node["value"]
        bare = poutine.condition(self.problem.model, data=values)
        with poutine.block():
            return poutine.trace(bare).get_trace(*self.problem.args)

    def _sites(self, run: Any, observed: bool) -> dict[str, Any]:
        latents = {latent.name for latent in self.problem.spec.latents}
        return {
            name: node
            for name, node in run.nodes.items()
            if node["type"] == "sample"
            and not site_is_subsample(node)
            and (name not in latents) == observed
        }

    @staticmethod
    def _log_prob(node: Any) -> Tensor:
        value = node["fn"].log_prob(node["value"])
        shape = torch.broadcast_shapes(value.shape, node["fn"].batch_shape)
        return value.expand(shape)

    # ---- likelihood and prior

    def log_likelihood(self) -> Tensor:
        return self._mean_sum(observed=True)

    def log_prior(self) -> Tensor:
        return self._mean_sum(observed=False)

    def _mean_sum(self, observed: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for run in self.runs:
            for node in self._sites(run, observed).values():
                total = total + weighed(node, self._log_prob(node))
        return total / self.count

    def log_predictive(self, power: float) -> Tensor:
        """By datum: sites in the same plates, in the same turn of a loop, under the same scale."""
        groups: dict[Any, list[str]] = {}
        for name, node in self._sites(self.runs[0], True).items():
            frames = sorted(
                (f.name, not f.vectorized and f.counter) for f in node["cond_indep_stack"]
            )
            groups.setdefault((tuple(frames), float(node["scale"])), []).append(name)
        total = torch.zeros((), dtype=torch.float64)
        for (_, scale), names in groups.items():
            draws = []
            for run in self.runs:
                parts = []
                for name in names:
                    node = run.nodes[name]
                    value = self._log_prob(node)
                    parts.append(torch.where(weights(node)[1], value, torch.zeros_like(value)))
                draws.append(sum(parts))
            stacked = power * torch.stack(draws)
            per_datum = (stacked.logsumexp(0) - math.log(self.count)) / power
            total = total + scale * per_datum.sum()
        return total

    def batch_log_predictive(self) -> Tensor:
        """All data together; the largest weight in front, others in proportion."""
        nodes = self._sites(self.runs[0], True).values()
        scale = max(float(node["scale"]) for node in nodes)
        draws = torch.stack(
            [
                sum(weighed(node, self._log_prob(node)) for node in self._sites(run, True).values())
                for run in self.runs
            ]
        )
        return scale * ((draws / scale).logsumexp(0) - math.log(self.count))

    # ---- entropy

    def implicit_nodes(self, trace: Any) -> dict[str, Any]:
        return {
            name: node
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and "implicit_noise" in node["infer"]
        }

    def entropy(self, of_draws: Callable[[Any], Tensor], num_entropy_particles: int) -> Tensor:
        """
        :param of_draws: the entropy of an implicit site at each draw, shape that of its batch.
        :param num_entropy_particles: how many draws it is averaged over.
        """
        total = torch.zeros((), dtype=torch.float64)
        keep = num_entropy_particles
        for draw, trace in enumerate(self.guides):
            total = total - self._explicit(trace) / self.count
            for node in self.implicit_nodes(trace).values():
                value = of_draws(node)
                scale, mask = weights(node)
                value = torch.where(mask, value, torch.zeros_like(value)) * scale
                if self.vectorised:
                    total = total + value[:keep].sum() / keep
                elif draw < keep:
                    total = total + value.sum() / keep
        return total

    def _explicit(self, trace: Any) -> Tensor:
        """``log q`` of what is explicit, and the log-Jacobian of every constrained latent."""
        total = torch.zeros((), dtype=torch.float64)
        supports = {n: node["fn"].support for n, node in self._sites(self.runs[0], False).items()}
        made = {
            x for n in self.implicit_nodes(trace).values() for x in n["infer"]["implicit_latents"]
        }
        implicit = self.implicit_nodes(trace)
        for name, node in trace.nodes.items():
            if node["type"] != "sample" or site_is_subsample(node) or name in implicit:
                continue
            if node["infer"].get("is_implicit_noise"):
                continue
            if name in made:
                transform = biject_to(supports[name])
                free = transform.inv(node["value"])
                log_det = transform.log_abs_det_jacobian(free, node["value"])
                extra = log_det.dim() - (node["value"].dim() - node["fn"].event_dim)
                log_prob = -(log_det.flatten(-extra).sum(-1) if extra else log_det)
            else:
                log_prob = self._log_prob(node)
            total = total + weighed(node, log_prob)
        return total


def linear_map(node: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The Jacobian of an implicit site at its noise by autograd, its sigma, and its factor."""
    fn = node["fn"]
    with torch.enable_grad():
        noise = fn.noise.detach().requires_grad_()
        mean = fn.generator(noise)
        rows = [
            torch.autograd.grad(mean[..., j].sum(), noise, create_graph=True)[0]
            for j in range(mean.shape[-1])
        ]
    jacobian = torch.stack([row.flatten(-len(fn.generator.noise_shape)) for row in rows], -2)
    m = jacobian.shape[-2]
    factor = torch.eye(m).to(jacobian)
    if fn.preconditioner is not None and fn.preconditioner.factor is not None:
        given = fn.preconditioner.factor
        factor = torch.diag(given) if given.dim() == 1 else given
    return jacobian, torch.as_tensor(fn.scale).to(jacobian).expand(m), factor


def linearised_entropy(node: Any) -> Tensor:
    """Of an implicit site at each draw: of a Gaussian of covariance ``J J' + sigma^2 L L'``."""
    jacobian, sigma, factor = linear_map(node)
    inner = jacobian @ jacobian.mT + torch.diag(sigma.square())
    matrix = factor @ inner @ factor.mT
    constant = 0.5 * matrix.shape[-1] * (1 + math.log(2 * math.pi))
    return 0.5 * torch.linalg.slogdet(matrix).logabsdet + constant


def entropy_at_draws(node: Any) -> Tensor:
    """That of :func:`linearised_entropy`; of increasing functions minus the log-density instead."""
    fn = node["fn"]
    sigma = torch.as_tensor(fn.scale)
    if sigma.any() or not fn.generator.draws_with_log_det:
        return linearised_entropy(node)
    jacobian, _, factor = linear_map(node)
    noise = fn.noise.flatten(-len(fn.generator.noise_shape)).to(jacobian)
    log_noise = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(-1)
    return torch.linalg.slogdet(factor @ jacobian).logabsdet - log_noise


def smallest_entropy(node: Any) -> Tensor:
    """The bound by the smallest singular value, on the smaller side, in units of the noise."""
    jacobian, sigma, factor = linear_map(node)
    m, size = jacobian.shape[-2], min(jacobian.shape[-2:])
    constant = 0.5 * m * (1 + math.log(2 * math.pi)) + torch.linalg.slogdet(factor).logabsdet
    noisy = bool((sigma > 0).all())
    white = jacobian / sigma[:, None] if noisy else jacobian
    smallest = torch.linalg.svdvals(white)[..., size - 1].square()
    if noisy:
        return constant + 0.5 * size * (smallest + 1).log() + sigma.log().sum()
    return constant + 0.5 * size * smallest.log()


def least_entropy(node: Any) -> Tensor:
    """Minus the log of the largest density of the output noise alone."""
    _, sigma, factor = linear_map(node)
    volume = sigma.log().sum() + torch.linalg.slogdet(factor).logabsdet
    value = volume + 0.5 * len(sigma) * math.log(2 * math.pi)
    return value.expand(node["value"].shape[:-1])


def own_entropy(node: Any, num_inner: int) -> Tensor:
    """Minus the log of the density of each draw given its own noise, over ``num_inner + 1``."""
    fn = node["fn"]
    _, sigma, _ = linear_map(node)
    value = node["value"]
    if fn.preconditioner is not None:
        value = fn.preconditioner.inverse(value)
    error = (value - fn.generator(fn.noise)) / sigma
    return least_entropy(node) + 0.5 * error.square().sum(-1) + math.log(num_inner + 1)
