"""Models that write in place are mapped over draws: the same numbers as one after the other."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit, refine
from pyro_implicit.handlers.mapped.mapped_writing import WritingMap

DATA = torch.linspace(-1.0, 1.0, 12)
MASK = torch.arange(12) % 3 == 0


def written_entries(u: Tensor) -> Tensor:
    x = torch.zeros(4)
    x[0], x[-1] = u[0], u[1].exp()
    x[1:3] = u[1:]
    return x.square().sum()


def filled_by_mask(u: Tensor) -> Tensor:
    x = DATA.clone()
    x[MASK] = u[0] * DATA[MASK]
    x.masked_fill_(~MASK, 2.0)
    return (x * u[1]).sum()


def added_in_place(u: Tensor) -> Tensor:
    x = torch.ones(3)
    x += u
    x *= u[0]
    return x.sum().sin()


def of_any_maker(u: Tensor) -> Tensor:
    total = torch.zeros(())
    for x in (
        torch.ones(3),
        torch.full((3,), 2.0),
        torch.empty(3).fill_(1.0),
        torch.eye(3),
        torch.tensor([1.0, 2.0, 3.0]),
        torch.zeros_like(DATA[:3]),
        DATA.new_zeros(3),
        DATA.new_full((3,), 0.5),
        DATA[:1].repeat(3),
        DATA[:3].double().clone(),
    ):
        x[1] = u[0]
        x -= u
        total += x.square().sum()
    return total


def written_nowhere(u: Tensor) -> Tensor:
    return torch.cat([u, torch.zeros(2)]).cos().sum()


@pytest.mark.parametrize(
    "function", [written_entries, filled_by_mask, added_in_place, of_any_maker, written_nowhere]
)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_values_and_gradients_are_those_of_one_after_the_other(function: Any, size: int) -> None:
    torch.manual_seed(0)
    entries = torch.randn(size, 3, requires_grad=True)
    mapping = WritingMap()
    for _ in range(2):
        mapped = mapping(function, entries)
        one_by_one = torch.stack([function(entry) for entry in entries])
        torch.testing.assert_close(mapped, one_by_one)
        found, expected = (torch.autograd.grad(x.sum(), entries)[0] for x in (mapped, one_by_one))
        torch.testing.assert_close(found, expected)
    assert mapping.writes is (function is not written_nowhere)


def test_random_numbers_are_those_of_a_map_that_did_not_fail_first() -> None:
    def function(u: Tensor) -> Tensor:
        noise = torch.randn(3)
        x = torch.zeros(3)
        x[:] = u + noise
        return x

    entries, mapping = torch.zeros(4, 3), WritingMap()
    torch.manual_seed(0)
    first = mapping(function, entries, randomness="different")
    torch.manual_seed(0)
    assert torch.equal(mapping(function, entries, randomness="different"), first)


def test_what_fails_in_another_way_too_has_the_first_error() -> None:
    def branches(u: Tensor) -> Tensor:
        x = torch.zeros(3)
        x[0] = u[0]
        return x if float(u[0]) > 0 else -x

    entries = torch.ones(2, 3)
    with pytest.raises(RuntimeError) as plain:
        vmap(branches)(entries)
    with pytest.raises(RuntimeError) as found:
        WritingMap()(branches, entries)
    assert str(found.value) == str(plain.value)

    def reads(u: Tensor) -> Tensor:
        return u if float(u[0]) > 0 else -u

    mapping = WritingMap()
    with pytest.raises(RuntimeError, match="item"):
        mapping(reads, entries)
    assert mapping.writes is None


def test_what_runs_out_of_memory_is_told() -> None:
    def hungry(u: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("out-of-place")

    with pytest.raises(torch.OutOfMemoryError):
        WritingMap()(hungry, torch.ones(2, 3))


def ordinal(x: Tensor) -> None:
    """Pyro's OrderedLogistic writes its probabilities into a new tensor."""
    b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    steps = pyro.sample("steps", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        fn = dist.OrderedLogistic(x @ b, steps.exp().cumsum(-1))
        pyro.sample("y", fn, obs=torch.arange(len(x)) % 3)


def imputed(x: Tensor) -> None:
    """Missing inputs are latents that are written into a copy of the data."""
    b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    missing = pyro.sample("missing", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    filled = x.clone()
    filled[:2, 0] = missing
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(filled @ b, 1.0), obs=x.sum(-1))


@pytest.mark.long
@pytest.mark.parametrize("model", [ordinal, imputed])
def test_fit_maps_models_that_write(model: Any) -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, x, num_steps=3, progress=False, seed=0)
    assert result.objective.vectorize_particles == "vmap"
    assert not any("one after the other" in text for text in result.warnings)
    losses: list[float] = []
    for way in ("vmap", False):
        objective = LinearisedELBO(num_particles=400, vectorize_particles=way)
        pyro.set_rng_seed(0)
        with torch.no_grad():
            losses.append(objective.loss(model, guide, x))
    assert losses[0] == pytest.approx(losses[1], abs=0.6)


@pytest.mark.long
@pytest.mark.parametrize("model", [ordinal, imputed])
def test_chains_of_models_that_write_are_mapped(model: Any) -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    chains = refine(model, 3, x, num_steps=0, progress=False, seed=0)
    assert chains.how in ("vmap", "recorded")


def test_warnings_of_the_model_are_its_own() -> None:
    def speaks(u: Tensor) -> Tensor:
        warnings.warn("of mine", stacklevel=1)
        return u

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="of mine"):
            WritingMap()(speaks, torch.ones(2, 3))
    with pytest.warns(UserWarning, match="of mine"):
        WritingMap()(speaks, torch.ones(2, 3))


def test_operations_without_a_rule_are_mapped_without_a_word() -> None:
    def clamped(u: Tensor) -> Tensor:
        return u.scatter(0, torch.tensor([1]), u[:1]).clamp_(min=0.5)

    entries, mapping = torch.rand(4, 3), WritingMap()
    for _ in range(2):
        expected = torch.stack([clamped(entry) for entry in entries])
        torch.testing.assert_close(mapping(clamped, entries), expected)
