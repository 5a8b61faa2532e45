"""The methods of the UCI benchmark: each maps a model and a start to draws of the posterior."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyro
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor

from benchmarks.common import Stopwatch, stopwatch
from benchmarks.shared.replay import cosine, flat_then_cosine, train
from benchmarks.shared.start import begin_at
from benchmarks.shared.uci import Model, Split, small_weights
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, posterior_draws
from pyro_implicit.generators import MLPGenerator, ResidualGenerator

__all__ = ["CANDIDATES", "METHODS", "Settings", "Workbench", "choice"]

METHODS = (
    "map",
    "mean-field",
    "recipe",
    "recipe-no-entropy",
    "full-rank",
    "full-rank-per-datum",
)
NUM_PARTICLES = 4
NUM_DRAWS = 1000
#: the weight of the entropy alone in "recipe-no-entropy"; the prior keeps its weight 1
NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Settings:
    """
    What may be chosen by validation.

    :param int num_steps: optimiser steps.
    :param float rate: Adam's learning rate at the start.
    :param float init_scale: standard deviation of the first draws (of a full-rank guide: in units
        of the Gaussian that it starts from; of the mode: none).
    :param scale: output noise of the recipe.
    :param str init_from: what a full-rank guide starts from; ``"hessian"`` in records before it was
        written.
    :param dropout: the share of hidden units that are left out.
    """

    num_steps: int
    rate: float
    init_scale: float = 0.0
    scale: float | None = None
    init_from: str = ""
    dropout: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.num_steps} steps", f"rate {self.rate:g}"]
        parts += [f"start {self.init_scale:g}"] if self.init_scale else []
        parts += [] if self.scale is None else [f"sigma {self.scale:g}"]
        parts += [self.init_from] if self.init_from else []
        parts += [] if self.dropout is None else [f"dropout {self.dropout:g}"]
        return ", ".join(parts)


_MODE = Settings(1500, 1e-2)
_MEAN_FIELD = Settings(4000, 5e-3, 0.02)
_MEAN_FIELD_LONG = replace(_MEAN_FIELD, num_steps=10_000)
_FULL_RANK = Settings(3000, 3e-3, 0.9, init_from="hessian")
_FULL_RANKS = [_FULL_RANK, replace(_FULL_RANK, init_from="ggn")]
_RECIPE = Settings(3000, 1e-3, 0.02, 0.01)
_RECIPE_LONG = Settings(10_000, 5e-4, 0.02, 1e-3)
_RECIPES = [
    _RECIPE,
    replace(_RECIPE, scale=1e-3),
    replace(_RECIPE, scale=0.05),
    _RECIPE_LONG,
    replace(_RECIPE_LONG, scale=0.01),
]

#: what ``--choose`` tries; the first is used where it chose nothing else
CANDIDATES: dict[str, list[Settings]] = {
    "map": [_MODE],
    "mean-field": [_MEAN_FIELD, _MEAN_FIELD_LONG],
    "recipe": _RECIPES,
    "recipe-no-entropy": _RECIPES,
    "full-rank": _FULL_RANKS,
    "full-rank-per-datum": _FULL_RANKS,
}
#: what it chose; the control takes what was chosen for the recipe
_CHOSEN: dict[tuple[str, str], Settings] = {
    ("mean-field", "energy"): _MEAN_FIELD_LONG,
    ("recipe", "concrete"): _RECIPE,
    ("recipe", "energy"): _RECIPE_LONG,
}


def choice(method: str, name: str) -> Settings:
    """The settings of a method for a set."""
    return _CHOSEN.get((method.removesuffix("-no-entropy"), name), CANDIDATES[method][0])


class Workbench:
    """
    One split with one seed; what several methods start from is made once.

    :param Model model: the model.
    :param Split split: the data.
    :param int seed: seed of every fit.
    :param float effort: factor on all numbers of steps.
    """

    def __init__(self, model: Model, split: Split, seed: int, *, effort: float, quiet: bool):
        self.model, self.split, self.seed = model, split, seed
        self.effort, self.quiet = effort, quiet
        self._mode: tuple[dict[str, Tensor], Stopwatch] | None = None
        self._whitened: dict[str, tuple[HyperNetworkGuide, Stopwatch]] = {}

    def run(self, method: str, settings: Settings) -> tuple[dict[str, Tensor], Stopwatch]:
        """
        :returns: draws {site: (S, *shape)}, and the time of the fit with all that it started from.
        """
        mode, before = self.mode()
        if method == "map":
            return {name: value[None] for name, value in mode.items()}, before
        if method.startswith("full-rank"):
            before = self.whitened(settings.init_from)[1]
        self._fresh()
        with stopwatch() as watch:
            guide = self._guide(method, settings)
            schedule = flat_then_cosine if method.startswith("full-rank") else cosine
            self._train(guide, _objective(method), settings, schedule, method)
        draws = posterior_draws(guide, NUM_DRAWS, *self.split.data)
        total = Stopwatch(before.seconds + watch.seconds, before.cpu_seconds + watch.cpu_seconds)
        return draws, total

    def _fresh(self) -> None:
        """
        Seeds, and empties the parameter store: else Pyro's autoguides of an earlier fit or split,
        which have the same names, would hand their values on, and test rows with them.
        """
        pyro.clear_param_store()
        pyro.set_rng_seed(self.seed)

    def mode(self) -> tuple[dict[str, Tensor], Stopwatch]:
        """A short MAP fit from weights drawn at random."""
        if self._mode is None:
            self._fresh()
            with stopwatch() as watch:
                guide = AutoDelta(self.model, init_loc_fn=small_weights)
                self._train(guide, Trace_ELBO(), _MODE, cosine, "map")
            self._mode = {k: v.detach() for k, v in guide.median().items()}, watch
        return self._mode

    def whitened(self, init_from: str) -> tuple[HyperNetworkGuide, Stopwatch]:
        """
        A full-rank guide that starts from the mode, with the curvature there or around it.

        :param str init_from: of the guide: ``"hessian"``, averaged over a mean-field fit, or
            ``"ggn"``.
        """
        if init_from not in self._whitened:
            mode, before = self.mode()
            self._fresh()
            with stopwatch() as watch:
                guide = HyperNetworkGuide(
                    self.model,
                    generator=ResidualGenerator,
                    init_from=init_from,
                    init_loc_fn=begin_at(mode),
                ).setup(*self.split.data)
            total = Stopwatch(
                before.seconds + watch.seconds, before.cpu_seconds + watch.cpu_seconds
            )
            self._whitened[init_from] = guide, total
        return self._whitened[init_from]

    def _guide(self, method: str, settings: Settings) -> Any:
        start = begin_at(self.mode()[0])
        if method == "mean-field":
            return AutoNormal(self.model, init_loc_fn=start, init_scale=settings.init_scale)
        if method.startswith("recipe"):
            kind = partial(_perceptron, init_scale=settings.init_scale)
            return HyperNetworkGuide(
                self.model, generator=kind, scale=settings.scale, init_loc_fn=start
            )
        guide = copy.deepcopy(self.whitened(settings.init_from)[0])
        size = guide.latent_dim
        guide.samplers[0].generator = ResidualGenerator(size, init_scale=settings.init_scale)
        return guide

    def _train(
        self,
        guide: Any,
        objective: Any,
        settings: Settings,
        schedule: Callable[[float], float],
        method: str,
    ) -> None:
        train(
            self.model,
            guide,
            objective,
            self.split.data,
            num_steps=max(1, round(settings.num_steps * self.effort)),
            rate=settings.rate,
            schedule=schedule,
            bar=None if self.quiet else method,
        )


def _objective(method: str) -> Any:
    options: dict[str, Any] = {
        "num_particles": NUM_PARTICLES,
        "vectorize_particles": True,
        "max_plate_nesting": 1,
    }
    if method == "mean-field":
        return Trace_ELBO(**options)
    options["num_entropy_particles"] = 1
    if method == "recipe-no-entropy":
        return LinearisedELBO(**options, kl_weight=NEGLIGIBLE, prior_weight=1 / NEGLIGIBLE)
    if method == "full-rank-per-datum":
        return LinearisedELBO(**options, likelihood="per_datum")
    return LinearisedELBO(**options)


def _perceptron(num_weights: int, init_scale: float) -> MLPGenerator:
    """The seed paper's sampler."""
    return MLPGenerator(100, num_weights, (100,), activation="tanh", init_scale=init_scale)
