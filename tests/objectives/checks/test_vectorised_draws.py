"""A vectorised model that mixes draws where no gradient shows it is refused, and no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.autoguide import init_to_value
from pyro.ops.indexing import Vindex
from torch import Tensor, nn
from torch.nn.functional import dropout

from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import SiteError

X, Y = torch.randn(9, 3), torch.randn(9)


def _model(mean: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean(x, w), 1.0), obs=y)

    return model


def _loss(model: Callable[..., Any], count: int = 8) -> float:
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    torch.manual_seed(0)
    objective = LinearisedELBO(count, vectorize_particles=True)
    return objective.differentiable_loss(model, guide, X, Y).item()


MIXING = {
    "a rank": lambda x, w: (x * w).sum(-1) + 3.0 * w.argsort(0).float().sum(-1),
    "a comparison": lambda x, w: (x * w).sum(-1) + 3.0 * (w > w.mean()).float().sum(-1),
    "the largest": lambda x, w: (x * w).sum(-1) + 3.0 * w.argmax(0).float().sum(-1),
}
APART = {
    "a rank": lambda x, w: (x * w).sum(-1) + 3.0 * w.argsort(-1).float()[..., 0],
    "a comparison": lambda x, w: (x * w).sum(-1) + (w > 0).float().sum(-1),
    "numbers of its own": lambda x, w: (x * w).sum(-1) + torch.randn(()),
    "the number of dimensions": lambda x, w: (x * w).sum(-1) + (0.0 if w.dim() > 1 else 0.0),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("count", [8, 32])
def test_what_mixes_draws_is_refused(name: str, count: int) -> None:
    with pytest.raises(SiteError, match=r"of site 'y' of the model is .* the model mixes draws"):
        _loss(_model(MIXING[name]), count)


def _covariance(front: Any) -> Callable[..., Any]:
    """Rows of a Cholesky factor scaled for one draw; with draws in front as the index has it."""

    def model(x: Tensor, y: Tensor) -> None:
        chol = pyro.sample("chol", dist.LKJCholesky(3, 1.0))
        scales = pyro.sample("scales", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            factor = scales[front] * chol
            pyro.sample("x", dist.MultivariateNormal(torch.zeros(3), scale_tril=factor), obs=x)

    return model


@pytest.mark.parametrize("count", [8, 32])
@pytest.mark.parametrize("scale", [0.1, 0.03])
def test_small_differences_are_told_from_rounding(count: int, scale: float) -> None:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    for front, mixes in (((slice(None), None), True), ((..., slice(None), None), False)):
        model = _covariance(front)
        guide = HyperNetworkGuide(model, init_from=None, init_scale=scale).setup(x, Y)
        torch.manual_seed(0)
        objective = LinearisedELBO(count, vectorize_particles=True)
        refused = pytest.raises(SiteError, match=r"or broadcasts otherwise with draws in front")
        with refused if mixes else nullcontext():
            objective.differentiable_loss(model, guide, x, Y)


@pytest.mark.parametrize("times", [30.0, 1e-3])
def test_what_rounding_does_to_one_draw_it_may_do_to_many(
    times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another order of a sum is no mixture of draws, however much is lost by rounding."""
    monkeypatch.setattr(
        "pyro_implicit.objectives.checks.vectorised_draws._MAX_TIMES_ROUNDING", times
    )
    x = 1e4 * torch.randn(20, 50, generator=torch.Generator().manual_seed(0))

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(50), 1.0).to_event(1))
        terms = x * w
        mean = sum((terms.flip(-1) if w.dim() > 1 else terms).unbind(-1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    at = init_to_value(values={"w": torch.ones(50)})
    guide = HyperNetworkGuide(model, init_from=None, init_loc_fn=at, init_scale=1e-5)
    guide.setup(x, x.sum(-1))
    torch.manual_seed(0)
    refused = pytest.raises(SiteError, match="the model mixes draws")  # no small difference
    with nullcontext() if times > 1 else refused:
        LinearisedELBO(32, vectorize_particles=True).loss(model, guide, x, x.sum(-1))


def _mixes_by_codes(codes: Tensor, y: Tensor) -> None:
    with pyro.plate("groups", 3):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    w = w + 2.0 * (w > w.mean()).float()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w[..., codes.long()], 1.0), obs=y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_codes_of_groups_excuse_no_mixture_of_draws(dtype: torch.dtype) -> None:
    """What is perturbed are latents: data that are rounded down would be other data."""
    codes = torch.arange(9) % 3
    guide = HyperNetworkGuide(_mixes_by_codes, init_from=None, init_scale=1.0).setup(codes, Y)
    with pytest.raises(SiteError, match="the model mixes draws"):
        LinearisedELBO(8, vectorize_particles=True).loss(_mixes_by_codes, guide, codes.to(dtype), Y)


def test_a_model_that_fails_at_perturbed_latents_is_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*job: Any) -> None:
        raise RuntimeError("at latents that nobody drew")

    module = "pyro_implicit.objectives.checks.vectorised_draws"
    monkeypatch.setattr(f"{module}._perturbed_latent", fails)
    with pytest.raises(SiteError, match="the model mixes draws"):
        _loss(_model(MIXING["a rank"]))


def test_products_of_less_precision_are_judged_less_closely() -> None:
    before = torch.get_float32_matmul_precision()
    x = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    as_tf32 = 1.0 + 1e-3 * torch.tensor([1.0, -1.0]).repeat(250)

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(64), 1.0).to_event(1))
        mean = torch.einsum("...d,nd->...n", w, x)
        with pyro.plate("data", len(x)):
            mean = as_tf32 * mean.squeeze(-2) if w.dim() > 1 else mean  # of another product
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(x, x[:, 0])
    objective = LinearisedELBO(8, vectorize_particles=True)
    with pytest.raises(SiteError, match="the model mixes draws"):
        objective.loss(model, guide, x, x[:, 0])
    torch.set_float32_matmul_precision("medium")
    try:
        loss = objective.loss(model, guide, x, x[:, 0])
    finally:
        torch.set_float32_matmul_precision(before)
    assert math.isfinite(loss)


def test_what_cancels_behind_large_numbers_is_rounding_and_no_mixture() -> None:
    """Raw parameters of some hundreds, fed to a network."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 64, generator=generator)
    last = torch.randn(64, 1, generator=generator) / 8

    def model(y: Tensor) -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        hidden = torch.tanh((300.0 + 0.5 * z) @ weights - 300.0 * weights.sum(0))
        pyro.sample("y", dist.Normal(hidden @ last, 0.05).to_event(1), obs=y)

    y = torch.zeros(1)
    guide = HyperNetworkGuide(model, init_from=None).setup(y)
    assert math.isfinite(LinearisedELBO(16, vectorize_particles=True).loss(model, guide, y))


@pytest.mark.parametrize("name", APART)
def test_what_keeps_them_apart_is_not(name: str) -> None:
    assert math.isfinite(_loss(_model(APART[name])))


def test_plates_networks_masks_and_scales_are_not() -> None:
    net = BayesianModule(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), dist.Normal(0.0, 1.0))
    part = BayesianModule(nn.Linear(3, 1), dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        f = part(x).squeeze(-1)
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("groups", 3):
            level = pyro.sample("level", dist.Normal(0.0, tau))
        with pyro.plate("data", 90, subsample_size=len(x)), poutine.scale(scale=2.0):
            with poutine.mask(mask=y > 0):
                mean = f + level[..., torch.arange(len(x)) % 3]
                pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    assert net is not part
    assert math.isfinite(_loss(model))


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_not_judged(training: bool) -> None:
    layers = nn.Linear(3, 6), nn.Dropout(0.5), nn.Linear(6, 1)
    net = BayesianModule(nn.Sequential(*layers), dist.Normal(0.0, 1.0)).train(training)

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    assert math.isfinite(_loss(model))


def test_half_precision_is_judged_less_closely() -> None:
    model = _model(lambda x, w: (x * w).sum(-1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert math.isfinite(_loss(model))
        with pytest.raises(SiteError, match="the model mixes draws"):
            _loss(_model(MIXING["a rank"]))


def test_rows_that_the_model_chooses_are_not_judged() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x), subsample_size=4) as rows:
            pyro.sample("y", dist.Normal((x[rows] * w).sum(-1), 1.0), obs=y[rows])

    assert math.isfinite(_loss(model))


def test_densities_that_are_not_finite_are_told_by_their_own_error() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x * w).sum(-1), 1e-30), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    with pyro.validation_enabled(False):
        loss = LinearisedELBO(4, vectorize_particles=True).differentiable_loss(model, guide, X, Y)
    assert not math.isfinite(loss.item())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mixes", [False, True])
def test_rows_that_the_model_chooses_are_the_same_ones_alone(seed: int, mixes: bool) -> None:
    """Of three rows one is chosen, so that two runs often choose the same."""

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        mean = w + 3.0 * (w > w.detach().mean()).float() if mixes else w
        with pyro.plate("data", 3, subsample_size=1) as rows:
            pyro.sample("y", dist.Normal(mean, 1.0), obs=5.0 * rows)

    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = LinearisedELBO(4, vectorize_particles=True)
    torch.manual_seed(seed)
    with pytest.raises(SiteError, match="mixes draws") if mixes else nullcontext():
        objective.loss(model, guide)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("index", ["Vindex", "by place"])
def test_listed_values_are_judged_with_and_without_gradients(index: str, trains: bool) -> None:
    # with as many draws as rows Vindex takes the dimension of the draws for that of the rows
    @config_enumerate
    def model(x: Tensor, y: Tensor) -> None:
        with pyro.plate("components", 2):
            loc = pyro.sample("loc", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
            if index == "Vindex":
                chosen = Vindex(loc)[..., z]
            else:
                chosen = torch.where(z == 0, loc[..., :1], loc[..., 1:])
            pyro.sample("y", dist.Normal(chosen, 1.0), obs=y)

    with torch.set_grad_enabled(trains):
        if index == "by place":
            assert math.isfinite(_loss(model, count=len(Y)))
            return
        with pytest.raises(SiteError, match=r"of site 'y.*(mixes draws|depends on the latents)"):
            _loss(model, count=len(Y))


def test_a_chain_of_listed_values_is_not_refused() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        keep = pyro.sample("keep", dist.Beta(2.0, 2.0))
        state = 0
        for step in pyro.markov(range(len(y))):
            stays = keep if step else torch.tensor(0.5)
            p = torch.where(torch.as_tensor(state) == 0, stays, 1 - stays)
            probs = torch.stack([p, 1 - p], -1)
            fn = dist.Categorical(probs)
            state = pyro.sample(f"z{step}", fn, infer={"enumerate": "parallel"})
            chosen = torch.where(state == 0, loc[..., 0], loc[..., 1])
            pyro.sample(f"y{step}", dist.Normal(chosen, 1.0), obs=y[step])

    assert math.isfinite(_loss(model))


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("hides", [False, True])
def test_hidden_data_that_the_guide_leaves_to_the_model_are_not_refused(hides: bool) -> None:
    seen = torch.arange(len(Y)) % 3 > 0

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y, obs_mask=seen)

    shown = poutine.block(model, hide=["y_unobserved"]) if hides else model
    guide = HyperNetworkGuide(shown, init_from=None).setup(X, Y)
    objective = LinearisedELBO(8, vectorize_particles=True)
    assert math.isfinite(objective.differentiable_loss(model, guide, X, Y).item())


def test_numbers_of_rows_may_be_asked_for() -> None:
    rows, offsets = torch.tensor([3, 0, 7]), torch.arange(9.0)

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample=rows) as index:
            pyro.sample("y", dist.Normal(w + offsets[index.tolist()], 1.0), obs=y[index])

    assert math.isfinite(_loss(model))


def _noisy(mean: Tensor, scale: Tensor | float) -> Tensor:
    return mean + scale * torch.randn_like(mean)


OF_OWN_NUMBERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "a slip of dimensions": (lambda x, w: (dropout(x, 0.1) * w).sum(1), True),
    "a median over draws": (
        lambda x, w: (dropout(x, 0.1) * w).sum(-1) + 3.0 * (w > w.median()).float().mean(-1),
        True,
    ),
    "none": (lambda x, w: (dropout(x, 0.1) * w).sum(-1), False),
    "none, of numbers of NumPy's that follow latents": (
        lambda x, w: (
            (x * w).sum(-1)
            + torch.from_numpy(np.random.standard_normal((x * w).shape[:-1])).float()
        ),
        False,
    ),
    "none, of masks that follow latents": (lambda x, w: dropout(x * w, 0.1).sum(-1), False),
    "none, of a little noise": (lambda x, w: _noisy((x * w).sum(-1), 3e-4), False),
    "none, of noise that is large at some draws": (
        lambda x, w: _noisy((x * w).sum(-1), 3e-2 * w[..., 0] ** 4),
        False,
    ),
}


@pytest.mark.parametrize(("mean", "mixes"), OF_OWN_NUMBERS.values(), ids=OF_OWN_NUMBERS)
def test_models_with_numbers_of_their_own_are_compared_at_the_same_ones(
    mean: Callable[[Tensor, Tensor], Tensor], mixes: bool
) -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        f = mean(x, w)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.5), obs=y)

    x, y = torch.randn(3, 3), torch.randn(3)
    guide = HyperNetworkGuide(model, init_from=None, init_scale=1.0).setup(x, y)
    objective = LinearisedELBO(8, vectorize_particles=True)
    if not mixes:
        assert math.isfinite(objective.loss(model, guide, x, y))
        return
    with pytest.raises(SiteError, match="the model mixes draws"):
        objective.loss(model, guide, x, y)
