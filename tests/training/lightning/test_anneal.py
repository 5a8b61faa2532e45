"""One number that changes as training goes on."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

import lightning.pytorch as pl

from pyro_implicit import LinearisedELBO
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training import linear_schedule
from pyro_implicit.training.lightning import Anneal
from tests.training.lightning.problem import fit_module, loader, trainer


class Record(pl.Callback):
    def __init__(self, read):
        self.read, self.seen = read, []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.seen.append((self.read(), float(trainer.callback_metrics.get("anneal_kl_weight", -1))))


@pytest.mark.long
def test_the_weight_of_every_step_is_that_of_the_schedule_and_is_logged():
    vi = fit_module()
    record = Record(lambda: vi.objective.kl_weight)
    anneal = Anneal(vi.objective, "kl_weight", linear_schedule(0.0, 1.0, 8))
    trainer(callbacks=[anneal, record], max_epochs=2).fit(vi, loader())
    values = [value for value, _ in record.seen]
    assert values == [min(step / 8, 1.0) for step in range(10)]
    logged = [value for _, value in record.seen]
    assert logged == values
    assert vi.objective.kl_weight == vi.objective.prior_weight == 1  # the honest ELBO at the end


def test_a_buffer_is_filled_in_place():
    scale = torch.nn.Module()
    scale.register_buffer("scale", torch.ones(()))
    buffer = scale.scale
    vi = fit_module()
    trainer(callbacks=[Anneal(scale, "scale", lambda step: 0.5**step)], max_steps=3).fit(
        vi, loader()
    )
    assert scale.scale is buffer
    assert buffer.item() == 0.25


@pytest.mark.parametrize("name", ["no_such", "likelihood", "vectorize_particles"])
def test_what_is_no_number_is_refused(name):
    with pytest.raises(ArgumentError, match=f"{name!r} of LinearisedELBO is .*expected a number"):
        Anneal(LinearisedELBO(), name, linear_schedule(0.0, 1.0, 8))


def test_a_parameter_or_several_numbers_are_refused():
    for module in (torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(3)):
        name = "weight" if isinstance(module, torch.nn.Linear) else "running_mean"
        with pytest.raises(ArgumentError, match="that is no parameter"):
            Anneal(module, name, linear_schedule(0.0, 1.0, 8))


def test_a_schedule_is_a_function():
    with pytest.raises(ArgumentError, match="schedule=.* cannot be called; expected a function"):
        Anneal(LinearisedELBO(), "kl_weight", 1.0)
