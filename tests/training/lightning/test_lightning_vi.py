"""LightningVI: the same numbers as a plain loop, and all that the Trainer adds."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

import lightning.pytorch as pl
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader

from pyro_implicit import (
    BayesianModule,
    HyperNetworkGuide,
    LightningVI,
    LinearisedELBO,
    log_predictive_density,
    predict,
)
from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import (
    ArgumentError,
    NonFiniteError,
    ShapeError,
    SiteError,
    StateError,
)
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.inference.evaluation.draw_chunks import DrawChunks
from pyro_implicit.training import ResumableLoader
from tests.contract.registry import GUIDES, MODELS, OBJECTIVES
from tests.training.lightning.problem import (
    BATCH,
    ROWS,
    data,
    fit_module,
    flat,
    loader,
    model,
    trainer,
)

SGD = partial(torch.optim.SGD, lr=1e-4)


class Watch(pl.Callback):
    """Calls a function after every step and collects what it returns."""

    def __init__(self, read):
        self.read, self.seen = read, []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.seen.append(self.read(trainer, pl_module))


def test_a_schedule_that_waits_for_a_fall_is_refused():
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    vi = fit_module(lr_scheduler=plateau)
    vi.warm_up(next(iter(loader())))
    with pytest.raises(ArgumentError, match="mode='min'; it watches val_log_predictive"):
        vi.configure_optimizers()
    vi = fit_module(lr_scheduler=partial(plateau, mode="max"))
    vi.warm_up(next(iter(loader())))
    assert vi.configure_optimizers()["lr_scheduler"]["monitor"] == "val_log_predictive"


# ---- the same as a plain loop


@pytest.mark.long
def test_it_is_a_plain_loop_over_the_batches():
    """The same bits as objective(model, guide) with the same noise."""
    vi = fit_module(optimizer=SGD, seed=11)
    trainer(max_epochs=2).fit(vi, loader())
    other, noise = fit_module(), RandomStream(11)
    other.guide.setup(*data()[:BATCH])
    module = LinearisedELBO(2)(other.model, other.guide)
    optimizer, batches = SGD(module.parameters()), loader()
    for _ in range(2):
        for batch in batches:
            with noise:
                optimizer.zero_grad()
                module(*batch).backward()
                optimizer.step()
    assert torch.equal(flat(vi), flat(other))


@pytest.mark.long
def test_validation_and_callbacks_do_not_change_a_fit():
    plain = fit_module(seed=1)
    trainer(max_epochs=2).fit(plain, loader())
    watched = fit_module(seed=1, num_val_samples=2)
    draws = Watch(lambda *_: torch.rand(3))
    val = DataLoader(data(), batch_size=10, shuffle=False)
    trainer(max_epochs=2, val_check_interval=2, callbacks=[draws]).fit(watched, loader(), val)
    assert len(draws.seen) == 10
    assert torch.equal(flat(plain), flat(watched))


@pytest.mark.long
def test_the_seed_decides_the_noise_and_without_one_the_global_seed_does():
    def end(seed, global_seed):
        vi = fit_module(seed=seed)
        pyro.set_rng_seed(global_seed)
        vi.warm_up(data()[:BATCH])  # the start, too, is drawn
        start = flat(vi)
        pyro.set_rng_seed(global_seed)
        trainer(max_steps=2).fit(vi, loader())
        return flat(vi) - start

    assert torch.equal(end(None, 1), end(None, 1))
    assert not torch.equal(end(None, 1), end(None, 2))
    assert not torch.equal(end(5, 1), end(6, 1))


@pytest.mark.long
@pytest.mark.parametrize("make_objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_every_objective_trains(make_objective):
    case = MODELS["regression"]
    model = case.make()
    guide = partial(GUIDES["default"], **make_objective.guide_options)(model)
    objective = make_objective()
    # a discrepancy is no log-density: its gradients are thousands of times larger
    rate = partial(torch.optim.SGD, lr=1e-7) if make_objective.whole else SGD
    vi = LightningVI(model, guide, objective, optimizer=rate)
    batches = DataLoader(TensorDataset(*case.data()), batch_size=len(case.data()[0]))
    ends = Watch(lambda trainer, vi: flat(vi))
    fit = trainer(max_steps=2, callbacks=[ends])
    fit.fit(vi, batches)
    assert not torch.equal(*ends.seen)
    terms = {name: fit.callback_metrics[f"train_{name}"] for name in objective.last_terms}
    loss = fit.callback_metrics["train_loss"]
    torch.testing.assert_close(-sum(terms.values()), loss)


def test_pyros_own_objective_and_guide():
    vi = LightningVI(model, AutoNormal(model), Trace_ELBO(), optimizer=SGD)
    trainer(max_steps=2).fit(vi, loader())
    assert len(list(vi.parameters())) == 2


# ---- batches


class Dictionaries(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        x, y = data()[index]
        return {"y": y, "x": x}


class OneTensor(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        x, y = data()[index]
        return torch.cat([x, y[None]])


class Split(LightningVI):
    def batch_to_args(self, batch):
        return (batch[:, :2],), {"y": batch[:, 2]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("dataset", "cls"), [(Dictionaries(), LightningVI), (OneTensor(), Split)], ids=["dict", "own"]
)
def test_batches_of_any_form(dataset, cls):
    expected = fit_module(seed=1)
    trainer(max_steps=3).fit(expected, loader())
    vi = fit_module(seed=1)
    vi.__class__ = cls
    trainer(max_steps=3).fit(vi, loader(dataset))
    assert torch.equal(flat(vi), flat(expected))


class Weighed(LightningVI):
    """What the loader gives is not yet what the model takes."""

    def forward(self, x, y, factor):
        return super().forward(x * factor, y)


def test_a_forward_of_ones_own_decides_what_the_model_is_given():
    expected = fit_module(seed=1)
    trainer(max_steps=3).fit(expected, loader())
    vi = fit_module(seed=1)
    vi.__class__ = Weighed
    x, y = data().tensors
    trainer(max_steps=3).fit(vi, loader(TensorDataset(x, y, torch.ones(len(x), 1))))
    assert torch.equal(flat(vi), flat(expected))


def test_what_a_forward_of_ones_own_hands_on_is_validated():
    x, y = data().tensors
    scores = []
    for cls, held in ((LightningVI, (x, y)), (Weighed, (4 * x, y, torch.full((len(x), 1), 0.25)))):
        vi = fit_module(seed=1)
        vi.__class__ = cls
        fit = trainer(max_epochs=1)
        train = None if cls is LightningVI else TensorDataset(4 * x, y, held[2])
        fit.fit(vi, loader(train) if train else loader(), DataLoader(TensorDataset(*held), 7))
        scores.append(fit.callback_metrics["val_log_predictive"])
    torch.testing.assert_close(*scores)


def test_all_that_a_forward_hands_on_is_validated():
    class InParts(LightningVI):
        def forward(self, x, y):
            first, rest = super().forward(x[:3], y[:3]), super().forward(x[3:], y[3:])
            return (first + rest).log()  # of the numbers 0 in a validation

    vi, scores = fit_module(seed=1), []
    trainer(max_steps=2).fit(vi, loader())
    for cls in (LightningVI, InParts):
        vi.__class__ = cls
        (found,) = trainer().validate(vi, DataLoader(data(), batch_size=7), verbose=False)
        scores.append(found["val_log_predictive"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_a_forward_that_hands_nothing_on_is_not_validated():
    class Apart(LightningVI):
        def forward(self, x, y):
            return self.objective.differentiable_loss(self.model, self.guide, 2 * x, y)

    vi = fit_module(seed=1)
    vi.__class__ = Apart
    trainer(max_steps=2).fit(vi, loader())
    with pytest.raises(StateError, match=r"Apart has a forward of its own .* batch_to_args"):
        trainer(max_epochs=1).fit(vi, loader(), DataLoader(data(), batch_size=7))


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda x, y: (x, y), "Tensor, Tensor"),
        (lambda x, y: x, "Tensor"),
        (lambda x, y: (), "noth"),
    ],
)
def test_a_batch_that_is_no_call_is_refused(returned, found):
    class Slip(LightningVI):
        def batch_to_args(self, batch):
            return returned(*batch)

    vi = fit_module()
    vi.__class__ = Slip
    with pytest.raises(ArgumentError, match=rf"batch_to_args returned {found}.*return \(x, y\)"):
        trainer(max_steps=1).fit(vi, loader())


def test_several_validation_loaders_have_scores_of_their_own():
    vi, held = fit_module(), DataLoader(data(), batch_size=7)
    fit = trainer(max_epochs=1)
    fit.fit(vi, loader(), [held, held])
    scores = [fit.callback_metrics[f"val_log_predictive/dataloader_idx_{i}"] for i in (0, 1)]
    assert scores[0] == scores[1]


def test_pyros_sum_over_discrete_latents_is_trained():
    def switched(x, y=None):
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal((w * x).sum(-1) + k, 0.3), obs=y)

    guide = AutoNormal(pyro.poutine.block(switched, hide=["k"]))
    vi = LightningVI(switched, guide, TraceEnum_ELBO(max_plate_nesting=1))
    fit = trainer(max_steps=3)
    fit.fit(vi, loader())
    assert fit.callback_metrics["train_loss"].isfinite()


def test_one_tensor_is_the_one_argument():
    vi = fit_module()
    assert vi.batch_to_args(torch.ones(2))[0][0].shape == (2,)
    assert vi.batch_to_args(torch.ones(2))[1] == {}


# ---- what the Trainer adds


def test_schedule_clipping_and_logs():
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    vi = fit_module(optimizer=partial(torch.optim.SGD, lr=1.0), lr_scheduler=schedule)
    rates = Watch(lambda trainer, _: trainer.optimizers[0].param_groups[0]["lr"])
    ends = Watch(lambda _, vi: flat(vi))
    fit = trainer(max_steps=4, gradient_clip_val=1e-3, callbacks=[rates, ends])
    fit.fit(vi, loader())
    assert rates.seen == [0.5**k for k in range(1, 5)]
    for k, (before, after) in enumerate(zip(ends.seen[:-1], ends.seen[1:], strict=True), 1):
        assert 0 < (after - before).norm() <= 1.001e-3 * 0.5**k
    expected = {"train_loss", "train_log_likelihood", "train_log_prior", "train_entropy"}
    assert set(fit.callback_metrics) == expected


@pytest.mark.long
def test_a_schedule_by_epochs():
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    vi = fit_module(optimizer=SGD, lr_scheduler=schedule, lr_scheduler_interval="epoch")
    rates = Watch(lambda trainer, _: trainer.optimizers[0].param_groups[0]["lr"])
    trainer(max_epochs=2, callbacks=[rates]).fit(vi, loader())
    assert rates.seen[0] == 1e-4
    assert rates.seen[-1] == 0.25e-4


@pytest.mark.long
def test_early_stopping_by_the_log_predictive_density():
    vi = fit_module(
        optimizer=partial(torch.optim.SGD, lr=0.0), num_val_samples=2
    )  # it never improves
    stop = EarlyStopping("val_log_predictive", mode="max", patience=2, min_delta=0.0)
    fit = trainer(max_epochs=50, callbacks=[stop])
    fit.fit(vi, loader(), DataLoader(data(), batch_size=7))
    assert fit.current_epoch == 3


@pytest.mark.long
def test_the_validation_score_is_the_mean_over_all_data():
    vi = fit_module(num_val_samples=3)
    fit = trainer(max_epochs=1)
    fit.fit(vi, loader(), DataLoader(data(), batch_size=7))
    found = fit.callback_metrics["val_log_predictive"]
    x, y = data().tensors
    draws = DrawChunks(vi.guide, (x, y), {}, 3, 0).holding(1)[0]["w"]  # the same in each batch
    densities = dist.Normal(draws @ x.T, 0.3).log_prob(y)
    expected = densities.logsumexp(0).mean() - math.log(3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("known", [[True, True, False, False], [False] * 4])
def test_a_validation_batch_that_is_masked_counts_nothing(known):
    x, y = (part[:4] for part in data().tensors)

    def masked(x, y, known=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[-1]), 1.0).to_event(1))
        known = torch.ones(len(x), dtype=bool) if known is None else known
        with pyro.plate("data", ROWS, subsample_size=len(x)), pyro.poutine.mask(mask=known):
            pyro.sample("y", dist.Normal((x * w).sum(-1), 0.3), obs=y)

    vi = LightningVI(masked, HyperNetworkGuide(masked), LinearisedELBO(2), optimizer=SGD)
    validation = DataLoader(TensorDataset(x, y, torch.tensor(known)), batch_size=2)
    fit = trainer(max_epochs=1)
    fit.fit(vi, loader(), validation)
    found = fit.callback_metrics["val_log_predictive"]
    if not any(known):
        assert found.isnan()
        return
    draws = {"num_samples": vi.num_val_samples, "seed": 0}
    expected = log_predictive_density(masked, vi.guide, x[:2], y[:2], **draws).mean()
    torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_bfloat16_autocast_leaves_entropy_prior_and_draws_in_float32():
    seen = []

    class Spy(LinearisedELBO):
        def estimate(self, site):
            seen.append(site.value.dtype)
            value = super().estimate(site)
            seen.append(value.dtype)
            return value

    for generator in (None, lambda m: MLPGenerator(2, m, skip=True)):
        guide = HyperNetworkGuide(model, generator=generator, scale=0.01)
        vi = LightningVI(model, guide, Spy(2), optimizer=SGD)
        fit = trainer(max_steps=3, precision="bf16-mixed")
        fit.fit(vi, loader())
        assert set(seen) == {torch.float32}
        assert {term.dtype for term in vi.objective.last_terms.values()} == {torch.float32}
        assert all(value.isfinite() for value in fit.callback_metrics.values())


def test_float64():
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO(2), optimizer=SGD)
    trainer(max_steps=2, precision="64-true").fit(vi, loader())
    assert {p.dtype for p in vi.parameters()} == {torch.float64}


@pytest.mark.parametrize("precision, dtype", [("64-true", "float64"), ("bf16-true", "bfloat16")])
def test_numbers_in_the_model_have_the_precision_of_the_steps(precision, dtype):
    def regression(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        with pyro.plate("data", 64, subsample_size=len(x)):
            pyro.sample("y", dist.Normal((x @ w).squeeze(-1), 0.5), obs=y.squeeze(-1))

    vi = LightningVI(regression, HyperNetworkGuide(regression, init_from=None), LinearisedELBO(2))
    data = TensorDataset(torch.randn(16, 1), torch.randn(16))
    trainer(max_steps=2, precision=precision).fit(vi, DataLoader(data, 8))
    assert {p.dtype for p in vi.parameters()} == {getattr(torch, dtype)}


# ---- gradients that are not finite


class _Rooted(LinearisedELBO):
    """From the third loss of training on, a finite value with gradients that are not."""

    count, size = 0, 1.0

    def differentiable_loss(self, model, guide, *args, **kwargs):
        loss = super().differentiable_loss(model, guide, *args, **kwargs)
        self.count += torch.is_grad_enabled()
        root = sum((0.0 * p).square().sum().sqrt() for p in guide.parameters())
        return self.size * loss + (root if self.count > 2 else 0.0)


def rooted(**options):
    vi = fit_module(**options)
    vi.objective = _Rooted(2)
    return vi


def test_gradients_that_are_not_finite_stop_the_fit():
    vi = rooted()
    steps = Watch(lambda trainer, module: flat(module).clone())
    message = r"gradients are not finite, those of 'guide\..*in training step 2\. No parameter"
    with pytest.raises(NonFiniteError, match=message):
        trainer(callbacks=[steps]).fit(vi, loader())
    assert len(steps.seen) == 2 and torch.equal(flat(vi), steps.seen[-1])
    assert all(p.grad is None for p in vi.parameters())
    (optimizer,) = vi.trainer.optimizers
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_are_left_to_a_scaler_and_to_those_who_validate_nothing(scaled):
    vi, fitting = rooted(optimizer=SGD), trainer(max_steps=3)
    if scaled:
        fitting.strategy.precision_plugin.scaler = object()  # as float16 has one on a GPU
    with pyro.validation_enabled(scaled):
        fitting.fit(vi, loader())
    assert not flat(vi).isfinite().all()


def test_large_gradients_are_no_fault():
    """They are finite where their norm is not."""
    vi = rooted(optimizer=partial(torch.optim.SGD, lr=0.0))
    vi.objective.size = 1e30
    trainer(max_steps=1).fit(vi, loader())
    assert flat(vi).isfinite().all()


# ---- the critic


@pytest.mark.long
@pytest.mark.parametrize("num_steps", [1, 3])
def test_the_critic_is_trained_once_per_step_and_never_in_validation(num_steps):
    vi = fit_module("adversarial", num_val_samples=2)
    vi.objective.num_critic_steps = num_steps
    counts = Watch(lambda _, vi: _steps_of_critic(vi))
    val = DataLoader(data(), batch_size=10)
    trainer(max_epochs=1, val_check_interval=1, callbacks=[counts]).fit(vi, loader(), val)
    assert counts.seen == [num_steps * k for k in range(1, 6)]
    assert not {id(p) for p in vi.parameters()} & {
        id(p) for critic in vi.objective.critics.values() for p in critic.parameters()
    }


def _steps_of_critic(vi):
    (optim,) = vi.objective.critic_optims.values()
    return int(next(iter(optim.state.values()))["step"])


# ---- what is trained


def with_net(net):
    def model(x, y=None):
        f = net(x).squeeze(-1)
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(f, 0.3), obs=y)

    return model


def test_parameters_of_a_module_that_the_model_uses_are_asked_for():
    net = BayesianModule(
        nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)),
        prior=lambda name, _: dist.Normal(0.0, 1.0) if name.startswith("2") else None,
    )
    model = with_net(net)
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    with pytest.raises(SiteError, match=r"neither trained nor saved: .*0\.weight.*modules=\[net\]"):
        trainer(max_steps=1).fit(vi, loader())
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO(), modules=net)
    before = [p.detach().clone() for p in net.parameters() if p.requires_grad]
    trainer(max_steps=1).fit(vi, loader())
    after = [p for p in net.parameters() if p.requires_grad]
    assert before
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_plain_network_that_the_model_calls_is_told():
    net = nn.Linear(2, 1)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w + net(x)[:, 0], 0.3), obs=y)

    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    told = r"weight of Linear, bias of Linear .* not trained: .*LightningVI\(..., modules=\[net\]\)"
    with pytest.warns(UserWarning, match=told):
        trainer(max_steps=1).fit(vi, loader())
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO(), modules=[net])
    trainer(max_steps=1).fit(vi, loader())


def test_batches_that_count_as_all_data_are_told():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)

    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    with pytest.warns(UserWarning, match=r"no observed site \('y'\) is scaled up"):
        trainer(max_steps=1).fit(vi, loader())
    whole = DataLoader(data(), batch_size=ROWS)
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    trainer(max_steps=1).fit(vi, whole)  # one batch is all of them


@pytest.mark.parametrize("how", ["example", "warm-up"])
@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_warm_up_by_all_data_says_nothing_of_the_batches(how, is_scaled):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        size = ROWS if is_scaled else len(x)
        with pyro.plate("data", size, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)

    whole = data().tensors
    options = {"example": whole} if how == "example" else {}
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO(), seed=0, **options)
    if how == "warm-up":
        vi.warm_up(whole)
    told = pytest.warns(UserWarning, match=r"no observed site \('y'\) is scaled up")
    with nullcontext() if is_scaled else told:
        trainer(max_steps=1).fit(vi, loader())


def test_streams_and_data_that_come_late_are_not_looked_at_beside_an_example():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)

    x, y = data().tensors

    class Stream(IterableDataset):
        batches = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:12], y[8:12])]

        def __len__(self):
            return 3

        def __iter__(self):
            while self.batches:
                yield self.batches.pop(0)

    class Late(Dataset):
        is_there = False

        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            if not self.is_there:
                raise OSError("not yet")
            return x[index], y[index]

    late = Late()

    class Loading(lightning_callbacks.Callback):
        def on_train_start(self, trainer, vi):
            late.is_there = True

    stream = DataLoader(Stream(), batch_size=None)
    for source, steps in ((stream, 3), (DataLoader(late, 4), -(-ROWS // 4))):
        vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO(), example=(x, y))
        training = trainer(max_epochs=1, callbacks=[Loading()])
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "there are several batches|.*IterableDataset|.*rows, the"
            )
            training.fit(vi, source)
        assert training.global_step == steps


def test_a_small_last_batch_of_the_same_rows_is_told():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)

    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    with pytest.warns(UserWarning, match=r"to .* rows, the same in each epoch.*shuffle=True"):
        trainer(max_steps=1).fit(vi, DataLoader(data(), batch_size=ROWS - 1))
    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    trainer(max_steps=1).fit(vi, DataLoader(data(), batch_size=ROWS - 1, shuffle=True))


def test_a_pyro_param_in_a_function_is_refused():
    def model(x, y=None):
        shift = pyro.param("shift", torch.zeros(()))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0] + shift, 0.3), obs=y)

    vi = LightningVI(model, HyperNetworkGuide(model), LinearisedELBO())
    with pytest.raises(SiteError, match="neither trained nor saved: shift.*PyroParam"):
        trainer(max_steps=1).fit(vi, loader())


def test_an_optimiser_before_the_warm_up():
    with pytest.raises(StateError, match=r"no parameter to train.*vi.warm_up\(batch\)"):
        fit_module().configure_optimizers()
    with pytest.raises(StateError, match=r"training noise is set up by Trainer.fit"):
        fit_module().training_step(data()[:BATCH], 0)


def test_a_loader_that_can_be_read_once_needs_an_example():
    batches = [data()[:BATCH]] * 3
    for once in ((batch for batch in batches), {"a": loader()}):
        with pytest.raises(ArgumentError, match=r"LightningVI\(..., example=batch\)"):
            trainer(max_steps=1).fit(fit_module(), once)
    vi = fit_module(example=batches[0])
    fit = trainer(max_steps=2)
    fit.fit(vi, loader(cls=_Once))
    assert fit.global_step == 2


class _Once(DataLoader):
    """Tells how often it was read."""

    count = 0

    def __iter__(self):
        _Once.count += 1
        assert _Once.count == 1
        return super().__iter__()


class Batches(pl.Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(batch[0])


@pytest.mark.parametrize(
    ("cls", "has_generator"), [(DataLoader, False), (DataLoader, True), (ResumableLoader, False)]
)
def test_the_warm_up_does_not_change_what_the_loader_gives(cls, has_generator):
    """The epoch is that of a loader that nobody has looked at."""
    given = [None, data()[:BATCH]]
    seen = []
    for example in given:
        vi = fit_module(example=example, seed=1)
        vi.guide.setup(*data()[:BATCH])
        batches = Batches()
        options = {"generator": torch.Generator().manual_seed(5)} if has_generator else {}
        trainer(max_steps=2, callbacks=[batches]).fit(vi, loader(cls=cls, **options))
        seen.append(torch.cat(batches.seen))
    assert torch.equal(*seen)
    if has_generator:
        unseen = list(loader(cls=cls, generator=torch.Generator().manual_seed(5)))
        assert torch.equal(seen[0], torch.cat([batch[0] for batch in unseen[:2]]))


@pytest.mark.parametrize("example", [None, data()[:BATCH]])
@pytest.mark.filterwarnings("ignore:Total length of `.*` across ranks is zero")
def test_a_loader_without_a_batch_is_told_before_training(example):
    empty = loader(data()[:3], cls=DataLoader, drop_last=True)
    vi = fit_module(example=example)
    if example is None:
        with pytest.raises(ArgumentError, match="has no batch: the data have no rows, or fewer"):
            trainer().fit(vi, empty)
    else:  # Lightning trains nothing, and says so
        trainer().fit(vi, empty)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guide": lambda x, y=None: None}, "guide is <function .*; expected a module"),
        ({"objective": LinearisedELBO}, None),
        ({"objective": "elbo"}, "objective is 'elbo'; expected an instance"),
        (
            {"optimizer": pyro.optim.Adam({"lr": 1e-3})},
            r"PyroOptim.*those of pyro.optim are for SVI",
        ),
        ({"optimizer": 1e-3}, "optimizer=0.001 cannot be called; expected a function"),
        ({"lr_scheduler": 0.1}, "lr_scheduler=0.1 cannot be called; expected a function"),
        (
            {"lr_scheduler_interval": "batch"},
            "lr_scheduler_interval='batch'; expected None, 'step'",
        ),
        ({"num_val_samples": 0}, "num_val_samples=0; expected an integer >= 1"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"guide": HyperNetworkGuide(model), "objective": LinearisedELBO()} | changes
    if message is None:
        message = "objective is <class .*LinearisedELBO'>; expected an instance"
    with pytest.raises(ArgumentError, match=message):
        LightningVI(model, **arguments)


AVERAGES = [partial(StochasticWeightAveraging, swa_lrs=0.01, swa_epoch_start=1)]
if hasattr(lightning_callbacks, "EMAWeightAveraging"):  # of later versions
    AVERAGES.append(lightning_callbacks.EMAWeightAveraging)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("average", AVERAGES)
def test_weights_are_averaged_where_they_were_there_from_the_start(average):
    vi = fit_module()
    with pytest.raises(StateError, match=r"copied the module before .* vi.warm_up\(batch\)"):
        trainer(max_epochs=4, callbacks=[average()]).fit(vi, loader())
    ends = []
    for callbacks in ([], [average()]):
        vi = fit_module()
        vi.warm_up(next(iter(loader())))
        trainer(max_epochs=4, callbacks=callbacks).fit(vi, loader())
        ends.append(flat(vi))
    assert not torch.equal(*ends)


def test_a_plateau_is_looked_for_after_each_epoch():
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, mode="max", patience=0)
    vi = fit_module(lr_scheduler=plateau, optimizer=SGD, num_val_samples=2)
    trainer(max_epochs=2).fit(vi, loader(), DataLoader(data(), batch_size=BATCH))
    vi = fit_module(lr_scheduler=plateau, lr_scheduler_interval="step")
    with pytest.raises(ArgumentError, match="'step' asks for it before the first validation"):
        trainer(max_epochs=1).fit(vi, loader())


def test_batches_without_a_scale_are_told_after_a_warm_up_too():
    def unscaled(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    vi = LightningVI(unscaled, HyperNetworkGuide(unscaled), LinearisedELBO())
    vi.warm_up(next(iter(loader())))
    with pytest.warns(UserWarning, match="subsample_size"):
        trainer(max_steps=1).fit(vi, loader())


def test_what_another_training_has_moved_since_is_told():
    network = nn.Linear(3, 1)

    def shared(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(network(x).squeeze(-1) + w, 1.0), obs=y)

    x, y = next(iter(loader()))
    network = nn.Linear(x.shape[-1], 1)
    guides = [HyperNetworkGuide(shared, init_from=None) for _ in range(2)]
    for guide in guides:
        vi = LightningVI(shared, guide, LinearisedELBO(), modules=network, optimizer=SGD)
        trainer(max_steps=1).fit(vi, loader())
    with pytest.warns(UserWarning, match="since"):
        predict(shared, guides[0], x, num_samples=2)


def test_predictions_of_the_trainer_are_refused():
    with pytest.raises(StateError, match=r"predict\(vi.model, vi.guide, x\)"):
        fit_module().predict_step(None, 0)


def test_several_loaders_after_a_warm_up():
    def unscaled(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    class Both(LightningVI):
        def batch_to_args(self, batch):
            return super().batch_to_args(batch["a"] if isinstance(batch, dict) else batch)

    several = {name: DataLoader(data(), batch_size=ROWS) for name in "ab"}
    for loaders in (several, CombinedLoader(several, "min_size")):
        vi = Both(unscaled, HyperNetworkGuide(unscaled, init_from=None), LinearisedELBO())
        vi.warm_up(next(iter(loader())))
        trainer(max_steps=1).fit(vi, loaders)


# ---- batches that no step could use


def observed(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 40, subsample_size=len(x)):
        return pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


GOOD = (torch.linspace(-1.0, 1.0, 20), torch.zeros(20))
NAN = torch.full((20,), math.nan)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((GOOD[0], NAN), NonFiniteError, "site 'y' observes 20 NaN"),
        ((NAN, GOOD[1]), NonFiniteError, "argument 0 has 20 entries that are not finite"),
        ((GOOD[0], GOOD[1][:5]), ShapeError, r"'y' observes a tensor of shape \(5,\)"),
        ((GOOD[0][:0], GOOD[1][:0]), ShapeError, "has no rows"),
    ],
    ids="nan nan-inputs short empty".split(),
)
def test_batches_are_blamed_in_words_of_the_data(is_first, batch, error, message):
    vi = LightningVI(observed, HyperNetworkGuide(observed, init_from=None), LinearisedELBO(2))
    with pytest.raises(error, match=message):
        batches = [batch] if is_first else [GOOD, batch]
        trainer(max_epochs=1).fit(vi, DataLoader(batches, batch_size=None))


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((GOOD[0],), SiteError, "the model observes nothing"),
        ((GOOD[0], GOOD[1] + 0j), ArgumentError, "observes complex numbers"),
    ],
    ids="unobserved complex".split(),
)
def test_the_first_batch_shows_what_a_loader_lacks(batch, error, message):
    vi = LightningVI(observed, HyperNetworkGuide(observed, init_from=None), LinearisedELBO(2))
    with pytest.raises(error, match=message):
        trainer(max_epochs=1).fit(vi, DataLoader([batch], batch_size=None))
