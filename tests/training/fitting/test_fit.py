"""fit: the same posterior as a loop by hand, the same bits from the same seed, and clear ends."""

from __future__ import annotations

import io
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, ReweightedWakeSleep, Trace_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import (
    AlphaEnergy,
    HyperNetworkGuide,
    LinearisedELBO,
    fit,
    posterior_draws,
)
from pyro_implicit._random import read_random_state
from pyro_implicit.exceptions import (
    ArgumentError,
    NonFiniteError,
    ShapeError,
    SiteError,
    StateError,
)
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.generators.rescaled import rescaled
from pyro_implicit.training import FitResult
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.pace.learning_rate import LearningRate
from pyro_implicit.training.fitting.pace.norm_clipped_adam import NormClippedAdam
from pyro_implicit.training.fitting.run import Run
from tests.training.fitting import stubs
from tests.training.fitting.stubs import Bowl

X = torch.tensor([0.5, -1.0, 2.0, 1.5])
SCALE = dist.LogNormal(0.0, 0.5)


def conjugate(x: Tensor) -> None:
    """The mean of normal data under a normal prior: the evidence is known."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(X), subsample_size=len(x)):
        pyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def log_evidence() -> float:
    covariance = torch.eye(4) + 1.0
    return float(dist.MultivariateNormal(torch.zeros(4), covariance).log_prob(X))


def bowl(**options: Any) -> FitResult:
    given: dict[str, Any] = {"objective": Bowl(), "progress": False, "seed": 1, "lr": 0.05}
    return fit(stubs.model, stubs.guide, **given | options)


# ---- what is reached


@pytest.mark.slow
def test_the_posterior_is_reached_and_the_run_ends_by_itself() -> None:
    guide = HyperNetworkGuide(conjugate, init_scale=0.3)
    result = fit(conjugate, guide, X, seed=0, progress=False, lr=0.02, num_steps=1500)
    assert result.reason == "converged" and 400 < result.num_steps < 1500, str(result)
    assert result.warnings == []
    draws = guide.sample(4000)["mean"]
    assert draws.mean().item() == pytest.approx(3.0 / 5.0, abs=0.06)
    assert draws.std().item() == pytest.approx(5.0**-0.5, rel=0.06)
    with torch.no_grad():
        value = -LinearisedELBO(2000, vectorize_particles=True).loss(conjugate, guide, X)
    assert value == pytest.approx(log_evidence(), abs=0.06)


@pytest.mark.long
def test_it_does_what_a_loop_of_svi_does() -> None:
    """As long as the rate is level and no gradient is cut: the same bits of the loss."""
    pyro.set_rng_seed(3)
    guide = AutoNormal(conjugate)
    svi = SVI(conjugate, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO(4))
    losses = [svi.step(X) for _ in range(20)]
    pyro.clear_param_store()
    other = AutoNormal(conjugate)
    options: dict[str, Any] = {"seed": 3, "num_steps": 30, "progress": False, "lr": 0.01}
    result = fit(conjugate, other, X, objective=Trace_ELBO(4), **options)
    assert result.history[:20] == pytest.approx(losses, rel=1e-5)


@pytest.mark.long
def test_parameters_of_model_and_guide_are_trained() -> None:
    result = bowl()
    assert result.reason == "converged"
    assert stubs.value() == pytest.approx((1.0, 1.0, 0.0), abs=0.1)
    assert result.rates[0] == 0.05 and result.rates[-1] < 0.0006
    assert result.rates == sorted(result.rates, reverse=True)
    assert len(result.rates) == result.num_steps


@pytest.mark.long
def test_terms_are_kept_now_and_then_and_add_up() -> None:
    guide = HyperNetworkGuide(conjugate)
    result = fit(conjugate, guide, X, seed=0, num_steps=100, progress=False)
    assert [one["step"] for one in result.terms] == [50, 100]
    assert set(result.terms[0]) == {"step", "log_likelihood", "log_prior", "entropy"}
    total = sum(value for name, value in result.terms[-1].items() if name != "step")
    assert -total == pytest.approx(result.loss, abs=3.0)


# ---- the same numbers


@pytest.mark.long
def test_the_same_seed_gives_the_same_bits_whatever_is_shown(capfd: Any) -> None:
    outside = read_random_state()["torch"]
    histories = []
    for seed, progress in ((1, False), (1, True), (2, False)):
        pyro.clear_param_store()
        guide = HyperNetworkGuide(conjugate)
        result = fit(conjugate, guide, X, seed=seed, num_steps=12, progress=progress)
        histories.append(result.history)
    assert histories[0] == histories[1] != histories[2]
    assert read_random_state()["torch"].equal(outside)
    shown = capfd.readouterr().err
    assert "12/12" in shown and "fit" in shown and shown.count("12/12") < 3


def test_without_a_seed_torch_draws_one() -> None:
    histories = []
    for _ in range(2):
        pyro.clear_param_store()
        torch.manual_seed(7)
        histories.append([bowl(seed=None, num_steps=5).history for _ in range(2)])
    assert histories[0] == histories[1]
    assert histories[0][0] != histories[0][1]


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 37, 80])
def test_an_interrupted_run_goes_on_to_the_same_bits(at: int) -> None:
    whole = bowl(num_steps=90)
    reached = stubs.value()
    pyro.clear_param_store()
    first = bowl(num_steps=90, objective=Bowl(events={at: KeyboardInterrupt()}))
    assert (first.reason, first.num_steps) == ("interrupted", at - 1)
    taken = list(first.history)
    result = bowl(num_steps=90, seed=None, resume=first)
    assert result.history == whole.history and result.rates == whole.rates
    assert stubs.value() == reached
    assert first.history == taken and result.seconds > first.seconds


class Noted(Bowl):
    """With terms that draw numbers too, and a call of them that may be broken off."""

    def __init__(self, interrupted_at: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.interrupted_at, self.num_terms = interrupted_at, 0

    def terms(self, *args: Any, **kwargs: Any) -> Any:
        self.num_terms += 1
        drawn = torch.randn(())
        if self.num_terms == self.interrupted_at:
            raise KeyboardInterrupt
        return {"drawn": drawn}


class Score:
    """Best at 0.5, on the way to 1; it draws a number, and may be broken off."""

    def __init__(self, interrupted_at: int = 0) -> None:
        self.interrupted_at, self.calls = interrupted_at, 0

    def __call__(self) -> float:
        self.calls += 1
        noise = 1e-3 * torch.rand(())
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        return float(noise - (pyro.param("w").detach() - 0.5).square().sum())


def _interrupt(
    monkeypatch: pytest.MonkeyPatch, of: Any, at: int, after: bool, name: str = "step"
) -> None:
    step, calls = getattr(of, name), iter(range(1, 10_000))

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        now = next(calls) == at
        taken = step(*args, **kwargs) if after or not now else None
        if now:
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(of, name, interrupted)


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[FitResult, tuple[float, ...]]:
    """A run to its end, with terms and scores, and where it ends."""
    pyro.clear_param_store()
    whole = bowl(num_steps=230, objective=Noted(), validation=Score())
    return whole, stubs.value()


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "num_steps"),
    [
        ("terms", 100),
        ("score", 200),
        ("last score", 230),
        ("after step", 70),
        ("in kernels", 70),
        ("before kernels", 69),
        ("counted, not moved", 69),
        ("after backward", 0),
    ],
)
def test_whatever_moment_is_interrupted_it_goes_on_to_the_same_bits(
    moment: str, num_steps: int, uninterrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"num_steps": 230}
    whole, reached = uninterrupted
    objective = Noted(interrupted_at=2 if moment == "terms" else 0)
    score = Score({"score": 2, "last score": 3}.get(moment, 0))
    with monkeypatch.context() as patch:
        if moment == "after step":
            _interrupt(patch, NormClippedAdam, 70, after=True)
        elif "kernels" in moment:
            _interrupt(patch, torch.optim.Adam, 70, after=moment == "in kernels")
        elif moment == "counted, not moved":
            _interrupt(patch, torch, 70, after=False, name="_fused_adam_")
        elif moment == "after backward":
            _interrupt(patch, NormClippedAdam, 1, after=False)
        first = bowl(**options, objective=objective, validation=score)
    assert (first.reason, first.num_steps) == ("interrupted", num_steps)
    result = bowl(**options, objective=Noted(), validation=Score(), seed=None, resume=first)
    assert result.history == whole.history and result.rates == whole.rates
    assert result.terms == whole.terms and len(whole.terms) == 4
    assert result.scores == whole.scores and list(whole.scores) == [100, 200, 230]
    assert stubs.value() == reached
    assert result.state["adam"]["norm"] == whole.state["adam"]["norm"]


@pytest.mark.long
def test_the_best_parameters_of_before_an_interruption_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_implicit.training.fitting.validation._PATIENCE", 5)
    options: dict[str, Any] = {"num_steps": 3000, "lr": 0.005}
    whole = bowl(**options, validation=Score())
    reached = stubs.value()
    best = max(whole.scores, key=lambda step: whole.scores[step])
    assert whole.reason == "validation" and 100 <= best < 350 < whole.num_steps, str(whole)
    pyro.clear_param_store()
    events = {350: KeyboardInterrupt()}
    first = bowl(**options, objective=Bowl(events=events), validation=Score())
    file = io.BytesIO()
    torch.save(first.state, file)
    file.seek(0)
    read = replace(first, scores={}, state=torch.load(file, weights_only=True))
    result = bowl(**options, seed=None, resume=read, validation=Score())
    assert result.history == whole.history and result.scores == whole.scores
    assert (result.reason, stubs.value()) == ("validation", reached)
    more = whole.num_steps + 250
    further = bowl(num_steps=more, lr=1e-5, seed=None, resume=result, validation=lambda: -9.0)
    assert len(further.scores) > len(whole.scores) + 1  # patience begins anew
    assert stubs.value() == reached  # and the best are still the best
    kept = bowl(num_steps=more + 50, lr=1e-5, seed=None, resume=further)
    assert kept.state["validation"] == further.state["validation"]


@pytest.mark.long
def test_a_guide_goes_on_from_a_state_on_disk() -> None:
    """With its own state_dict and weights_only: no code is run by reading it."""

    def interrupted_at(count: int) -> tuple[HyperNetworkGuide, FitResult]:
        pyro.clear_param_store()
        calls = iter(range(1000))

        def model(x: Tensor) -> None:
            conjugate(x)
            if next(calls) == count:
                raise KeyboardInterrupt

        guide = HyperNetworkGuide(conjugate)
        options: dict[str, Any] = {"objective": LinearisedELBO(2), "num_steps": 20}
        return guide, fit(model, guide, X, seed=5, progress=False, **options)

    whole_guide, whole = interrupted_at(-1)
    guide, first = interrupted_at(15)
    assert first.reason == "interrupted" and 0 < first.num_steps < 20
    file = io.BytesIO()
    torch.save({"guide": guide.state_dict(), "state": first.state}, file)
    file.seek(0)
    read = torch.load(file, weights_only=True)
    pyro.clear_param_store()
    other = HyperNetworkGuide(conjugate)
    other.load_state_dict(read["guide"])
    again = FitResult(
        first.history, "interrupted", LinearisedELBO(2), 0.0, first.rates, state=read["state"]
    )
    result = fit(conjugate, other, X, resume=again, num_steps=20, progress=False)
    assert result.history == whole.history
    for name, value in whole_guide.state_dict().items():
        if isinstance(value, Tensor):
            assert other.state_dict()[name].equal(value), name


def of_two(x: Tensor) -> None:
    """A mean and a deviation of normal data."""
    mean, scale = pyro.sample("mean", dist.Normal(0.0, 1.0)), pyro.sample("scale", SCALE)
    with pyro.plate("data", len(X), subsample_size=len(x)):
        pyro.sample("x", dist.Normal(mean, scale), obs=x)


@pytest.mark.long
@pytest.mark.parametrize("what", ["result", "guide", "both"])
def test_a_copy_goes_on_to_the_same_bits(what: str) -> None:
    """Its objective has not met the guide yet, and runs both once to count their plates."""

    def interrupted_at(count: int) -> tuple[HyperNetworkGuide, FitResult]:
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        scores = iter([0.0] * count)
        guide = HyperNetworkGuide(of_two)

        def score() -> float:
            if (found := next(scores, None)) is None:
                raise KeyboardInterrupt
            return found

        options: Any = {"num_steps": 130, "seed": 0, "progress": False}
        return guide, fit(of_two, guide, X, validation=score, **options)

    _, whole = interrupted_at(100)
    guide, first = interrupted_at(0)
    assert whole.reason != "interrupted" == first.reason and first.num_steps < whole.num_steps
    if what != "guide":
        first = pickle.loads(pickle.dumps(first))
    if what != "result":
        guide = HyperNetworkGuide.from_state_dict(guide.state_dict())
    options: Any = {"num_steps": 130, "progress": False, "validation": lambda: 0.0}
    assert fit(of_two, guide, X, resume=first, **options).history == whole.history


def test_a_run_that_had_ended_begins_anew() -> None:
    first = bowl(num_steps=30)
    assert first.reason == "limit" and first.rates[-1] < 0.05
    result = bowl(num_steps=60, seed=None, resume=first, objective=None)
    assert result.history[:30] == first.history and result.num_steps == 60
    assert result.rates[30] == 0.05 and isinstance(result.objective, Bowl)
    assert first.num_steps == 30


# ---- data in batches


def test_batches_are_gone_through_again_and_again() -> None:
    objective = Bowl()
    bowl(objective=objective, batches=[(1, 2), {"y": 3}], num_steps=5)
    assert objective.seen == [(1, 2), {"y": 3}, (1, 2), {"y": 3}, (1, 2)]


@pytest.mark.long
def test_a_loader_trains_the_default_objective() -> None:
    loader = DataLoader(TensorDataset(X), batch_size=2, shuffle=True)
    histories = []
    for _ in range(2):
        pyro.clear_param_store()
        guide = HyperNetworkGuide(conjugate)
        result = fit(conjugate, guide, batches=loader, num_steps=10, progress=False, seed=0)
        histories.append(result.history)
    assert histories[0] == histories[1]


# ---- validation


@pytest.mark.long
def test_validation_stops_and_brings_the_best_back() -> None:
    """A score that is best at 0.5, on the way to 1."""
    scores = []

    def score() -> float:
        w = pyro.param("w")
        scores.append(-(w - 0.5).square().sum().item())
        return scores[-1]

    result = bowl(validation=score, lr=0.002, num_steps=5000)
    assert result.reason == "validation"
    assert list(result.scores) == list(range(100, result.num_steps + 1, 100))
    assert list(result.scores.values()) == scores
    assert score() == max(result.scores.values())
    assert max(result.scores, key=result.scores.get) == result.num_steps - 1000
    assert "best validation score" in str(result)


@pytest.mark.long
def test_validation_by_held_out_data() -> None:
    guide = AutoNormal(conjugate)
    options: dict[str, Any] = {"num_steps": 120, "progress": False, "seed": 0}
    result = fit(conjugate, guide, X, validation=(X[:2],), lr=0.05, **options)
    assert list(result.scores) == [100, 120]  # the last parameters have a score too
    predictive = dist.Normal(0.6, math.sqrt(1.2)).log_prob(X[:2]).mean().item()
    assert result.scores[120] == pytest.approx(predictive, abs=0.1)


@pytest.mark.long
def test_a_score_that_is_not_finite_is_never_the_best() -> None:
    scores = iter([math.nan, -1.0, math.inf])
    result = bowl(validation=lambda: next(scores), num_steps=250)
    told = list(result.scores.values())
    assert math.isnan(told[0]) and told[1:] == [-1.0, math.inf]
    assert "2 of 3 validation scores were NaN or infinite" in result.warnings[0]


# ---- what goes wrong


def test_steps_that_are_not_finite_are_skipped_and_told() -> None:
    events: dict[int, Any] = {3: math.nan, 5: math.inf, 7: NonFiniteError("site 'w' is to blame")}
    result = bowl(objective=Bowl(events=events), num_steps=20)
    assert result.num_steps == 20 and stubs.is_finite()
    assert all(map(math.isfinite, result.history))
    assert "3 steps were skipped" in result.warnings[0]
    assert result.warnings[0].endswith("the last one: site 'w' is to blame")


@pytest.mark.long
def test_too_many_in_a_row_are_an_error_that_names_the_site() -> None:
    def model(x: Tensor) -> None:
        conjugate(x)
        pyro.factor("bad", torch.tensor(-math.inf))

    with pytest.raises(NonFiniteError, match="20 steps in a row(.|\n)*'bad' of the model") as e:
        fit(model, HyperNetworkGuide(conjugate), X, progress=False, seed=0)
    assert str(e.value).count("steps in a row") == 1
    with pytest.raises(NonFiniteError, match="after 4 that had; the last one: the loss was nan"):
        bowl(objective=Bowl(events={i: math.nan for i in range(5, 99)}))


@pytest.mark.long
def test_the_limit_and_a_divergence_are_told() -> None:
    assert "the limit of 30 steps came before" in bowl(num_steps=30).warnings[0]
    rising = Bowl(events={i: float(i) for i in range(1, 900)})
    result = bowl(objective=rising, num_steps=600, lr=1e-6)
    assert "it has diverged: the loss of the last quarter" in result.warnings[0]


def test_warnings_are_shown_and_kept() -> None:
    def model(x: Tensor) -> None:
        conjugate(x)
        warnings.warn("something is odd", UserWarning, stacklevel=2)

    with pytest.warns(UserWarning, match="something is odd"):
        result = fit(model, AutoNormal(conjugate), X, num_steps=3, progress=False, seed=0)
    assert result.warnings[-1] == "something is odd"


def test_an_objective_without_terms_is_trained_and_its_bad_terms_are_left_out() -> None:
    class Odd(Bowl):
        def terms(self, *args: Any, **kwargs: Any) -> Any:
            raise NonFiniteError("a bad draw")

    assert bowl(num_steps=60).terms == bowl(num_steps=60, objective=Odd()).terms == []


_svi = SVI(lambda: None, lambda: None, pyro.optim.Adam({}), Trace_ELBO())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps=0; expected an integer >= 1"),
        ({"lr": 0.0}, "lr=0.0; expected a finite number > 0"),
        ({"progress": 1}, "progress=1"),
        ({"seed": -1}, "seed=-1"),
        ({"objective": LinearisedELBO}, "objective=<class"),
        ({"objective": 3}, "objective=3; expected an objective, such as LinearisedELBO"),
        ({"objective": _svi}, "objective is an SVI.*Hand over what it minimises"),
        ({"validation": 3}, "validation=3; expected held-out arguments"),
        ({"validation": ()}, r"validation=\(\)"),
        ({"validation": int}, "validation=<class 'int'>"),
        ({"batches": 3}, "batches=3"),
        ({"resume": 3}, "resume is 3; expected the result of an earlier fit"),
    ],
)
def test_bad_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        bowl(**options)


def test_a_score_must_be_a_number() -> None:
    with pytest.raises(ArgumentError, match=r"the value of validation\(\)='good'"):
        bowl(validation=lambda: "good", num_steps=100)


def test_what_cannot_be_resumed() -> None:
    first = bowl(num_steps=10)
    with pytest.raises(ArgumentError, match="num_steps=10, and the run to resume has taken 10"):
        bowl(num_steps=10, seed=None, resume=first)
    with pytest.raises(ArgumentError, match="leave seed out"):
        bowl(num_steps=20, resume=first)
    with pytest.raises(
        StateError,
        match=r"it has parameter 'of_model', that these have not; it lacks parameters 'a', 'b', "
        r"'c' and 1 more, that these have\. Give fit the model and the guide of that run",
    ):
        other = [pyro.param(name, torch.ones(2)) for name in "abcd"] and None
        fit(lambda: other, _other_guide, objective=Other(), resume=first, progress=False)
    assert all(pyro.param(name).grad is None for name in "abcdw")
    bare = FitResult(first.history, "limit", Bowl(), 0.0)
    with pytest.raises(StateError, match="resume has no state to go on from"):
        bowl(num_steps=20, seed=None, resume=bare)
    pyro.clear_param_store()
    pyro.param("w", torch.zeros(3))
    with pytest.raises(StateError, match=r"'w' has shape \(3,\), and had shape \(2,\)"):
        bowl(num_steps=20, seed=None, resume=first)


@pytest.mark.parametrize("broken", [int, "x"])
def test_model_and_guide_are_checked(broken: Any) -> None:
    sides: list[Callable[[], Any]] = [
        lambda: fit(broken, stubs.guide),
        lambda: fit(stubs.model, broken),
    ]
    for call in sides:
        with pytest.raises(ArgumentError):
            call()


class Other(Bowl):
    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        guide().backward()
        return 1.0


def _other_guide() -> Tensor:
    return sum((pyro.param(name) for name in "abcdw"), torch.zeros(2)).sum()


def test_model_and_guide_that_are_swapped() -> None:
    for guide in (AutoNormal(conjugate), HyperNetworkGuide(conjugate)):
        with pytest.raises(ArgumentError, match="the model is a guide, .*: model and guide are sw"):
            fit(guide, conjugate, X)


def forgetful(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


@pytest.mark.parametrize("objective", [None, LinearisedELBO(2), Trace_ELBO()])
def test_data_that_were_forgotten_are_told_once(objective: Any) -> None:
    guide: Any = HyperNetworkGuide if objective is None else AutoNormal
    if isinstance(objective, LinearisedELBO):
        guide = HyperNetworkGuide
    options: dict[str, Any] = {"objective": objective, "num_steps": 2, "progress": False}
    with pytest.warns(UserWarning, match=r"observes nothing.*'w', 'y', is a latent.*fit\(") as told:
        result = fit(forgetful, guide(forgetful), X, **options)
    assert sum("observes nothing" in str(one.message) for one in told) == 1
    assert any("observes nothing" in text for text in result.warnings)


@pytest.mark.parametrize("count", [1, 2])
def test_batches_that_were_forgotten_are_told_how_batches_are_given(count: int) -> None:
    guide = HyperNetworkGuide(forgetful, init_from=None)
    told = r"observes nothing.*fit\(model, guide, batches=DataLoader\(TensorDataset\(x, y\)"
    with pytest.warns(UserWarning, match=told):
        fit(forgetful, guide, batches=[(X,)] * count, num_steps=2, progress=False)


def test_a_later_batch_with_other_columns_is_told() -> None:
    def model(x: Tensor, y: Any = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", 8, subsample_size=len(x)):
            pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)

    batches = [(torch.randn(4, 3), torch.randn(4)), (torch.randn(4, 2), torch.randn(4))]
    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.raises(ShapeError, match=r"argument 0 has shape \(4, 2\), and had \(4, 3\)"):
        fit(model, guide, batches=batches, num_steps=3, progress=False)


@pytest.mark.long
@pytest.mark.parametrize("kind", [AutoNormal, HyperNetworkGuide])
def test_batches_that_count_as_all_data_are_told(kind: Any) -> None:
    batches = [(X[:2], X[:2]), (X[2:], X[2:])]
    options: dict[str, Any] = {"num_steps": 2, "progress": False}
    with pytest.warns(UserWarning, match=r"no observed site \('y'\) is scaled up: each batch"):
        result = fit(forgetful, kind(forgetful), batches=batches, **options)
    assert any("subsample_size=len(x)" in text for text in result.warnings)
    for fine in (batches[:1], type("Endless", (), {"__iter__": lambda _: iter(batches)})()):
        pyro.clear_param_store()
        result = fit(forgetful, kind(forgetful), batches=fine, **options)
        assert not any("scaled up" in text for text in result.warnings)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Encountered")
@pytest.mark.parametrize("lr", [1e3, 1e9])
def test_a_rate_far_too_high_is_told(lr: float) -> None:
    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w.sum(-1, keepdim=True), scale[..., None]), obs=y)

    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.raises(NonFiniteError, match="20 steps in a row"):
        fit(model, guide, torch.zeros(5), lr=lr, num_steps=60, progress=False, seed=0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Encountered")
def test_a_rate_too_high_for_the_first_steps_is_halved() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(torch.exp(10.0 * (x @ w[..., None])[..., 0])), obs=y)

    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    guide = HyperNetworkGuide(model, init_from=None, init_scale=0.01)
    objective = LinearisedELBO(num_particles=2)
    options: Any = {"objective": objective, "num_steps": 60, "progress": False, "seed": 0}
    result = fit(model, guide, x, torch.ones(50), lr=1.0, **options)
    assert math.isfinite(result.history[-1])
    assert any("astray" in text and "to the start" in text for text in result.warnings)


@pytest.mark.long
def test_what_the_loss_is_worth_is_told() -> None:
    def promise(objective: Any, **options: Any) -> str:
        guide = HyperNetworkGuide(conjugate, init_from=None, **options)
        more: Any = {"num_steps": 2, "progress": False, "seed": 0}
        return fit(conjugate, guide, X, objective=objective, **more).promise

    assert promise(LinearisedELBO()) == "a lower bound on the evidence"
    assert "it may promise more than the evidence" in promise(LinearisedELBO(), noise_dim=1)
    assert "not after the posterior" in promise(LinearisedELBO(kl_weight=0.1))
    assert "not after the posterior" in promise(LinearisedELBO(kl_weight=2.0))
    assert promise(AlphaEnergy(num_particles=2)) == ""
    assert promise(AlphaEnergy(num_particles=2, alpha=0.0)) == "a lower bound on the evidence"
    assert promise(Trace_ELBO()) == ""


@pytest.mark.long
@pytest.mark.parametrize(("lr", "is_told"), [(3.0, True), (0.01, False)])
def test_a_run_that_ends_above_its_start_is_told(lr: float, is_told: bool) -> None:
    guide = HyperNetworkGuide(conjugate, init_from="laplace")
    result = fit(conjugate, guide, X, lr=lr, num_steps=40, progress=False, seed=0)
    assert any("above that of the first steps" in text for text in result.warnings) is is_told


def test_an_objective_of_two_losses_is_refused() -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match="returned 2 losses; expected one number.*infer.SVI"):
        fit(model, AutoNormal(model), objective=ReweightedWakeSleep(2), progress=False)


def test_latents_of_a_generator_within_another_count_once() -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(5), 1.0).to_event(1))

    inner = MLPGenerator(2, 5)
    guide = HyperNetworkGuide(model, generator=rescaled(inner, 1.0)).setup()
    arguments = Arguments((), None, {})
    run = Run(model, guide, LinearisedELBO(), arguments, LearningRate(0.1, 10), None)
    assert run._num_latents() == 5


def test_warnings_within_a_run_point_at_the_call(recwarn: pytest.WarningsRecorder) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w.detach() * x, 1.0), obs=y)

    warnings.simplefilter("always")
    fit(model, HyperNetworkGuide(model), torch.ones(4), torch.ones(4), num_steps=3, progress=False)
    told = [one for one in recwarn if "has a density with a gradient" in str(one.message)]
    assert told and {one.filename for one in told} == {__file__}


def test_a_step_that_is_skipped_is_told_in_one_line() -> None:
    """Pyro adds the shapes of all sites to what torch says of a parameter."""
    calls = 0

    def model(y: Tensor) -> None:
        nonlocal calls
        calls += 1
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        loc = mean + math.nan if calls in (30, 31) else mean
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    guide = HyperNetworkGuide(model).setup(X)
    with warnings.catch_warnings(), pyro.validation_enabled(True):
        warnings.simplefilter("ignore")
        options = {"objective": LinearisedELBO(2), "num_steps": 60, "seed": 0, "progress": False}
        result = fit(model, guide, X, **options)
    (told,) = (text for text in result.warnings if "skipped" in text)
    assert "Trace Shapes" not in told and "\n" not in told


# ---- batches of anything, and parameters in modules


class _Named(NamedTuple):
    y: Tensor


def _of_one(batch: Any) -> None:
    y = (batch["data"] if "data" in batch else batch)["y"] if isinstance(batch, dict) else batch.y
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 40, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)


@pytest.mark.parametrize(
    "make",
    [lambda y: {"y": y}, lambda y: {"data": {"y": y}}, _Named],
    ids=["dictionary", "nested", "named tuple"],
)
@pytest.mark.parametrize("kind", [HyperNetworkGuide, AutoNormal])
def test_batches_may_be_objects_of_any_kind(make: Any, kind: Any) -> None:
    torch.manual_seed(0)
    y = torch.randn(40) + 1
    batches = [(make(y[:20]),), (make(y[20:]),)]
    guide = kind(_of_one)
    fit(_of_one, guide, batches=batches, num_steps=3, seed=0, progress=False)
    assert posterior_draws(guide, 2)["w"].shape == (2,)


def test_batches_may_be_rows_of_what_the_model_holds() -> None:
    torch.manual_seed(0)
    data = torch.randn(40) + 1

    def closed(rows: slice) -> None:
        _of_one(_Named(data[rows]))

    guide = HyperNetworkGuide(closed)
    batches = [(slice(0, 20),), (slice(20, 40),)]
    fit(closed, guide, batches=batches, num_steps=3, seed=0, progress=False)


class _PartlyPlain(PyroModule):
    """A latent weight, and a layer that is trained as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = PyroModule[torch.nn.Linear](2, 1)
        self.w = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        mean = (x * self.w).sum(-1) + self.layer(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@pytest.mark.parametrize("kind", [HyperNetworkGuide, AutoNormal])
def test_plain_parameters_are_trained_where_modules_keep_their_own(kind: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 2)
    with pyro.settings.context(module_local_params=True):
        model = _PartlyPlain()
        begins = model.layer.bias.detach().clone()
        fit(model, kind(model), x, x[:, 0] + 2, num_steps=60, lr=0.05, seed=0, progress=False)
    assert 2 - model.layer.bias.detach() < 2 - begins - 0.5


def test_guides_of_a_list_that_draw_one_site_are_told() -> None:
    def chain() -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=torch.tensor(1.0))

    guide = AutoGuideList(chain)
    guide.append(HyperNetworkGuide(chain))
    guide.append(AutoNormal(chain))
    told = r"guides of the AutoGuideList draw several sites named 'a'.*hide=\['a'\]"
    with pytest.raises(SiteError, match=told):
        fit(chain, guide, num_steps=3, progress=False)
