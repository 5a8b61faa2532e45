"""A run that goes on from a checkpoint ends in the same bits; a bad checkpoint changes nothing."""

from __future__ import annotations

import copy
import shutil
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from pyro_implicit import HyperNetworkGuide, LightningVI, LinearisedELBO
from pyro_implicit.exceptions import StateError
from pyro_implicit.training import linear_schedule
from pyro_implicit.training.lightning import Anneal
from pyro_implicit.training.lightning.checkpoint_state import CHECKPOINT_KEY as KEY
from tests.training.lightning.problem import OBJECTIVES, data, fit_module, flat, loader, trainer

COSINE = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10)


def run(folder, objective="linearised", ckpt_path=None, make_loader=loader, **options):
    """A fit with most of what can be asked for; returns all that it left."""
    vi = fit_module(objective, lr_scheduler=COSINE, num_val_samples=2)
    anneal = Anneal(vi.objective, "kl_weight", linear_schedule(0.0, 1.0, 8))
    fit = trainer(folder, callbacks=[anneal], gradient_clip_val=50.0, **options)
    fit.fit(vi, make_loader(), DataLoader(data(), batch_size=10), ckpt_path=ckpt_path)
    parts = [flat(vi), fit.optimizers[0].state_dict(), vi.objective.state_dict(), vi._stream.state]
    return [x for x in torch.utils._pytree.tree_leaves(parts) if isinstance(x, torch.Tensor)]


def assert_same(first, second):
    assert len(first) == len(second) > 5
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def checkpoint(folder, step):
    return next(folder.glob(f"*step={step}.ckpt"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of each objective, the whole run and its checkpoints after every step."""
    made = {}

    def get(objective):
        if objective not in made:
            folder = tmp_path_factory.mktemp("whole")
            made[objective] = folder, run(folder, objective)
        return made[objective]

    return get


# 5: the end of an epoch; 10: the end of the run
@pytest.mark.long
@pytest.mark.parametrize(
    ("objective", "step"),
    [("linearised", 3), ("lazy lanczos", 8), ("adversarial", 5)]
    + [
        pytest.param(name, step, marks=pytest.mark.slow)
        for name in OBJECTIVES
        for step in range(1, 11)
    ],
)
def test_from_any_step_the_end_is_the_same(runs, tmp_path, objective, step):
    folder, whole = runs(objective)
    assert_same(run(tmp_path, objective, checkpoint(folder, step)), whole)


@pytest.mark.long
def test_with_validation_within_epochs_and_accumulated_gradients(tmp_path):
    options = {"val_check_interval": 2, "accumulate_grad_batches": 2, "max_epochs": 2}
    whole = run(tmp_path / "whole", **options)
    for step in (3, 5):
        again = run(
            tmp_path / f"from {step}", ckpt_path=checkpoint(tmp_path / "whole", step), **options
        )
        assert_same(again, whole)


@pytest.mark.long
def test_with_epochs_that_end_early(tmp_path):
    options = {"limit_train_batches": 3, "max_epochs": 2}
    whole = run(tmp_path / "whole", **options)
    for step in (2, 3):
        again = run(
            tmp_path / f"from {step}", ckpt_path=checkpoint(tmp_path / "whole", step), **options
        )
        assert_same(again, whole)


@pytest.mark.long
def test_a_plain_loader_is_exact_from_the_end_of_an_epoch(tmp_path):
    def fit(folder, ckpt_path=None):
        vi = fit_module()
        fit = trainer(folder)
        fit.fit(vi, loader(cls=DataLoader), ckpt_path=ckpt_path)
        return flat(vi)

    whole = fit(tmp_path / "whole")
    again = fit(tmp_path / "again", checkpoint(tmp_path / "whole", 5))
    assert torch.equal(again, whole)


@pytest.mark.long
def test_a_plain_loader_in_the_middle_of_an_epoch_is_warned_of(tmp_path):
    trainer(tmp_path / "whole", max_epochs=1).fit(fit_module(), loader(cls=DataLoader))
    middle = checkpoint(tmp_path / "whole", 3)
    with pytest.warns(UserWarning, match="your dataloader is not resumable"):
        again = trainer(tmp_path / "again", max_epochs=1)
        again.fit(fit_module(), loader(cls=DataLoader), ckpt_path=middle)


@pytest.mark.long
def test_another_number_of_processes_is_warned_of(runs, tmp_path):
    folder, whole = runs("linearised")

    def two(content):
        for name in ("random", "gradients"):
            content[KEY][name] = content[KEY][name] * 2

    with pytest.warns(UserWarning, match="written by 2 processes and is taken up by 1"):
        again = run(tmp_path / "again", ckpt_path=changed(folder, tmp_path, two))
    assert not torch.equal(again[0], whole[0])


# ---- loading without a trainer


@pytest.mark.long
def test_a_guide_is_read_from_a_checkpoint_without_data(runs):
    folder, whole = runs("adversarial")
    path = checkpoint(folder, 10)
    fresh = fit_module("adversarial")
    parts = {"model": fresh.model, "guide": fresh.guide, "objective": fresh.objective}
    vi = LightningVI.load_from_checkpoint(path, weights_only=True, **parts)
    assert torch.equal(flat(vi), whole[0])
    assert vi.objective.critics == {}  # made, and restored, by the first batch
    vi.warm_up(data()[:4])
    (critic,) = vi.objective.critics.values()
    assert any(torch.equal(critic.state_dict()["quadratic.weight"], x) for x in whole)


def test_a_guide_that_does_not_fit(runs):
    folder, _ = runs("linearised")
    other = HyperNetworkGuide(fit_module().model, factorized=True)
    with pytest.raises(StateError, match="the checkpoint does not fit the guide"):
        LightningVI.load_from_checkpoint(
            checkpoint(folder, 3),
            model=other.model,
            guide=torch.nn.Linear(1, 1),
            objective=LinearisedELBO(2),
            weights_only=True,
        )


# ---- what does not fit is refused as a whole


def changed(folder, tmp_path, change):
    """A copy of a checkpoint with something else in it."""
    path = tmp_path / "changed.ckpt"
    content = torch.load(checkpoint(folder, 8), weights_only=True)
    change(content)
    torch.save(content, path)
    return path


def other_shape(content):
    name = next(key for key, x in content["state_dict"].items() if isinstance(x, torch.Tensor))
    content["state_dict"][name] = torch.zeros(7)


def other_structure(content):
    (name,) = (key for key in content["state_dict"] if key.endswith("_extra_state"))
    content["state_dict"][name]["samplers"][0]["scale"] = 0.5


def other_moments(content):
    for entry in content["optimizer_states"][0]["state"].values():
        entry["exp_avg"] = torch.zeros(7)


def fewer_parameters(content):
    content["optimizer_states"][0]["param_groups"][0]["params"].pop()


def option(name, value):
    return lambda content: content["optimizer_states"][0]["param_groups"][0].update({name: value})


def parameter_of_nan(content):
    name = next(key for key in content["state_dict"] if key.endswith("weights.0"))
    content["state_dict"][name].fill_(float("nan"))


def moment(index, value):
    def change(content):
        states = content["optimizer_states"][0]["state"]
        states[index] = copy.deepcopy(states[0])
        if value is not None:
            states[index]["exp_avg"].fill_(value)

    return change


def progress(**counts):
    return lambda content: content["loops"]["fit_loop"]["epoch_progress"]["current"].update(counts)


def place(content):
    content["loops"]["fit_loop"]["state_dict"]["combined_loader"][0].update(batch=-1)


CHANGES = {
    "learning rate": (option("lr", float("nan")), "lr of the checkpoint's optimiser is nan"),
    "pair": (option("betas", ()), r"betas of the checkpoint's optimiser is \(\)"),
    "betas": (option("betas", (0.9, float("nan"))), r"betas .* optimiser is \(0.9, nan\)"),
    "flag": (
        option("foreach", torch.zeros(2)),
        "foreach of the .* is a tensor",
    ),
    "no entry of ours": (lambda c: c.pop(KEY), "not a checkpoint of LightningVI"),
    "older": (lambda c: c[KEY].update(version=0), "format version 0; this release reads version 1"),
    "incomplete": (lambda c: c[KEY].pop("random"), r"incomplete.*lacks \['random'\]"),
    "objective": (lambda c: c[KEY].update(objective="Other"), "training with Other; this objec"),
    "state": (lambda c: c[KEY].update(objective_state={"a": 1}), "has no state to load"),
    "random": (lambda c: c[KEY]["random"][0]["noise"].pop("numpy"), "random state is not readable"),
    "no dict": (lambda c: c.update(state_dict=3), "state_dict is a int; expected a dict"),
    "missing": (lambda c: c["state_dict"].popitem(), "it lacks .* and has nothing beside"),
    "foreign": (lambda c: c["state_dict"].update(a=1), r"lacks nothing and has \['a'\] beside"),
    "shape": (other_shape, r"is \(7,\) torch.float32 there and"),
    "structure": (other_structure, r"_extra_state.samplers\[0\].scale is 0.5 there and 0.0 here"),
    "weights only": (lambda c: c.pop("optimizer_states"), "saved with save_weights_only=True"),
    "optimiser": (lambda c: c[KEY].update(optimizers=["SGD"]), r"\['SGD'\]; here it is \['Adam'\]"),
    "schedules": (
        lambda c: c["lr_schedulers"].pop(),
        "has 0 learning-rate schedules; here there a",
    ),
    "moments": (other_moments, r"exp_avg of parameter 0 has shape \(7,\) in the checkpoint's"),
    "parameters": (fewer_parameters, "optimiser is for 5 parameters; here there are 6"),
    "a kind": (lambda c: c[KEY].update(random={}), "random in .* is a dict; expected a list"),
    "processes": (lambda c: c[KEY]["gradients"].append({}), "1 processes and gradients of 2"),
    "no number": (parameter_of_nan, "parameter .* is not finite; take an older one"),
    "two optimisers": (
        lambda c: c["optimizer_states"].append(c["optimizer_states"][0]),
        "has 2 optimiser states; expected one",
    ),
    "moment of none": (moment(99, None), "a state for parameter 99"),
    "moment of nan": (moment(0, float("nan")), "exp_avg of parameter .* is no number; take an"),
    "schedule": (lambda c: c["lr_schedulers"][0].update(last_epoch=None), "last_epoch .* is None"),
    "rate": (
        lambda c: c["lr_schedulers"][0].update(base_lrs=[float("inf")]),
        r"base_lrs of the checkpoint's schedule is \[inf\]",
    ),
    "epoch": (lambda c: c.update(epoch=-1), "epoch of the checkpoint is -1"),
    "counter": (progress(ready=-1), "of the checkpoint is -1; expected a count"),
    "counters": (progress(ready=1, completed=2), "of the checkpoint contradicts itself"),
    "place": (place, "batch in .* of the checkpoint is -1"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_that_does_not_fit_changes_nothing(runs, tmp_path, name):
    change, message = CHANGES[name]
    folder, _ = runs("linearised")
    path = changed(folder, tmp_path, change)
    vi = fit_module(lr_scheduler=COSINE)
    vi.warm_up(data()[:4])
    before = copy.deepcopy(vi.state_dict())
    fit = trainer()
    with pytest.raises(StateError, match=message):
        fit.fit(vi, loader(), ckpt_path=path)
    assert fit.global_step == 0
    for key, value in vi.state_dict().items():
        same = torch.equal(value, before[key]) if torch.is_tensor(value) else value == before[key]
        assert same, key


def test_a_critic_of_another_shape_changes_nothing(runs, tmp_path):
    folder, _ = runs("adversarial")

    def change(content):
        content[KEY]["objective_state"]["critics"][0]["quadratic.weight"] = torch.zeros(7)

    vi = fit_module("adversarial", lr_scheduler=COSINE)
    vi.warm_up(data()[:4])
    before = flat(vi), copy.deepcopy(vi.objective.state_dict()["critics"])
    with pytest.raises(StateError, match="the critic of site .* was saved with .* this one has"):
        trainer().fit(vi, loader(), ckpt_path=changed(folder, tmp_path, change))
    assert torch.equal(flat(vi), before[0])
    after = vi.objective.state_dict()["critics"]
    assert all(torch.equal(value, before[1][0][key]) for key, value in after[0].items())


def test_a_truncated_file_changes_nothing(runs, tmp_path):
    folder, _ = runs("linearised")
    path = tmp_path / "truncated.ckpt"
    shutil.copy(checkpoint(folder, 8), path)
    path.write_bytes(path.read_bytes()[:-1000])
    vi = fit_module()
    vi.warm_up(data()[:4])
    before = flat(vi)
    with pytest.raises(StateError, match="truncated or damaged"):
        trainer().fit(vi, loader(), ckpt_path=path)
    assert torch.equal(flat(vi), before)
