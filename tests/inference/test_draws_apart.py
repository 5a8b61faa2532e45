"""Predictions of many draws in one pass are those of each by itself, or they are refused."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer.autoguide import AutoNormal

from pyro_implicit.exceptions import SiteError
from pyro_implicit.inference import predict
from pyro_implicit.inference.draws_apart import draws_with_extremes

X = torch.linspace(-1, 1, 80).sin().reshape(40, 2)

#: none is a matter of one draw alone, nor does any change a pair's first draw in each seed
MIXERS: dict[str, Any] = {
    "sum": lambda w: w.sum(),
    "less the mean": lambda w: w - w.mean(),
    "softmax": lambda w: w.softmax(0),
    "largest": lambda w: w.max(),
    "smallest": lambda w: w.min().expand(w.shape),
    "number": lambda w: w / len(w) if w.dim() else w,
    "sorted": lambda w: w.flatten().sort().values.reshape(w.shape),
    "last": lambda w: w.flatten()[-1],
    "first": lambda w: w.flatten()[0],
    "size": lambda w: w * w.numel(),
}
#: what asks for a value, of all draws at once
QUESTIONS: dict[str, Any] = {
    "any": lambda w: -w if (w > 0).any() else w,
    "all": lambda w: -w if bool((w > -9).all()) else w,
    "float": lambda w: w + float((w > 0).any()),
    "item": lambda w: w * (w > 9).any().item(),
    "numpy": lambda w: w + torch.as_tensor((w.numpy() > 9).max() * 1.0),
}
#: each draw by itself, whatever else is there
APART: dict[str, Any] = {
    "plain": lambda w: w,
    "where": lambda w: torch.where(w > 0, w, -w),
    "exp": lambda w: w.exp().clamp(max=3.0),
    "shape": lambda w: w * w.shape[-1] if w.dim() else w,
}


def program(of: Any, kind: str, own: bool = False) -> Any:
    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.1))
        with pyro.plate("data", len(x)):
            noise = 0.1 * torch.randn(len(x)) if own else 0.0
            f = pyro.deterministic("f", of(w) * x[:, 0] + noise, event_dim=0)
            if kind == "count":
                return pyro.sample("y", dist.Poisson(f.exp()), obs=y)
            if kind == "by rejection":
                return pyro.sample("y", dist.Gamma(0.7, f.exp()), obs=y)
            return pyro.sample("y", dist.Normal(f, scale), obs=y)

    return model


def predicted(of: Any, kind: str, seed: int = 0, **options: Any) -> dict[str, torch.Tensor]:
    latents = program(lambda w: w, "normal")
    pyro.clear_param_store()
    guide = AutoNormal(latents, init_scale=1.0)
    guide(X, X[:, 0])
    own, parallel = options.pop("own", False), options.pop("parallel", True)
    return predict(program(of, kind, own), guide, X, parallel=parallel, seed=seed, **options)


kinds = st.sampled_from(["normal", "count", "by rejection"])
with_noise = st.sampled_from([["f"], ["y"], ["f", "y"], None])


@pytest.mark.long
@given(name=st.sampled_from(sorted(MIXERS)), kind=kinds, sites=with_noise, seed=st.integers(0, 99))
def test_a_draw_that_depends_on_others_is_refused(
    name: str, kind: str, sites: list[str] | None, seed: int
) -> None:
    with pytest.raises(SiteError, match="parallel=True what one draw predicts at site '[fy]' dep"):
        predicted(MIXERS[name], kind, seed, num_samples=5, sites=sites)


@pytest.mark.long
@given(name=st.sampled_from(sorted(QUESTIONS)), kind=kinds, seed=st.integers(0, 99))
@settings(max_examples=20)
def test_a_question_about_all_draws_is_refused(name: str, kind: str, seed: int) -> None:
    with pytest.raises(SiteError, match="asks for the value of .* of test_draws_apart.py"):
        predicted(QUESTIONS[name], kind, seed, num_samples=5)


#: one answer for all draws, which is that of one draw, and of two, unless something rare is met
RARE: dict[str, Any] = {
    "any": lambda w, t: w * torch.where((w > t).any(), 2.0, 1.0),
    "count": lambda w, t: w * torch.count_nonzero(w > t),
    "clamped": lambda w, t: w * w.max().clamp(min=t),
    "sum": lambda w, t: w + (w - t).relu().sum(),
    "one-hot": lambda w, t: w * torch.nn.functional.one_hot((w > t).long()).shape[-1],
    "first": lambda w, t: w * torch.nonzero_static(w > t, size=1).sum(),
}


@pytest.mark.long
@given(
    name=st.sampled_from(sorted(RARE)),
    threshold=st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
    seed=st.integers(0, 99),
    sites=with_noise,
)
@settings(max_examples=12)
def test_what_is_rarely_true_of_a_draw_is_seen(
    name: str, threshold: float, seed: int, sites: list[str] | None
) -> None:
    def of(w: torch.Tensor) -> Any:
        return RARE[name](w, threshold)

    apart = predicted(of, "normal", seed, num_samples=200, sites=["w", "f"], parallel=False)
    try:
        together = predicted(of, "normal", seed, num_samples=200, sites=sites or ["w", "f"])
    except SiteError:
        return
    draws = {"w": apart["w"]} | together
    assert all(torch.allclose(draws[n], apart[n], atol=1e-5) for n in draws.keys() & apart.keys())


def test_draws_with_extremes_are_among_those_looked_at() -> None:
    draws = torch.zeros(1000, 2)
    draws[700, 0], draws[800, 1], draws[900] = 5.0, -5.0, 1.0
    which = draws_with_extremes({"w": draws, "n": torch.zeros(1000, 0)}, 12)
    assert len(which) == len(set(which)) == 12 and {700, 800, 900} <= set(which)
    assert draws_with_extremes({"k": torch.tensor([True, False, True])}, 64) == [1, 0, 2]
    assert draws_with_extremes({}, 12) == []


def test_a_question_is_seen_in_a_model_that_draws_numbers_of_its_own() -> None:
    with pytest.raises(SiteError, match="asks for the value of"):
        predicted(QUESTIONS["any"], "normal", num_samples=5, own=True)


@pytest.mark.long
@given(
    name=st.sampled_from(sorted(APART)),
    kind=kinds,
    seed=st.integers(0, 99),
    own=st.booleans(),
    count=st.integers(2, 5),
)
def test_other_models_are_not(name: str, kind: str, seed: int, own: bool, count: int) -> None:
    draws = predicted(APART[name], kind, seed, num_samples=count, own=own)
    assert draws["y"].shape == (count, len(X))


@pytest.mark.long
@given(name=st.sampled_from(sorted(MIXERS)), kind=kinds, seed=st.integers(0, 99))
@settings(max_examples=10)
def test_one_draw_is_evaluated_by_itself(name: str, kind: str, seed: int) -> None:
    one = predicted(MIXERS[name], kind, seed, num_samples=1, sites=["f", "y"])
    other = predicted(MIXERS[name], kind, seed, num_samples=1, sites=["f", "y"], parallel=False)
    assert all(torch.equal(one[site], other[site]) for site in one)
