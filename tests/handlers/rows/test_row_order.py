"""Rows in any order are those of their numbers, whatever is around a guide or beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.handlers.rows.row_order import BY_NUMBER, BY_PLACE, RowOrder

SIZE = 40
LEVELS = torch.linspace(-5.0, 5.0, SIZE)
ALL = torch.arange(SIZE)
SHUFFLED = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))
BEST = float(dist.Normal(0.0, 0.3).log_prob(torch.tensor(0.0)))


def model(rows: Tensor, y: Tensor | None = None) -> Tensor:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", SIZE, subsample=rows):
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
        return pyro.sample("y", dist.Normal(mean + level, 0.3), obs=y)


def plates(rows: Tensor, y: Tensor | None = None) -> Any:
    return pyro.plate("rows", SIZE, subsample=rows)


def by_place(rows: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("mean", dist.Delta(torch.tensor(0.0)))
    with plates(rows):
        pyro.sample("level", dist.Delta(LEVELS[rows]))


def init(site: Any) -> Tensor:
    return torch.tensor(0.0) if site["name"] == "mean" else LEVELS


def part(kind: Any, name: str, **options: Any) -> Any:
    some = poutine.block(model, expose=[name])
    if kind is HyperNetworkGuide:
        values = {"mean": torch.tensor(0.0), "level": LEVELS}
        options |= {"init_loc_fn": init_to_value(values=values), "init_from": None}
        return kind(some, init_scale=1e-3, **options)
    return kind(some, init_loc_fn=init, **({} if kind is AutoDelta else {"init_scale": 1e-3}))


def of_parts(kind: Any, create_plates: Any = None) -> Any:
    guide = AutoGuideList(model, create_plates=create_plates)
    for name in ("mean", "level"):
        guide.append(part(kind, name))
    guide(ALL)
    return guide


def whole(kind: Any, **options: Any) -> Any:
    values = {"mean": torch.tensor(0.0), "level": LEVELS}
    if kind is HyperNetworkGuide:
        options |= {"init_from": None}
    where = init_to_value(values=values)
    guide = kind(model, init_loc_fn=where, init_scale=1e-3, **options)
    guide(ALL, LEVELS)
    return guide


def nested() -> Any:
    outer = AutoGuideList(model)
    inner = AutoGuideList(poutine.block(model, expose=["level"]))
    inner.append(part(AutoNormal, "level"))
    outer.append(part(AutoNormal, "mean"))
    outer.append(inner)
    outer(ALL)
    return outer


def mixed_list() -> Any:
    guide = AutoGuideList(model)
    guide.append(part(AutoNormal, "mean"))

    def level(rows: Tensor, y: Tensor | None = None) -> None:
        with plates(rows):
            pyro.sample("level", dist.Delta(LEVELS[rows]))

    guide.append(level)
    guide(ALL)
    return guide


GUIDES: dict[str, Callable[[], Any]] = {
    "AutoNormals": lambda: of_parts(AutoNormal),
    "AutoNormals with plates": lambda: of_parts(AutoNormal, plates),
    "AutoDeltas": lambda: of_parts(AutoDelta),
    "our guides": lambda: of_parts(HyperNetworkGuide),
    "our guides with plates": lambda: of_parts(HyperNetworkGuide, plates),
    "a list in a list": nested,
    "a list with a function": mixed_list,
    "functions": lambda: EnsembleGuide([by_place, by_place]),
    "our ensemble": lambda: EnsembleGuide([whole(HyperNetworkGuide, create_plates=plates)] * 2),
    "both of ours": lambda: EnsembleGuide(
        [whole(HyperNetworkGuide), whole(HyperNetworkGuide, create_plates=plates)]
    ),
    "an ensemble of lists": lambda: EnsembleGuide([of_parts(AutoNormal)] * 2),
    "a handler": lambda: poutine.mask(whole(AutoNormal), mask=torch.tensor(True)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.parametrize("rows", [SHUFFLED, ALL.flip(0), ALL, torch.tensor([7, 30, 2])])
def test_latents_are_those_of_their_rows(name: str, rows: Tensor) -> None:
    guide, y = GUIDES[name](), LEVELS[rows]
    found = predict(model, guide, rows, num_samples=100, seed=0)["y"]
    torch.testing.assert_close(found.mean(0), y, atol=0.2, rtol=0.0)
    density = log_predictive_density(model, guide, rows, y, num_samples=3, seed=0)
    torch.testing.assert_close(density, torch.full_like(y, BEST), atol=0.01, rtol=0.0)
    assert abs(evaluate(model, guide, rows, y, num_samples=3).log_density.value - BEST) < 0.01
    exported = to_arviz(model, guide, rows, y, num_samples=3, groups=("log_likelihood",))
    assert abs(float(exported["log_likelihood"]["y"].mean()) - BEST) < 0.01


@pytest.mark.long
def test_guides_of_other_orders_are_refused_where_it_matters() -> None:
    guide = EnsembleGuide([whole(HyperNetworkGuide), by_place])
    for rows in (SHUFFLED, ALL.flip(0)):
        y = LEVELS[rows]
        for call in (
            lambda rows=rows: predict(model, guide, rows, num_samples=4),
            lambda rows=rows, y=y: log_predictive_density(model, guide, rows, y, num_samples=4),
            lambda rows=rows, y=y: evaluate(model, guide, rows, y, num_samples=4),
            lambda rows=rows, y=y: to_arviz(model, guide, rows, y, num_samples=4),
        ):
            with pytest.raises(ShapeError, match="'level' for all rows of plate 'rows', some in"):
                call()
    density = log_predictive_density(model, guide, ALL, LEVELS, num_samples=4)
    torch.testing.assert_close(density, torch.full((SIZE,), BEST), atol=0.01, rtol=0.0)


def test_orders_of_several() -> None:
    some, other = RowOrder(frozenset({"a"})), RowOrder(frozenset({"b"}))
    assert RowOrder.of_any([some, some]) == some
    assert RowOrder.of_any([some, other]) == RowOrder(frozenset(), frozenset({"a", "b"}))
    assert RowOrder.of_any([some, BY_NUMBER]).unclear is None
    assert RowOrder.of_any([RowOrder(frozenset(), frozenset({"c"})), some]).unclear == {"a", "c"}
    parts = [(frozenset({"x"}), BY_NUMBER), (frozenset({"z"}), BY_PLACE), (frozenset(), some)]
    assert RowOrder.of_parts(parts) == RowOrder(frozenset({"x", "a"}))
    mixed = RowOrder.of_any([BY_NUMBER, BY_PLACE])
    assert RowOrder.of_parts([(frozenset({"x"}), mixed)]).unclear == {"x"}
    assert not BY_PLACE.is_numbered("a", "p", None) and BY_NUMBER.is_numbered("a", "p", SHUFFLED)
    assert not mixed.is_numbered("a", "p", ALL)  # in whichever order: it is the same
