"""The objective that is chosen: by the sizes of the guide, vectorised where the model allows it."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from torch import Tensor

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    LanczosELBO,
    LinearisedELBO,
    fit,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import SiteError
from pyro_implicit.generators import MMNN, AutoregressiveGenerator, ResidualGenerator
from pyro_implicit.training.fitting.default_objective import default_objective


def model_of(size: int) -> Any:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(size), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(w.mean(-1), 1.0), obs=torch.tensor(1.0))

    return model


@pytest.mark.parametrize(
    ("size", "options", "kind", "num_particles"),
    [
        (5, {}, LinearisedELBO, 32),
        (200, {}, LinearisedELBO, 32),
        (300, {}, LinearisedELBO, 8),
        (400, {}, LinearisedELBO, 4),
        (50_000, {"hidden_dims": (2,)}, LanczosELBO, 2),
        (50_000, {"hidden_dims": (2,), "noise_dim": 80}, LinearisedELBO, 2),
        (11_000, {"generator": lambda m: ResidualGenerator(m, 2)}, LinearisedELBO, 2),
        (256, {"generator": lambda m: MMNN(m), "scale": 0.1}, LanczosELBO, 8),
        (101, {"generator": lambda m: MMNN(m), "scale": 0.1}, LinearisedELBO, 8),
        (60, {"generator": lambda m: MMNN(m), "scale": 0.1}, LinearisedELBO, 32),
    ],
)
def test_sizes_decide(size: int, options: Any, kind: type, num_particles: int) -> None:
    model = model_of(size)
    objective, hints = default_objective(model, HyperNetworkGuide(model, **options), (), {})
    assert type(objective) is kind and hints == []
    assert (objective.num_particles, objective.vectorised) == (num_particles, True)


@pytest.mark.parametrize(("rows", "num_particles"), [(3, 32), (120, 8), (300, 3), (4000, 1)])
def test_many_rows_take_few_draws(rows: int, num_particles: int) -> None:
    """Of a row with fifty numbers; the noise of a step averages out over rows."""

    def model(y: Tensor) -> None:
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample(
                "y", dist.Normal(z[..., None], 1.0).expand([*z.shape, 50]).to_event(1), obs=y
            )

    y = torch.zeros(rows, 50)
    objective, hints = default_objective(model, ConditionalHyperNetworkGuide(model), (y,), {})
    assert (objective.num_particles, hints) == (num_particles, [])


@pytest.mark.parametrize("num_rows", [6, 3])
def test_rows_in_minibatches_take_the_whole_gradient(num_rows: int) -> None:
    """Their noise is larger than what the gradient along the path leaves out."""

    def plates(y: Tensor) -> Any:
        return pyro.plate("rows", 6, subsample_size=len(y))

    def model(y: Tensor) -> None:
        with plates(y):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    guide = ConditionalHyperNetworkGuide(model, create_plates=plates)
    objective, _ = default_objective(model, guide, (torch.zeros(num_rows),), {})
    assert isinstance(objective, LinearisedELBO)
    assert objective.path_gradient is (num_rows == 6)


def test_a_guide_of_pyro_is_trained_as_pyro_does() -> None:
    model = model_of(3)
    objective, hints = default_objective(model, AutoNormal(model), (), {})
    assert type(objective) is Trace_ELBO and hints == []
    assert objective.num_particles == 4


@config_enumerate
def mixture(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(loc + 4 * z, 1.0), obs=y)


@pytest.mark.parametrize(("kind", "num_particles"), [(AutoNormal, 4), (AutoDelta, 1)])
def test_guides_of_pyro_have_marked_latents_summed_out(kind: type, num_particles: int) -> None:
    y = torch.linspace(-1, 4, 8)
    guide = kind(pyro.poutine.block(mixture, hide=["z"]))
    objective, hints = default_objective(mixture, guide, (y,), {})
    assert type(objective) is TraceEnum_ELBO and hints == []
    assert (objective.num_particles, objective.max_plate_nesting) == (num_particles, 1)
    marginal = dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.7, 0.3])), dist.Normal(torch.tensor([0.0, 4.0]), 1.0)
    )
    result = fit(mixture, guide, y, num_steps=3, progress=False)  # with "z" drawn, of any size
    loc = guide.median(y)["loc"].detach()
    expected = -(marginal.log_prob(y - loc).sum() + dist.Normal(0.0, 1.0).log_prob(loc))
    assert kind is AutoNormal or math.isclose(result.history[-1], expected, rel_tol=1e-2)


def test_marks_in_the_guide_are_followed_and_those_of_what_it_draws_are_not() -> None:
    y = torch.linspace(-1, 4, 8)

    def guide(y: Tensor) -> None:
        pyro.sample("loc", dist.Normal(pyro.param("loc_q", torch.tensor(0.0)), 1.0))
        odds = pyro.param("odds", torch.zeros(len(y)))
        with pyro.plate("rows", len(y)):
            pyro.sample("z", dist.Bernoulli(logits=odds))

    assert type(default_objective(mixture, guide, (y,), {})[0]) is Trace_ELBO
    marked = config_enumerate(guide, "parallel")
    assert type(default_objective(mixture, marked, (y,), {})[0]) is TraceEnum_ELBO


def test_a_point_takes_one_draw() -> None:
    def model(x: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", len(x), subsample_size=2) as some:
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1).mask(x[some] > -9))
            pyro.sample("y", dist.Normal(w.mean(-1), scale), obs=x[some])

    plates = partial(pyro.plate, "rows", 4, subsample_size=2)
    guide = AutoDelta(model, create_plates=lambda x: plates())
    objective, _ = default_objective(model, guide, (torch.ones(4),), {})
    assert type(objective) is Trace_ELBO and objective.num_particles == 1
    guides = AutoGuideList(model)
    guides.append(AutoDelta(pyro.poutine.block(model, expose=["scale"])))
    guides.append(AutoNormal(pyro.poutine.block(model, hide=["scale"])))
    objective, _ = default_objective(model, guides, (torch.ones(4),), {})
    assert objective.num_particles == 4


@pytest.mark.long
def test_a_model_of_one_draw_is_looped_and_that_is_told() -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        scale = 1.0 if w.reshape(3).sum() > 0 else 2.0
        pyro.sample("y", dist.Normal(w.reshape(3).sum(), scale), obs=torch.tensor(1.0))

    guide = HyperNetworkGuide(model)
    result = fit(model, guide, num_steps=2, progress=False, seed=0)
    assert not result.objective.vectorised and result.objective.num_particles == 8
    assert "one after the other" in result.warnings[-1] and "nor w.sum()" in result.warnings[-1]
    assert "Nor can it be mapped (torch.func.vmap): " in result.warnings[-1]


@pytest.mark.long
def test_what_keeps_a_model_from_being_mapped_is_told_beside_what_keeps_it_from_a_plate() -> None:
    """It writes into a tensor of its arguments, which has one place for all draws."""

    def model(x: Tensor) -> None:
        b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        x[0] = 2 * b.detach().reshape(3)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ b, 1.0), obs=torch.ones(len(x)))

    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, torch.randn(5, 3), num_steps=2, progress=False, seed=0)
    assert "Nor can it be mapped (torch.func.vmap): " in result.warnings[-1]
    assert "into tensors alone that it makes" in result.warnings[-1]


@pytest.mark.long
@pytest.mark.parametrize("ask", [torch.any, torch.all])
def test_a_branch_for_all_draws_is_none_for_one(ask: Any) -> None:
    """One question about 32 draws, which no shape tells from a question about one."""

    def model(x: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        mean = w * x if ask(w > 0) else 0 * w * x
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=-x)

    x = torch.ones(20)
    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, x, num_steps=2, progress=False, seed=0)
    assert result.objective.vectorize_particles is False
    assert "asks for the value of what depends on its latents" in result.warnings[-1]
    assert "test_default_objective.py)" in result.warnings[-1]
    with pytest.raises(SiteError, match=r"Write torch.where\(w > 0, a, b\), or loop"):
        LinearisedELBO(4, vectorize_particles=True).differentiable_loss(model, guide, x)


def test_questions_about_data_are_no_branch() -> None:
    def model(x: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        mean = w * x if bool((x > 0).all()) else -w * x
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x)

    objective, hints = default_objective(model, HyperNetworkGuide(model), (torch.ones(3),), {})
    assert objective.vectorised and hints == []


def test_a_bad_draw_in_the_trial_says_nothing_of_the_model() -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w, 1.0), obs=torch.tensor(float("inf")))

    objective, hints = default_objective(model, HyperNetworkGuide(model), (), {})
    assert objective.vectorised and hints == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It failed. " * 50 + "Write w.sum(-1).", "It failed. " * 50 + "Write w.sum(-1)."),
        ("A reason. " * 100, ("A reason. " * 80).strip()),
        ("word " * 300, ("word " * 160).strip() + " ..."),
        ("w" * 900, "w" * 800 + " ..."),
    ],
)
def test_an_error_is_told_in_whole_sentences(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise TypeError(text)

    monkeypatch.setattr(LinearisedELBO, "differentiable_loss", fails)
    model = model_of(3)
    _, hints = default_objective(model, HyperNetworkGuide(model), (), {})
    assert len(hints) == 1 and hints[0].endswith(f": TypeError: {told}")


@pytest.mark.parametrize(("num_rows", "num_particles"), [(5000, 32), (5001, 8)])
def test_many_rows_take_fewer_draws(num_rows: int, num_particles: int) -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", num_rows):
            pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(num_rows))

    objective, _ = default_objective(model, HyperNetworkGuide(model), (), {})
    assert objective.num_particles == num_particles


@pytest.mark.parametrize(("num_rows", "num_particles"), [(100, 32), (101, 8)])
def test_latents_of_many_rows_take_fewer_draws(num_rows: int, num_particles: int) -> None:
    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=x)

    x = torch.zeros(num_rows)
    guide = ConditionalHyperNetworkGuide(model, context=lambda x: x[:, None])
    objective, _ = default_objective(model, guide, (x,), {})
    assert objective.num_particles == num_particles


@pytest.mark.parametrize("learns", [True, False])
def test_a_function_as_guide_is_vectorised_too(learns: bool) -> None:
    generator = AutoregressiveGenerator(3).requires_grad_(learns)

    def guide() -> None:
        if learns:
            pyro.module("generator", generator)
        sample_implicit("w", ImplicitDistribution(generator))

    def of_one_draw() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(w[0] + w[1], 1.0), obs=torch.tensor(1.0))

    for model, way in ((model_of(3), True), (of_one_draw, "vmap")):
        objective, hints = default_objective(model, guide, (), {})
        assert objective.vectorize_particles == way and hints == []


def test_what_the_model_computes_is_not_observed() -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.deterministic("many", w.sum(-1, keepdim=True).expand(*w.shape[:-1], 6000), event_dim=1)
        pyro.sample("y", dist.Normal(w.mean(-1), 1.0), obs=torch.tensor(1.0))

    objective, _ = default_objective(model, HyperNetworkGuide(model), (), {})
    assert objective.num_particles == 32


def test_latents_that_only_a_later_batch_has_to_enumerate() -> None:
    def model(x: Tensor, label: Any = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 8, subsample_size=len(x)):
            y = pyro.sample("y", dist.Bernoulli(0.5), obs=label, infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(w * y, 1.0), obs=x)

    x, label = torch.randn(4), torch.ones(4)
    guide = AutoNormal(pyro.poutine.block(model, expose=["w"]))
    for batches in ([(x, label), (x,)], [(x,), (x, label)]):
        result = fit(model, guide, batches=batches, num_steps=2, progress=False)
        assert isinstance(result.objective, TraceEnum_ELBO)


def test_warnings_of_shapes_that_are_not_used_are_not_told() -> None:
    """The plate of draws is tried, and given up: what it says on the way is of no step."""

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        if w.dim() > 1:
            warnings.warn("of a plate of draws", stacklevel=1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=x[:, 0])

    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, torch.randn(5, 2), num_steps=2, progress=False)
    assert result.objective.is_mapped
    assert not any("plate of draws" in text for text in result.warnings)


def test_a_scale_of_all_rows_is_no_minibatch():
    """The gradient along the path is left out for some of the rows, whatever they weigh."""

    def local(y, size=None):
        with pyro.plate("data", size or len(y), subsample_size=len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    y = torch.randn(8)
    for model, args, expected in (
        (local, (y,), True),
        (poutine.scale(local, scale=0.5), (y,), True),
        (local, (y, 16), False),
    ):
        guide = ConditionalHyperNetworkGuide(model, context=lambda y, size=None: y[:, None])
        guide(*args)
        objective, _ = default_objective(model, guide, args, {})
        assert objective.path_gradient is expected
