"""Rows that are one datum: new ones by themselves are told, those given the old ones are not."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, evaluate, log_predictive_density, predict, refine
from pyro_implicit.handlers.rows.joint_rows import is_joint_of_rows, warning_of_joint_rows

X, NEW = torch.linspace(0.0, 1.0, 12), torch.linspace(1.0, 1.5, 5)
Y = torch.sin(6.0 * X)
TOLD = r"\['y'\] is one datum of all rows.*taken by themselves"


def kernel(one: Tensor, other: Tensor, length: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((one[:, None] - other) / length[..., None, None]) ** 2)


def process(
    x: Tensor, y: Tensor | None = None, new: Tensor | None = None, later: Any = None
) -> Any:
    length = pyro.sample("length", dist.LogNormal(-1.0, 0.5))
    cov = kernel(x, x, length) + 0.01 * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(x.new_zeros(len(x)), cov), obs=y)
    if new is not None and y is not None:
        between = kernel(new, x, length)
        mean = between @ torch.linalg.solve(cov, y)
        rest = kernel(new, new, length) - between @ torch.linalg.solve(cov, between.mT)
        rest = rest + 0.01 * torch.eye(len(new))
        pyro.sample("later", dist.MultivariateNormal(mean, rest), obs=later)


def guides() -> dict[str, Any]:
    guide = HyperNetworkGuide(process, init_from=None).setup(X, Y)
    start = {"length": torch.full((2,), 0.3)}
    options: dict[str, Any] = {"kernel": "hmc", "num_chains": 2, "num_steps": 0}
    chains = refine(process, start, X, Y, progress=False, **options)
    return {"guide": guide, "chains": chains}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["guide", "chains"])
@pytest.mark.parametrize("new", [NEW, 1.0 + X])
def test_new_rows_by_themselves_are_told(kind: str, new: Tensor) -> None:
    guide, y = guides()[kind], torch.zeros(len(new))
    calls = [
        lambda: predict(process, guide, new, num_samples=2),
        lambda: evaluate(process, guide, new, y, num_samples=2),
        lambda: log_predictive_density(process, guide, new, y, num_samples=2),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match=TOLD) as caught:
            call()
        assert [one.filename for one in caught] == [__file__]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["guide", "chains"])
def test_the_same_rows_and_new_ones_given_them_are_not(kind: str) -> None:
    guide = guides()[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(process, guide, X, num_samples=2)
        found = predict(process, guide, X, Y, new=NEW, num_samples=2)
        evaluate(process, guide, X, Y, new=NEW, later=torch.zeros(5), num_samples=2)
        log_predictive_density(process, guide, X, Y, num_samples=2)
    assert found["later"].shape == (2, 5)


def site_of(make: Any, size: int = 0) -> Any:
    def model() -> None:
        if size:
            with pyro.plate("rows", size):
                pyro.sample("y", make())
        else:
            pyro.sample("y", make())

    return pyro.poutine.trace(model).get_trace().nodes["y"]


NORMAL = dist.MultivariateNormal(torch.zeros(4), torch.eye(4))


def test_what_is_one_datum_of_all_rows() -> None:
    low = dist.LowRankMultivariateNormal(torch.zeros(4), torch.ones(4, 1), torch.ones(4))
    student = dist.MultivariateStudentT(torch.tensor(3.0), torch.zeros(4), torch.eye(4))
    for fn in (NORMAL, low, student, NORMAL.mask(True), NORMAL.expand([2]).to_event(1)):
        assert is_joint_of_rows(site_of(lambda fn=fn: fn), 4)
        assert not is_joint_of_rows(site_of(lambda fn=fn: fn), 5)
    assert not is_joint_of_rows(site_of(lambda: dist.Normal(torch.zeros(4), 1.0).to_event(1)), 4)
    assert not is_joint_of_rows(site_of(lambda: NORMAL, 4), 4)  # four outputs of four rows
    one = dist.MultivariateNormal(torch.zeros(1), torch.eye(1))
    assert not is_joint_of_rows(site_of(lambda: one), 1)
    assert warning_of_joint_rows([]) == ""
