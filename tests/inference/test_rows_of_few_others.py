"""Rows that belong to few others, far away or anywhere, and several data of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import evaluate, log_predictive_density, predict, to_arviz
from pyro_implicit.exceptions import ArgumentError, SiteError

W = 0.5


def _guide(*_: Any) -> None:
    pyro.sample("w", dist.Delta(torch.tensor(W)))


def _households(wide: bool) -> Callable[..., None]:
    """A row's mean over its household."""
    torch.manual_seed(0)
    net: Any = nn.Linear(1, 256).requires_grad_(False) if wide else None

    def model(x: Tensor, household: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        _, which, count = household.unique(return_inverse=True, return_counts=True)
        mean = (torch.zeros(len(count)).index_add(0, which, x) / count)[which]
        if net is not None:
            mean = net(mean[:, None]).mean(-1)
        with pyro.plate("rows", len(x)):
            mean = pyro.deterministic("mean", w * mean)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


@pytest.mark.long
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("edge", [1024, 2048, 5120])
def test_twins_on_any_edge_are_not_parted(edge: int, wide: bool) -> None:
    count = 8000
    household = torch.arange(count)
    household[edge:] -= 1  # the rows before and after the edge are twins
    x, y = torch.randn(count), torch.zeros(count)
    model = _households(wide)
    exact = log_predictive_density(model, _guide, x, household, y, num_samples=1)
    report = evaluate(model, _guide, x, household, y, num_samples=2, batch_size=1024)
    torch.testing.assert_close(report.rows["log_density"].float(), exact, rtol=1e-4, atol=1e-4)
    options: dict[str, Any] = {"num_samples": 2, "sites": ["mean"]}
    whole = predict(model, _guide, x, household, **options)["mean"]
    found = predict(model, _guide, x, household, batch_size=1024, **options)["mean"]
    torch.testing.assert_close(found, whole)
    with pytest.raises(ArgumentError, match="the rows of site 'mean' depend on each other"):
        to_arviz(model, _guide, x, household, y, num_samples=2, batch_size=1024)


@pytest.mark.long
def test_last_years_value_is_seen_under_a_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 1)).requires_grad_(False)
    lag, count = 6000, 18_000

    def means(x: Tensor) -> Tensor:
        last = nn.functional.pad(x, (lag, 0))[: len(x)]
        out: Tensor = net(torch.stack([x, last], 1))[:, 0]
        return out

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("hours", len(x)):
            pyro.sample("y", dist.Normal(w * means(x), 0.01), obs=y)

    x = torch.randn(count)
    y = W * means(x)
    expected = dist.Normal(0.0, 0.01).log_prob(torch.zeros(())).item()
    report = evaluate(model, _guide, x, y, num_samples=2, seed=0, batch_size=1000)
    assert report.log_density.value == pytest.approx(expected, abs=1e-3)
    found = predict(model, _guide, x, num_samples=2, seed=0, batch_size=1000)["y"]
    assert (found - y).abs().max() < 0.06


@pytest.mark.parametrize("count", [40, 1500])
def test_what_leaks_in_late_rows_is_refused(count: int) -> None:
    def guide(*_: Any) -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        mean = w[..., 0] + w[..., 1] * x
        with pyro.plate("rows", count, subsample_size=len(x)):
            leak = torch.where(x > 0.99, mean - w[..., 0].mean(), mean)
            pyro.sample("y", dist.Normal(leak, 1.0))

    x = torch.linspace(-1, 1, count)
    with pytest.raises(SiteError, match="depends on the other draws"):
        predict(model, guide, x, num_samples=20, parallel=True)


@pytest.mark.long
@pytest.mark.parametrize("count", [32, 33, 40])
@pytest.mark.parametrize("beside", [False, True])
def test_a_site_for_each_row_in_parallel(count: int, beside: bool) -> None:
    def guide(*_: Any) -> None:
        pyro.sample("w", dist.Normal(W, 1.0))

    def model(x: Tensor) -> None:
        w, state = pyro.sample("w", dist.Normal(0.0, 1.0)), torch.zeros(())
        for time in range(len(x)):
            state = 0.5 * state + w * x[time]
            pyro.sample(f"z{time}", dist.Normal(state, 1e-6))
        if beside:
            with pyro.plate("rows", len(x)):
                pyro.sample("y", dist.Normal(w * x, 1e-6))

    x = torch.randn(count)
    one = predict(model, guide, x, num_samples=4, seed=0)
    found = predict(model, guide, x, num_samples=4, seed=0, parallel=True)
    assert list(found) == list(one)
    for name, value in found.items():
        torch.testing.assert_close(value.reshape(one[name].shape), one[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [8, 33, 70])
def test_several_data_of_a_row_are_scored_by_themselves(count: int) -> None:
    def model(x: Tensor, y: Tensor, u: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        eyes = x.repeat_interleave(2)
        with pyro.plate("eyes", len(eyes)):
            pyro.sample("y", dist.Normal(w * eyes, 0.1), obs=y)
        with pyro.plate("people", len(x)):
            pyro.sample("u", dist.Normal(w * x, 1.0), obs=u)

    x, y, u = torch.randn(count), torch.randn(2 * count), torch.randn(count)
    report = evaluate(model, _guide, x, y, u, num_samples=2)
    exact = log_predictive_density(model, _guide, x, y, u, num_samples=1)
    torch.testing.assert_close(report.rows["log_density"].float(), exact)
    eyes = dist.Normal(W * x.repeat_interleave(2), 0.1)
    torch.testing.assert_close(report["y"].rows["log_density"].float(), eyes.log_prob(y))
    people = dist.Normal(W * x, 1.0)
    torch.testing.assert_close(report["u"].rows["log_density"].float(), people.log_prob(u))
