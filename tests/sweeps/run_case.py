"""One random case from end to end: an objective against brute force, and all around it."""

from __future__ import annotations

import copy
import io
import math
import re
import traceback
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI
from torch import Tensor

import pyro_implicit as pi
from pyro_implicit.exceptions import ImplicitError
from tests.sweeps.brute_force import (
    BruteForce,
    Recorder,
    entropy_at_draws,
    least_entropy,
    linearised_entropy,
    own_entropy,
    smallest_entropy,
)
from tests.sweeps.random_cases import TOLD, CaseSpec, make_guide, make_objective, refusals
from tests.sweeps.random_models import build_model

PACKAGE = Path(pi.__file__).parent


@dataclass(frozen=True)
class Outcome:
    """
    :param str kind: ``"ok"``; ``"refused"``: an error of ours where one is due; ``"unasked"``: one
        where none is due; ``"wrong"``: a value that is not that of brute force, or not finite;
        ``"raw"``: any other error; ``"taken"``: nonsense without an error.
    """

    kind: str
    stage: str = ""
    detail: str = ""


class Wrong(Exception):
    """A value that is not what it should be."""


class _Case:
    def __init__(self, spec: CaseSpec) -> None:
        self.spec = spec
        self.stage = "model"

    def run(self) -> None:
        spec = self.spec
        torch.manual_seed(spec.seed)
        self.problem = problem = build_model(spec.model)
        self.stage = "guide"
        self.bare_guide = make_guide(spec, problem)
        if hasattr(self.bare_guide, "setup"):
            self.bare_guide.setup(*problem.args)
        else:
            self.bare_guide(*problem.args)
        self.model, self.guide = problem.model, self.bare_guide
        if spec.model.overall is not None:
            scale: Any = spec.model.overall
            if spec.seed % 2:
                scale = torch.tensor(scale)
            self.model = poutine.scale(self.model, scale=scale)
            self.guide = poutine.scale(self.guide, scale=scale)
        self.stage = "objective"
        self.sizes = self.site_sizes()
        self.objective = make_objective(spec, self.sizes)
        self.stage = "terms"
        self.check_terms()
        self.stage = "overall scale"
        self.check_overall()
        self.stage = "loss_and_grads"
        self.check_gradients()
        self.stage = "training"
        self.check_training()
        self.stage = "draws"
        self.check_draws()
        self.stage = "saving"
        self.check_saving()
        self.stage = "predict"
        self.check_predict()

    def site_sizes(self) -> list[int]:
        """Of the implicit sites: the smaller of their numbers of noises and entries."""
        with poutine.block():
            trace = poutine.trace(self.bare_guide).get_trace(*self.problem.args)
        sizes = []
        for node in trace.nodes.values():
            if node["type"] == "sample" and "implicit_noise" in node["infer"]:
                fn = node["fn"]
                sizes.append(min(fn.event_shape[-1], fn.generator.noise_dim))
        return sizes

    # ---- the objective

    def parameters(self) -> list[Tensor]:
        return [p for p in self.bare_guide.parameters() if p.requires_grad]

    def check_terms(self) -> None:
        guide, model = Recorder(self.guide), Recorder(self.model)
        terms = copy.deepcopy(self.objective).terms(model, guide, *self.problem.args)
        for name, value in terms.items():
            if not math.isfinite(float(value)):
                raise Wrong(f"{name} is {float(value)}")
        self.found = terms
        expected = self.brute_force(guide, model)
        self.compare("terms", [n for n in terms if n in expected], terms, expected)
        missing = expected.keys() - terms.keys()
        if missing:
            raise Wrong(f"no terms {sorted(missing)} among {sorted(terms)}")
        self.compare_gradients(terms, expected)

    def check_overall(self) -> None:
        """Guide and model under one scale: every term times it, also those that draw."""
        overall = self.spec.model.overall
        if overall is None:
            return
        programs = ((self.model, self.guide), (self.problem.model, self.bare_guide))
        terms = []
        for model, guide in programs:
            pyro.set_rng_seed(self.spec.seed)
            terms.append(copy.deepcopy(self.objective).terms(model, guide, *self.problem.args))
        bare = {name: overall * value for name, value in terms[1].items()}
        self.compare("under a scale", list(terms[0]), terms[0], bare)

    def brute_force(self, guide: Recorder, model: Recorder) -> dict[str, Tensor]:
        """The terms that brute force can tell, by name."""
        spec, objective = self.spec, self.objective
        vectorised = objective.vectorize_particles
        brute = BruteForce(self.problem, guide, model, objective.num_particles, vectorised)
        overall = spec.model.overall or 1.0
        found: dict[str, Tensor] = {}
        form = getattr(objective, "form", None)
        power = getattr(objective, "power", 0.0)
        if form == "per_batch":
            # the objective sees every scale times the overall one
            found["log_predictive"] = overall * brute.batch_log_predictive()
        elif form == "per_datum" or (form is None and power):
            found["log_predictive"] = overall * brute.log_predictive(power or 1.0)
        else:
            found["log_likelihood"] = overall * brute.log_likelihood()
        weight = overall * getattr(objective, "kl_weight", 1.0)
        if objective.reads.prior:
            found["log_prior"] = weight * objective.prior_weight * brute.log_prior()
        of_draws: Any = None
        if spec.objective in ("LinearisedELBO", "AlphaEnergy"):
            of_draws = entropy_at_draws
        if spec.objective == "LanczosELBO" and self.exact_probes:
            of_draws = linearised_entropy
        if spec.objective == "SingularValueELBO":
            of_draws = smallest_entropy
        if spec.objective == "SemiImplicitELBO":
            self.check_semi_implicit(brute)
        if of_draws is not None:
            entropy = brute.entropy(of_draws, objective.num_entropy_particles)
            # the guide's own sites are under the overall scale already
            found["entropy"] = objective.kl_weight * entropy
        return found

    def check_semi_implicit(self, brute: BruteForce) -> None:
        """
        The entropy is an estimate by draws. Between what are the estimates of every draw: the log
        of the largest density that the output noise can have, and that of the one that made it.
        """
        found = float(self.found["entropy"])
        objective, weight = self.objective, self.objective.kl_weight

        def bound(of_draws: Any) -> float:
            return weight * float(brute.entropy(of_draws, objective.num_entropy_particles))

        slack = self.tolerance * (1 + abs(found))
        if not self.gauss_newton and found < bound(least_entropy) - slack:
            raise Wrong(f"entropy {found:.8g} is below the least, {bound(least_entropy):.8g}")
        if objective.bound == "lower" and not self.gauss_newton:
            most = bound(partial(own_entropy, num_inner=objective.num_inner))
            if found > most + slack:
                raise Wrong(f"entropy {found:.8g} is above the most, {most:.8g}")

    @property
    def gauss_newton(self) -> bool:
        return self.spec.objective_options.get("proposal") == "gauss-newton"

    @property
    def exact_probes(self) -> bool:
        """Whether Lanczos quadrature leaves nothing to chance."""
        every = math.lcm(*self.sizes)
        return self.objective.num_probes % every == 0 and self.objective.num_steps >= every

    @property
    def tolerance(self) -> float:
        return 1e-6 if self.spec.model.dtype == torch.float64 else 2e-3

    def compare(self, what: str, names: list[str], found: Any, expected: Any) -> None:
        for name in names:
            a, b = float(found[name]), float(expected[name])
            if not abs(a - b) <= self.tolerance * (1 + abs(b)):
                raise Wrong(f"{what}: {name} is {a:.8g}; by brute force {b:.8g}")

    def compare_gradients(self, terms: Any, expected: Any) -> None:
        """Of the sum of all terms that brute force knows."""
        if self.spec.model.dtype != torch.float64 or self.spec.guide == "MixtureDensityGuide":
            return
        names = [n for n in terms if n in expected and terms[n].requires_grad]
        if not names or any(not expected[n].requires_grad for n in names):
            return
        parameters = self.parameters()
        sums = [sum(values[n] for n in names) for values in (terms, expected)]
        pairs = [
            torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
            for total in sums
        ]
        for a, b in zip(*pairs, strict=True):
            left = torch.zeros(()) if a is None else a
            right = torch.zeros_like(left) if b is None else b
            error = float((left - right).abs().max())
            if not error <= 1e-5 * (1 + float(right.abs().max())):
                raise Wrong(
                    f"gradient of {names} off by {error:.4g} of {float(right.abs().max()):.4g}"
                )

    def check_gradients(self) -> None:
        """``loss_and_grads``, one particle after the other, is the derivative of the whole."""
        parameters, args = self.parameters(), self.problem.args
        values, gradients = [], []
        for method in ("differentiable_loss", "loss_and_grads"):
            for parameter in parameters:
                parameter.grad = None
            pyro.set_rng_seed(self.spec.seed)
            loss = getattr(copy.deepcopy(self.objective), method)(self.model, self.guide, *args)
            if isinstance(loss, Tensor):
                loss.backward()
                loss = loss.item()
            values.append(loss)
            gradients.append([None if p.grad is None else p.grad.clone() for p in parameters])
        self.compare("loss_and_grads", ["loss"], {"loss": values[1]}, {"loss": values[0]})
        for a, b in zip(*gradients, strict=True):
            if (a is None) != (b is None):
                raise Wrong("a parameter has a gradient by one method only")
            if a is not None and not torch.allclose(a, b, self.tolerance, self.tolerance):
                raise Wrong(f"gradients of two methods differ by {float((a - b).abs().max()):.4g}")

    def check_training(self) -> None:
        svi = SVI(self.model, self.guide, pyro.optim.Adam({"lr": 1e-3}), self.objective)
        for _ in range(2):
            loss = svi.step(*self.problem.args)
            if not math.isfinite(loss):
                raise Wrong(f"a loss of {loss}")
        for name, parameter in self.bare_guide.named_parameters():
            if not parameter.isfinite().all():
                raise Wrong(f"parameter {name} is not finite")

    # ---- what follows

    def check_draws(self) -> None:
        if self.spec.guide == "hand":
            return
        draws = pi.posterior_draws(self.bare_guide, 3, *self.problem.args)
        full = self.problem.with_all_rows() if self.draws_all_rows else self.problem
        for latent in self.spec.model.latents:
            value = draws[latent.name]
            event = tuple(value.shape[value.dim() - latent.event_dim :])
            expected = (3, *full.shape(latent, event))
            if tuple(value.shape) != expected:
                raise Wrong(
                    f"draws of {latent.name} have shape {tuple(value.shape)}, not {expected}"
                )
            if not value.isfinite().all():
                raise Wrong(f"draws of {latent.name} are not finite")

    @property
    def draws_all_rows(self) -> bool:
        """Whether the guide draws rows that this minibatch has not."""
        if self.spec.guide in ("ConditionalHyperNetworkGuide", "MixtureDensityGuide"):
            return len(self.problem.args[0]) == self.spec.model.rows
        return self.spec.guide in ("HyperNetworkGuide", "MMNNGuide", "CMMNNGuide")

    def check_saving(self) -> None:
        if self.spec.guide == "hand" or not hasattr(self.bare_guide, "get_extra_state"):
            return
        if self.spec.guide not in ("HyperNetworkGuide", "MMNNGuide", "CMMNNGuide"):
            return
        file = io.BytesIO()
        torch.save(self.bare_guide.state_dict(), file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        other = make_guide(self.spec, self.problem)
        other.load_state_dict(state)
        for third in (other, copy.deepcopy(self.bare_guide)):
            drawn = []
            for guide in (self.bare_guide, third):
                pyro.set_rng_seed(self.spec.seed)
                drawn.append(guide.sample(3))
            for name, value in drawn[0].items():
                if not torch.equal(value, drawn[1][name]):
                    raise Wrong(f"a restored guide draws another {name}")

    def check_predict(self) -> None:
        spec = self.spec.model
        if self.spec.guide == "hand" or spec.subsampled:
            return
        for parallel in (False, True):
            found = pi.predict(
                self.problem.model,
                self.bare_guide,
                *self.problem.args,
                num_samples=3,
                parallel=parallel,
            )
            for site in spec.observed:
                if site.kind != "sample":
                    continue
                node = self.node(site.name)
                expected = (3, *node["fn"].shape())
                if tuple(found[site.name].shape) != expected:
                    raise Wrong(
                        f"predictions of {site.name} have shape {tuple(found[site.name].shape)}, "
                        f"not {expected} (parallel={parallel})"
                    )
                if not found[site.name].isfinite().all():
                    raise Wrong(f"predictions of {site.name} are not finite")

    def node(self, name: str) -> Any:
        """A site of the model with the guide's draws."""
        with poutine.block():
            guide = poutine.trace(self.bare_guide).get_trace(*self.problem.args)
            model = poutine.trace(poutine.replay(self.problem.model, trace=guide))
            return model.get_trace(*self.problem.args).nodes[name]


def run_case(spec: CaseSpec) -> Outcome:
    """Runs one case; no error leaves it but an interrupt."""
    pyro.clear_param_store()
    case = _Case(spec)
    before = torch.get_default_dtype()
    torch.set_default_dtype(spec.model.dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run()
    except Wrong as error:
        return Outcome("wrong", case.stage, str(error))
    except ImplicitError as error:
        nonsense = spec.model.nonsense
        due = [*refusals(spec), *([TOLD[nonsense]] if nonsense else [])]
        kind = "refused" if any(re.search(p, str(error)) for p in due) else "unasked"
        return Outcome(kind, case.stage, f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome("raw", case.stage, _told(error))
    finally:
        torch.set_default_dtype(before)
        pyro.clear_param_store()
    return Outcome("taken" if spec.model.nonsense else "ok", case.stage)


def _told(error: Exception) -> str:
    """An error with the last line of the package that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(PACKAGE)]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "not ours"
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__}: {str(error)[:300]} ({where}; raised at {last})"
