"""Pyro's autoguides of plates that show their rows in another order."""

from __future__ import annotations

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import AlphaEnergy, PosteriorPredictiveLoss, fit
from pyro_implicit.objectives import IWAE
from pyro_implicit.training.fitting.checks.other_order import warning_of_other_order

ROWS = torch.tensor([2, 0, 1])
Y = torch.tensor([1.0, 2.0, 3.0])


def by_place(rows: Tensor) -> None:
    with pyro.plate("rows", 3, subsample=rows):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=Y)


def by_number(rows: Tensor) -> None:
    with pyro.plate("rows", 3, subsample=rows) as ind:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=Y[ind])


def by_factor(rows: Tensor) -> None:
    with pyro.plate("rows", 3, subsample=rows) as ind:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.factor("likelihood", dist.Normal(z, 1.0).log_prob(Y[ind]))


def by_inputs(rows: Tensor) -> None:
    with pyro.plate("rows", 3, subsample=rows) as ind:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Bernoulli(logits=z + Y[ind]), obs=torch.ones(3))


def test_values_learned_by_place_are_told() -> None:
    guide = AutoNormal(by_place)
    with pytest.warns(UserWarning, match="plate 'rows' has its rows in another order"):
        result = fit(by_place, guide, ROWS, objective=Trace_ELBO(), num_steps=2, progress=False)
    assert any("create_plates" in text for text in result.warnings)


@pytest.mark.parametrize(
    ("model", "rows", "shared"),
    [
        (by_place, torch.arange(3), False),  # the same order
        (by_place, ROWS, True),  # the guide has the model's plate
        (by_number, ROWS, False),  # data follow the plate's numbers
        (by_factor, ROWS, False),
        (by_inputs, ROWS, False),
    ],
)
def test_the_same_order_is_not(model, rows: Tensor, shared: bool) -> None:
    def plates(rows: Tensor) -> list[pyro.plate]:
        return [pyro.plate("rows", 3, subsample=rows)]

    guide = AutoNormal(model, create_plates=plates if shared else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, guide, rows, objective=Trace_ELBO(), num_steps=2, progress=False)


@pytest.mark.parametrize(
    "objective",
    [Trace_ELBO(), AlphaEnergy(2), IWAE(2), PosteriorPredictiveLoss(2)],
    ids=lambda one: type(one).__name__,
)
def test_parameters_of_rows_follow_them_once(objective) -> None:
    """By the first step: each goes to where the data of its row are."""

    def model(rows: Tensor) -> None:
        with pyro.plate("rows", 3, subsample=rows):
            z = pyro.sample("z", dist.Normal(0.0, 9.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor([9.0, -9.0, 9.0]))

    guide = AutoNormal(model, create_plates=lambda rows: [pyro.plate("rows", 3, subsample=rows)])
    fit(model, guide, ROWS, objective=objective, num_steps=1, lr=0.1, progress=False, seed=0)
    assert guide.locs.z.sign().tolist() == [-1.0, 1.0, 1.0]  # of rows 0, 1 and 2


def test_models_that_cannot_be_run_are_left_alone() -> None:
    def broken(rows: Tensor) -> None:
        raise KeyError

    guide = AutoNormal(by_place)
    guide(ROWS)
    assert warning_of_other_order(broken, guide, (ROWS,), {}) == ""
    assert warning_of_other_order(by_place, lambda rows: None, (ROWS,), {}) == ""
