"""What every objective must do: finite gradients, one value by all routes, honest minibatches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.testing.models import MODELS, ROWS, Case
from pyro_implicit.testing.report import about, apart, expect, expect_close

__all__ = ["GUIDES", "check_gradients", "check_minibatches", "check_objective", "check_values"]

#: guides that a new objective meets by default: of several sizes, and with output noise
GUIDES: dict[str, Callable[..., Any]] = {
    "HyperNetworkGuide": partial(HyperNetworkGuide, hidden_dims=(8,), scale=0.05, init_from=None),
    "with few noises": partial(
        HyperNetworkGuide,
        hidden_dims=(8,),
        noise_dim=1,
        learn_scale="scalar",
        scale=0.1,
        init_from=None,
    ),
    "factorised": partial(
        HyperNetworkGuide, hidden_dims=(4,), factorized=True, scale=0.05, init_from=None
    ),
}


def check_objective(
    make_objective: Callable[[], ParticleObjective],
    *,
    guides: Mapping[str, Callable[..., Any]] | None = None,
    models: Mapping[str, Case] | None = None,
    minibatches: bool = True,
    seed: int = 0,
) -> None:
    """
    Checks an objective of one's own with several guides on small models.

    Every parameter gets a finite gradient that is not 0; ``loss``, ``differentiable_loss``,
    ``loss_and_grads`` and ``terms`` agree; losses of minibatches average to that of all rows::

        check_objective(partial(MyObjective, 4))

    :param make_objective: makes the objective, without arguments: a ``partial`` of the class.
    :param guides: by name, each makes a guide of a model and takes ``create_plates``; three
        :class:`~pyro_implicit.HyperNetworkGuide` by default.
    :param models: by name; those of :data:`~pyro_implicit.testing.MODELS` with proper priors by
        default.
    :param bool minibatches: whether the loss of minibatches should be unbiased: not so where
        something of all data is within a logarithm.
    :param int seed: of the draws.
    :raises AssertionError: naming guide, model and what does not hold.
    """
    if models is None:
        models = {name: case for name, case in MODELS.items() if not case.improper}
    for guide_name, make_guide in (GUIDES if guides is None else guides).items():
        for model_name, case in models.items():
            with apart(seed), about(f"with guide {guide_name!r} on model {model_name!r}"):
                check_gradients(make_objective(), make_guide, case)
                check_values(make_objective(), make_guide, case)
                if minibatches:
                    check_minibatches(make_objective(), make_guide, case)


def check_gradients(
    objective: ParticleObjective,
    make_guide: Callable[..., Any],
    case: Case,
    seeds: Sequence[int] = (0, 1, 2),
) -> None:
    """
    Checks that the loss is finite, and every gradient finite and not 0.

    :param ParticleObjective objective: the objective; copies of it are evaluated.
    :param make_guide: makes a guide of a model.
    :param Case case: the model and its data.
    :param seeds: of the draws, one evaluation for each.
    :raises AssertionError: naming the parameter.
    """
    model, data = case.make(), case.data()
    guide = make_guide(model).setup(*data)
    for seed in seeds:
        pyro.set_rng_seed(seed)
        loss = copy.deepcopy(objective).differentiable_loss(model, guide, *data)
        names, values = zip(*guide.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, values, allow_unused=True)
        expect(math.isfinite(loss.item()), f"the loss is {loss.item()}")
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is None:
                raise AssertionError(f"{name} has no gradient")
            expect(gradient.isfinite().all(), f"{name} has a gradient that is not finite")
            expect(gradient.abs().max() > 0, f"{name} has a zero gradient")


def check_values(
    objective: ParticleObjective, make_guide: Callable[..., Any], case: Case, seed: int = 1
) -> None:
    """
    Checks that all ways to ask for the loss agree, with gradients enabled and without.

    With and without may differ for an objective that has networks of its own, which it trains
    whenever it is evaluated with gradients enabled.

    :param ParticleObjective objective: the objective.
    :param make_guide: makes a guide of a model.
    :param Case case: the model and its data.
    :param int seed: of the draws.
    :raises AssertionError: naming the method.
    """
    model, data = case.make(), case.data()
    guide = make_guide(model).setup(*data)
    for _ in range(3):
        objective.differentiable_loss(model, guide, *data)

    def value(method: str, with_gradients: bool) -> float:
        """From a copy in the same state: some objectives learn from every evaluation."""
        pyro.set_rng_seed(seed)
        with torch.set_grad_enabled(with_gradients):
            found = getattr(copy.deepcopy(objective), method)(model, guide, *data)
        if method == "terms":
            found = -sum(found.values())
        return float(torch.as_tensor(found).detach())

    first = {grads: value("differentiable_loss", grads) for grads in (True, False)}
    trains = bool(objective.networks)
    for method, grads in (
        ("loss_and_grads", True),
        ("terms", True),
        ("terms", False),
        ("loss", False),
    ):
        found, enabled = value(method, grads), "enabled" if grads else "disabled"
        expect(
            math.isclose(found, first[grads], rel_tol=1e-5),
            f"{method} gives {found} with gradients {enabled}, differentiable_loss {first[grads]}",
        )
    found = value("loss", True)
    expect(
        math.isclose(found, first[False], rel_tol=1e-5),
        f"loss gives {found} with gradients enabled and {first[False]} without",
    )
    expect(
        trains or math.isclose(first[True], first[False], rel_tol=1e-5),
        f"differentiable_loss gives {first[True]} with gradients and {first[False]} without",
    )


#: a partition of the rows, out of order, with a short last batch
BATCHES = (torch.tensor([4, 0, 3, 1]), torch.tensor([5, 2]))


def check_minibatches(
    objective: ParticleObjective,
    make_guide: Callable[..., Any],
    case: Case,
    seed: int = 2,
    which: Sequence[str] = ("loss", "gradient"),
) -> None:
    """
    Checks that losses and gradients of minibatches average to those of all rows.

    :param ParticleObjective objective: the objective.
    :param make_guide: makes a guide of a model, and takes ``create_plates``.
    :param Case case: the model and its data.
    :param int seed: of the draws.
    :param which: ``"loss"``, ``"gradient"`` or both.
    :raises AssertionError: telling how far they differ.
    """
    model, (x, y) = case.make(torch.float64), case.data(dtype=torch.float64)
    guide = make_guide(model, create_plates=case.create_plates()).setup(x, y).to(x)
    first = BATCHES[0]
    objective.differentiable_loss(model, guide, x[first], y[first], first)

    def evaluate(*args: Any) -> Tensor:
        pyro.set_rng_seed(seed)
        loss = copy.deepcopy(objective).differentiable_loss(model, guide, *args)
        gradients = torch.autograd.grad(loss, list(guide.parameters()))
        found = [loss.reshape(1)] if "loss" in which else []
        found += [g.reshape(-1) for g in gradients] if "gradient" in which else []
        return torch.cat(found) if found else loss.new_zeros(0)

    full = evaluate(x, y)
    batches = [len(idx) / ROWS * evaluate(x[idx], y[idx], idx) for idx in BATCHES]
    expect_close(
        torch.stack(batches).sum(0), full, f"mean over minibatches of {', '.join(which)}", 1e-6
    )
