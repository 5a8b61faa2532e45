"""Recorded steps of programs whose shapes follow from numbers: only where those stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.generators import AutoregressiveGenerator
from pyro_implicit.training import RecordedObjective, recorded
from pyro_implicit.training.step_call import StepCall

NAN = float("nan")
DATA = torch.tensor([0.3, NAN, 1.2, -0.4, NAN, 0.9])


def missing(y: Tensor) -> None:
    """The mean of what is there: its number of entries is a plain number of the program."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    there = y[~y.isnan()]
    pyro.factor("there", -(there - mean.unsqueeze(-1)).square().mean(-1))
    pyro.factor("how many", mean * len(there))


def above(y: Tensor) -> None:
    """A size that follows from a parameter."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    level = pyro.param("level", torch.tensor([0.5, 0.1, -0.2]))
    pyro.factor("size", -(mean - level.sum()).square() * len(level[level > 0]))


@pytest.fixture
def objective(monkeypatch: pytest.MonkeyPatch) -> RecordedObjective:
    monkeypatch.setattr(recorded, "_MAX_RELATIVE_STEP_TIME", float("inf"))
    return RecordedObjective(LinearisedELBO(5, vectorize_particles=True, max_plate_nesting=0))


def trained(
    model: Callable[..., None], objective: RecordedObjective, *args: Tensor
) -> HyperNetworkGuide:
    guide = HyperNetworkGuide(
        model,
        init_from=None,
        generator=lambda size: AutoregressiveGenerator(size, 4, num_blocks=1, num_steps=1),
    )
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), objective)
    for _ in range(10):
        svi.step(*args)
    return guide


def both(
    model: Callable[..., None],
    objective: RecordedObjective,
    guide: HyperNetworkGuide,
    *args: Tensor,
) -> tuple[float, float]:
    """The loss as the recorder gives it, and as the program does."""
    torch.manual_seed(3)
    found = objective.loss_and_grads(model, guide, *args)
    torch.manual_seed(3)
    return found, objective.objective.loss_and_grads(model, guide, *args)


@pytest.mark.long
@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([NAN, 0.1, NAN, 2.0, NAN, 0.5]),  # fewer entries
        torch.tensor([0.3, NAN, NAN, -0.4, 1.2, 0.9]),  # as many
    ],
)
def test_a_shape_that_follows_from_an_argument_is_replayed_for_this_argument_alone(
    objective: RecordedObjective, other: Tensor
) -> None:
    guide = trained(missing, objective, DATA)
    assert objective.is_recorded
    for y in (other, DATA, other):
        found, expected = both(missing, objective, guide, y)
        assert found == expected
    assert objective.is_recorded


@pytest.mark.long
def test_an_argument_that_was_written_into_is_another(objective: RecordedObjective) -> None:
    y = DATA.clone()
    guide = trained(missing, objective, y)
    y[0] = NAN
    found, expected = both(missing, objective, guide, y)
    assert found == expected


@pytest.mark.long
def test_an_argument_that_was_written_into_past_pytorch_is_another(
    objective: RecordedObjective,
) -> None:
    y = DATA.clone()
    guide = trained(missing, objective, y)
    y.numpy()[0] = NAN  # tells no version
    found, expected = both(missing, objective, guide, y)
    assert found == expected and objective.is_recorded


READ: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda y: 10.0 if y.numpy()[0] > 0 else 1.0,
    "tensor": lambda y: torch.tensor([y[0], y[2]]).sum(),
    "nested": lambda y: torch.as_tensor([[y[0]], [y[2]]]).sum(),
    "new tensor": lambda y: y.new_tensor((y[0], 1.0)).sum(),
    "index": lambda y: torch.arange(6.0).view(3, 2)[[(y[0] > 0).long(), 1], 0].sum(),
    "split": lambda y: torch.arange(3.0).tensor_split((y[:1] > 0).long())[0].sum(),
}


@pytest.mark.long
@pytest.mark.parametrize("name", READ)
def test_numbers_that_are_read_out_of_an_argument_are_no_constants(
    objective: RecordedObjective, name: str
) -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.factor("y", mean * READ[name](y))

    with pytest.warns(PerformanceHint, match="it reads a number from a tensor"):
        guide = trained(model, objective, DATA)
    found, expected = both(model, objective, guide, -DATA)
    assert found == expected


@pytest.mark.long
def test_one_tensor_as_two_arguments_is_two_arguments(objective: RecordedObjective) -> None:
    def model(x: Tensor, y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.factor("y", -(mean * x.sum() - y.sum()).square())

    x, other = torch.tensor([0.5, 0.2]), torch.tensor([1.5, -0.2])
    guide = trained(model, objective, x, x)
    assert objective.is_recorded
    for args in ((other, x), (x, other), (x, x)):
        found, expected = both(model, objective, guide, *args)
        assert found == expected
    assert objective.is_recorded


@pytest.mark.long
def test_an_argument_that_the_model_names_as_well_stays_where_it_is_named(
    objective: RecordedObjective,
) -> None:
    table, other = torch.tensor([0.5, 0.2]), torch.tensor([1.5, -0.2])

    def model(x: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.factor("x", -(mean - (x - table.mean()).sum()).square())

    guide = trained(model, objective, table)
    assert objective.is_recorded
    for x in (other, table):
        found, expected = both(model, objective, guide, x)
        assert found == expected


@pytest.mark.long
def test_a_shape_that_follows_from_a_parameter_is_not_recorded(
    objective: RecordedObjective,
) -> None:
    with pytest.warns(PerformanceHint, match="a shape follows from the numbers of a draw"):
        guide = trained(above, objective, DATA)
    assert not objective.is_recorded
    found, expected = both(above, objective, guide, DATA)
    assert found == expected


class Seen(torch.nn.Module):
    """A mask of the rows that count, which a user changes on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(6, dtype=torch.bool))
        self.register_buffer("scale", torch.ones(6))


Change = Callable[[Seen, int], None]


def _mask(seen: Seen, step: int) -> None:
    if step == 8:
        seen.rows[:4] = False


def _load(seen: Seen, step: int) -> None:
    if step == 8:
        rows = torch.tensor([True, False] * 3)
        seen.load_state_dict({"rows": rows, "scale": torch.ones(6)})


def _resize(seen: Seen, step: int) -> None:
    if step == 8:
        seen.scale.data = torch.ones(2)


def _each(seen: Seen, step: int) -> None:
    seen.scale.mul_(1.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "is_recorded"), [(_mask, True), (_load, True), (_resize, True), (_each, True)]
)
def test_shapes_that_follow_tensors_that_the_model_holds(
    change: Change, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_MAX_RELATIVE_STEP_TIME", float("inf"))
    data = torch.linspace(-1, 1, 6)

    def losses(record: bool) -> list[float]:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        seen = Seen()

        def model(y: Tensor) -> None:
            mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
            if change is _mask or change is _load:
                pyro.factor("there", -(mean - y[seen.rows].sum()).square() * seen.rows.sum())
                pyro.factor("how many", mean * len(y[seen.rows]))
            else:
                pyro.factor("there", -(mean - seen.scale.sum()).square() * len(seen.scale))

        elbo: Any = LinearisedELBO(5, vectorize_particles=True, max_plate_nesting=0)
        objective = RecordedObjective(elbo) if record else elbo
        guide = HyperNetworkGuide(model, init_from=None)
        svi, found = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), objective), []
        for step in range(16):
            change(seen, step)
            found.append(svi.step(data))
        assert not record or objective.is_recorded == is_recorded
        return found

    assert losses(True) == losses(False)


@pytest.mark.long
def test_a_mask_that_changes_at_each_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_MAX_RELATIVE_STEP_TIME", float("inf"))
    seen = Seen()

    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.factor("how many", -mean.square() * len(y[seen.rows]))

    objective = RecordedObjective(LinearisedELBO(5, vectorize_particles=True))
    guide = HyperNetworkGuide(model, init_from=None)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), objective)
    with pytest.warns(PerformanceHint, match="a tensor that model or guide holds changes from"):
        for step in range(200):
            if step % 5 == 4:
                seen.rows[step % 6] = not bool(seen.rows[step % 6])
            svi.step(torch.zeros(6))


def test_another_precision_of_autocast_is_another_graph() -> None:
    def kind() -> str:
        return str(StepCall(missing, missing, (), {}).kind(None))

    kinds = [kind()]
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            kinds.append(kind())
    with mock.patch("torch.is_autocast_enabled", lambda device: device == "cuda"):
        kinds.append(kind())
    assert len(set(kinds)) == 4


@pytest.mark.long
def test_a_step_that_is_refused_while_it_is_compared_leaves_gradients_alone(
    objective: RecordedObjective,
) -> None:
    is_bad = False

    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        if is_bad:
            raise ValueError("refused")
        pyro.factor("y", -(y.sum() - mean).square())

    guide, y = HyperNetworkGuide(model, init_from=None), torch.ones(4)
    for _ in range(recorded._NUM_WARM_UP_STEPS + 2):  # recorded, and compared once of several times
        objective.loss_and_grads(model, guide, y)
    assert objective.is_recorded
    before = {n: p.grad.clone() for n, p in guide.named_parameters() if p.grad is not None}
    is_bad = True
    with pytest.raises(ValueError, match="refused"):
        objective.loss_and_grads(model, guide, y)
    after = {n: p.grad for n, p in guide.named_parameters() if p.grad is not None}
    assert before and before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
