"""What is fitted to a split of UCI: modes and what is made of them, and guides from the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from torch import Tensor

from benchmarks.common import stopwatch
from benchmarks.shared.images import NoEntropy
from benchmarks.shared.replay import cosine, train
from benchmarks.shared.start import begin_at
from benchmarks.shared.uci import Model, Split, score, small_weights
from benchmarks.shared.uci_controls import CONTROLS, dropout_draws, path_draws
from benchmarks.shared.uci_fits import Settings
from benchmarks.shared.uci_peers import gaussian_scores, laplace
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, SingularValueELBO, posterior_draws
from pyro_implicit.generators import MLPGenerator

__all__ = ["ENSEMBLES", "GUIDES", "LAPLACE", "METHODS", "SETTINGS", "Fits", "candidates", "choice"]

SETTINGS: dict[str, Any] = {
    "batch_size": 500,
    "num_members": 5,
    "num_more_members": 16,
    "mode_steps": 1000,
    "mode_rate": 1e-2,
    "num_steps": 1000,
    "num_particles": 4,
    "noise_dim": 50,
    "hidden_dim": 50,
    "init_scale": 0.02,
    "num_draws": 500,
    **CONTROLS,
}
#: by the setting that has their number
ENSEMBLES = {"ensemble of 5": "num_members", "ensemble of 16": "num_more_members"}
#: subset of the weights and structure of the Hessian
LAPLACE = {
    "laplace": ("all", "full"),
    "laplace, Kronecker": ("all", "kron"),
    "laplace, last": ("last_layer", "full"),
}
#: of the generator's output, with the entropy on one draw of each step
_OBJECTIVES: dict[str, Callable[..., Any]] = {
    "no entropy": NoEntropy,
    "linearised": LinearisedELBO,
    "singular value": SingularValueELBO,
}
_CONTROLS = ("MC dropout", "SWAG")
#: Pyro's own
_GAUSSIANS = {"mean-field": AutoNormal, "full Gaussian": AutoMultivariateNormal}
GUIDES = (*_GAUSSIANS, *_OBJECTIVES)
METHODS = ("map", *ENSEMBLES, *LAPLACE, *_CONTROLS, *GUIDES)
Draws = dict[str, Tensor]

#: what ``--choose`` tries: rates, and with the generator its output noise
_RATES = (5e-3, 1e-2)
_MORE_RATES = {"full Gaussian": (2e-3, 1e-3)}
_GENERATOR = ((3e-3, 0.01), (1e-3, 0.01), (3e-3, 0.05))
_DROPOUT = (0.01, 0.05, 0.2)
_PATH_RATES = (1e-3, 1e-2, 1e-4)
#: what it chose for a set, where that is not the first
_CHOSEN: dict[tuple[str, str], tuple[float, float | None]] = {
    ("SWAG", "boston"): (1e-2, None),
    ("SWAG", "energy"): (1e-4, None),
    ("full Gaussian", "boston"): (2e-3, None),
    ("full Gaussian", "energy"): (1e-3, None),
    ("full Gaussian", "naval"): (1e-3, None),
    **{("mean-field", name): (1e-2, None) for name in ("concrete", "energy", "kin8nm", "naval")},
    **{
        (method, name): (1e-3, 0.01)
        for method in ("linearised", "singular value")
        for name in ("concrete", "energy", "kin8nm", "naval")
    },
}


def candidates(method: str) -> list[Settings]:
    """Settings to choose from; the one there is for what has no choice."""
    steps = SETTINGS["num_steps"]
    if method in _GAUSSIANS:
        rates = (*_RATES, *_MORE_RATES.get(method, ()))
        return [Settings(steps, rate, SETTINGS["init_scale"]) for rate in rates]
    if method in _OBJECTIVES:
        return [Settings(steps, rate, SETTINGS["init_scale"], scale) for rate, scale in _GENERATOR]
    if method == "SWAG":
        return [Settings(steps, rate) for rate in _PATH_RATES]
    mode = Settings(SETTINGS["mode_steps"], SETTINGS["mode_rate"])
    return [replace(mode, dropout=rate) for rate in _DROPOUT] if method == "MC dropout" else [mode]


def choice(method: str, name: str) -> Settings:
    """The settings of a method for a set; the control has those of the linearised bound."""
    asked = "linearised" if method == "no entropy" else method
    first = candidates(method)[0]
    rate, scale = _CHOSEN.get((asked, name), (first.rate, first.scale))
    return replace(first, rate=rate, scale=scale)


class Fits:
    """
    One split with one seed; the modes are sought once.

    :param Model model: the model.
    :param Split split: the data.
    :param int seed: of every fit.
    :param bool quiet: no progress bars.
    :param dtype: of Laplace's approximations; modes are found in single precision.
    """

    def __init__(
        self,
        model: Model,
        split: Split,
        seed: int,
        quiet: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.split, self.seed, self.quiet = model, split, seed, quiet
        self.dtype = dtype
        self._found: dict[int, tuple[Draws, float]] = {}

    def scores(self, method: str, settings: Settings) -> dict[str, float]:
        """
        :param str method: one of :data:`METHODS`.
        :param Settings settings: of a guide.
        :returns: RMSE, log-likelihood, coverage, and CPU seconds with those of the modes used.
        """
        count = SETTINGS[ENSEMBLES.get(method, "num_members")]
        modes, of_modes = self._modes(count)
        part = 1 if method in ENSEMBLES else 1 / count
        with stopwatch() as watch:
            if method in LAPLACE:
                found = self._laplace(*LAPLACE[method])
            elif method in GUIDES:
                draws = self._guide(method, settings)
            elif method in _CONTROLS:
                draws = self._control(method, settings)
            else:
                draws = modes if method in ENSEMBLES else {k: v[:1] for k, v in modes.items()}
        if method not in LAPLACE:
            pyro.set_rng_seed(self.seed)
            found = score(self.model, draws, self.split)
        found.pop("crps", None)
        return found | {"cpu_seconds": watch.cpu_seconds + part * of_modes}

    def _laplace(self, subset: str, structure: str) -> dict[str, float]:
        mode = self._first()
        sigma = float(mode.pop("sigma"))
        found = laplace(self.split, mode, sigma, subset, structure, self.dtype)
        return gaussian_scores(*found, self.split)

    def _control(self, method: str, settings: Settings) -> Draws:
        self._fresh()
        bar = None if self.quiet else method
        num_draws = SETTINGS["num_draws"]
        if method == "MC dropout":
            return dropout_draws(self.split, settings, num_draws, bar, SETTINGS["batch_size"])
        return path_draws(self.model, self.split, self._first(), settings, num_draws, bar)

    def _first(self) -> Draws:
        """The mode that all others begin at."""
        modes, _ = self._modes(SETTINGS["num_members"])
        return {name: values[0] for name, values in modes.items()}

    def _modes(self, count: int) -> tuple[Draws, float]:
        """Modes from starts of their own, {site: (count, *shape)}, found in one fit."""
        if count not in self._found:

            def members(x: Tensor, y: Tensor) -> None:
                with pyro.plate("members", count, dim=-2):
                    self.model(x, y)

            with stopwatch() as watch:
                self._fresh()
                guide = AutoDelta(members, init_loc_fn=small_weights)
                self._train(members, guide, Trace_ELBO(), candidates("map")[0], "modes")
                found = {name: value.detach() for name, value in guide.median().items()}
            self._found[count] = (
                {name: value.squeeze(1) for name, value in found.items()},
                watch.cpu_seconds,
            )
        return self._found[count]

    def _guide(self, method: str, settings: Settings) -> Draws:
        start = {
            name: values[0] for name, values in self._modes(SETTINGS["num_members"])[0].items()
        }
        self._fresh()
        at = begin_at(start)
        options: dict[str, Any] = {"vectorize_particles": True, "max_plate_nesting": 1}
        if method in _GAUSSIANS:
            kind: Any = _GAUSSIANS[method]
            guide: Any = kind(self.model, init_loc_fn=at, init_scale=settings.init_scale)
            objective: Any = Trace_ELBO(SETTINGS["num_particles"], **options)
        else:
            kind = partial(_perceptron, init_scale=settings.init_scale)
            guide = HyperNetworkGuide(
                self.model, generator=kind, scale=settings.scale, init_from=None, init_loc_fn=at
            )
            if method == "singular value":  # so many iterations are the decomposition: exact
                options["num_iterations"] = SETTINGS["noise_dim"]
            options["num_entropy_particles"] = 1
            objective = _OBJECTIVES[method](SETTINGS["num_particles"], **options)
        self._train(self.model, guide, objective, settings, method)
        return posterior_draws(guide, SETTINGS["num_draws"], *self.split.data)

    def _fresh(self) -> None:
        pyro.clear_param_store()  # or the autoguides of another split hand their values on
        pyro.set_rng_seed(self.seed)

    def _train(
        self, model: Model, guide: Any, objective: Any, settings: Settings, name: str
    ) -> None:
        train(
            model,
            guide,
            objective,
            self.split.data,
            num_steps=settings.num_steps,
            rate=settings.rate,
            schedule=cosine,
            bar=None if self.quiet else name,
            batch_size=SETTINGS["batch_size"],
            light=True,
        )


def _perceptron(num_weights: int, init_scale: float) -> MLPGenerator:
    """The paper's sampler for UCI: one hidden layer."""
    layers = (SETTINGS["hidden_dim"],)
    return MLPGenerator(
        SETTINGS["noise_dim"], num_weights, layers, activation="tanh", init_scale=init_scale
    )
