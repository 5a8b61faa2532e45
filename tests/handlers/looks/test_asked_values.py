"""Where a program asks for the value of what it was given, and where it only seems to."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.looks.asked_values import AskedValues

X = torch.ones(5)


def _written(w: Tensor) -> float:
    into = torch.zeros(3)
    into[0] = w
    return float(into.sum())


def _asserted(w: Tensor) -> Tensor:
    assert (w.abs() < 10).all(), "far"
    return w


def _raised(w: Tensor) -> Tensor:
    if (
        not torch.isfinite(w).all()
        or (w.abs() > 10).any()
    ):  # fmt: skip
        raise ValueError("far")
    return w


def _asserted_at_length(w: Tensor) -> Tensor:
    assert (
        w.abs() < 10
    ).all(), "far"  # fmt: skip
    return w


def _raised_with_a_message(w: Tensor) -> Tensor:
    if w.min() < -10:
        message = f"far: {w}"
        raise ValueError(message)
    return w


def _raised_or_turned(w: Tensor) -> Tensor:
    if (w.abs() > 10).any():
        raise ValueError("far")
    elif (w > 0).any():
        w = -w
    return w


def _under_a_device(w: Tensor) -> float:
    with torch.device("cpu"):  # a mode of torch between the program and the one that looks
        return float(w.sum())


def _set_where(f: Tensor) -> Tensor:
    f[f > 0] = 0.0
    return f


ASKING: dict[str, Any] = {
    "under another mode": lambda w, x: _under_a_device(w),
    "any": lambda w, x: 1.0 if (w > 0).any() else 0.0,
    "all": lambda w, x: 1.0 if torch.all(w > 0) else 0.0,
    "item": lambda w, x: w.sum().item(),
    "float": lambda w, x: float(w.sum()),
    "int": lambda w, x: x[int((w > 0).sum() > 0)],
    "list": lambda w, x: sum(w.reshape(-1).tolist()),
    "numpy": lambda w, x: torch.as_tensor(w.numpy().sum()),
    "array": lambda w, x: torch.as_tensor(np.asarray(w).sum()),
    "index": lambda w, x: x[[1, 2][(w > 0).long().sum()]] if w.dim() == 0 else x[0],
    "equal": lambda w, x: 1.0 if torch.equal(w, w * 2) else 0.0,
    "after steps": lambda w, x: 1.0 if bool(torch.stack([w, w]).sigmoid().max() > 0.7) else 0.0,
    "contained": lambda w, x: 1.0 if 0.3 in w else 0.0,
    "complex": lambda w, x: abs(complex(w)),
    "dlpack": lambda w, x: torch.as_tensor(np.from_dlpack(w.reshape(1)).sum()),
    "selected": lambda w, x: w.reshape(-1)[w.reshape(-1) > 0].numel(),
    "selected of data": lambda w, x: x[(x * w) > 0].sum(),
    "selected by a mask": lambda w, x: (x * w).masked_select((x * w) > 0).sum(),
    "where alone": lambda w, x: torch.where(x * w > 0)[0].numel(),
    "not zero": lambda w, x: len(torch.nonzero(x * w > 0)),
    "unique": lambda w, x: (x * w).unique().numel(),
    "repeated": lambda w, x: x.repeat_interleave((x * w).abs().long()).numel(),
    "written in place": lambda w, x: _written(w.sum()),
    "a guard with another way": lambda w, x: _raised_or_turned(w),
}
SILENT: dict[str, Any] = {
    "where": lambda w, x: torch.where(w > 0, 1.0, 0.0),
    "of data": lambda w, x: 1.0 if (x > 0).all() else x.sum().item(),
    "shape": lambda w, x: float(w.dim()) + len(w.shape),
    "an assertion": lambda w, x: _asserted(w),
    "one of several lines": lambda w, x: _asserted_at_length(w),
    "a guard": lambda w, x: _raised(w),
    "a guard with a message": lambda w, x: _raised_with_a_message(w),
    "places of data": lambda w, x: (x * w)[x > 0].sum() + torch.where(x > 0)[0].numel(),
    "written where": lambda w, x: _set_where((x * w).clone()),
    "a place": lambda w, x: x[(w > 0).long()],
    "repeated as data say": lambda w, x: (x * w).repeat_interleave(x.long()).sum(),
    "a text": lambda w, x: len(f"{w.sum()}") + len(repr(w)),
    "a list of tensors": lambda w, x: torch.stack([w, w]).sum(0),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_value_that_is_asked_for(name: str) -> None:
    w = torch.tensor(0.3)
    with AskedValues([w]) as asked:
        ASKING[name](w, X)
    assert asked.place is not None and asked.place.endswith(" of test_asked_values.py")


@pytest.mark.parametrize("name", SILENT)
def test_what_is_no_value(name: str) -> None:
    w = torch.tensor(0.3)
    with AskedValues([w]) as asked:
        SILENT[name](w, X)
    assert asked.place is None


def test_what_libraries_ask_is_passed_over() -> None:
    w = torch.tensor(0.3)
    with AskedValues([w]) as asked:
        dist.Normal(w, 1.0, validate_args=True).log_prob(w)
        dist.LKJCholesky(3, 1 + w).log_prob(torch.eye(3))
    assert asked.place is None


@pytest.mark.long
def test_nothing_is_kept_alive_and_no_other_tensor_is_taken_for_one() -> None:
    with AskedValues([torch.tensor(0.3)]) as asked:
        gc.collect()
        for _ in range(100):  # some have the number of the one that is gone
            float(torch.tensor(0.3))
    assert asked.place is None


def _model(ask: Any) -> Any:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0, validate_args=True))
        mean = w * x + ask(w, x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x)

    return model


@pytest.mark.parametrize("name", ["any", "all"])
def test_vectorised_models_that_ask_are_refused(name: str) -> None:
    model = _model(ASKING[name])
    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    objective = LinearisedELBO(4, vectorize_particles=True)
    match = r"asks for the value of what depends on its latents \(line \d+ of test_asked_values.py"
    with pytest.raises(SiteError, match=match):
        objective.differentiable_loss(model, guide, X)
    state = torch.get_rng_state()
    LinearisedELBO(4).differentiable_loss(model, guide, X)
    assert not torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["any", "contained", "where alone"])
def test_a_loss_without_gradients_is_refused_too(name: str) -> None:
    model = _model(ASKING[name])
    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    objective = LinearisedELBO(4, vectorize_particles=True)
    with pytest.raises(SiteError, match="asks for the value of what depends on its latents"):
        objective.loss(model, guide, X)


def test_after_a_loss_without_gradients_a_step_looks_at_gradients_too() -> None:
    """Draws that are mixed far below the tolerance of values."""

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w + 1e-6 * w.mean(), 1.0), obs=torch.tensor(0.0))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = LinearisedELBO(4, vectorize_particles=True, max_plate_nesting=0)
    objective.loss(model, guide)
    with pytest.raises(SiteError):
        objective.differentiable_loss(model, guide)


@pytest.mark.parametrize("name", ["where", "of data"])
def test_others_are_not(name: str) -> None:
    model = _model(SILENT[name])
    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    LinearisedELBO(4, vectorize_particles=True).differentiable_loss(model, guide, X)


def test_a_branch_of_a_network_model() -> None:
    net = BayesianModule(nn.Linear(1, 1), dist.Normal(0.0, 1.0))

    def model(x: Tensor) -> None:
        f = net(x[:, None]).squeeze(-1)
        if (f > 1e9).any():
            f = f + 1
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=x)

    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    with pytest.raises(SiteError, match="asks for the value"):
        LinearisedELBO(4, vectorize_particles=True).differentiable_loss(model, guide, X)
