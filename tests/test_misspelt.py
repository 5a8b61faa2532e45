"""Options that neither ``fit`` nor the model has are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_implicit import (
    AlphaEnergy,
    CMMNNGuide,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    MixtureDensityGuide,
    MMNNGuide,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
    evaluate,
    fit,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit.diagnostics import khat, stein_discrepancy, vsbc
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.inference import prior_from
from pyro_implicit.objectives import AISIVI, IWAE, KPG, KSIVI, UIVI, AmortisedSVGD

OBJECTIVES = (
    LinearisedELBO,
    LanczosELBO,
    SingularValueELBO,
    SemiImplicitELBO,
    KernelDensityRatioELBO,
    AlphaEnergy,
    KSIVI,
    KPG,
    AmortisedSVGD,
    UIVI,
    AISIVI,
    IWAE,
)


def model(x: Any, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("numsteps", "num_steps"),
        ("learning_rate", "lr"),
        ("steps", "num_steps"),
        ("sed", "seed"),
        ("validaton", "validation"),
    ],
)
def test_near_misses(name: str, said: str) -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match=rf"{name}= .* takes x, y\. Did you mean {said}=\?"):
        fit(model, HyperNetworkGuide(model), x, x, **{name: 1})


@pytest.mark.parametrize(
    ("function", "name", "said"),
    [
        (fit, "epochs", r"no epochs: write num_steps=num_epochs \* len\(batches\)"),
        (fit, "num_epochs", r"no epochs: write num_steps=num_epochs \* len\(batches\)"),
        (fit, "optimizer", "fit has Adam"),
        (refine, "num_samples", "counts gradients of each chain.*num_steps=.*num_chains="),
        (refine, "warmup_steps", "the warm-up included"),
    ],
)
def test_what_no_option_is_another_name_of(function: Any, name: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}= is neither.*{said}"):
        check_misspelt(function, model, {name: 1})


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda guide, x: posterior_draws(guide, 3, sed=1), "seed"),
        (lambda guide, x: posterior_draws(guide, num_sample=3), "num_samples"),
        (lambda guide, x: prior_from(guide, forms="full"), "form"),
        (lambda guide, x: prior_from(guide, widden=5.0), "widen"),
        (lambda guide, x: khat(model, guide, x, x, num_sample=100), "num_samples"),
        (lambda guide, x: stein_discrepancy(model, guide, x, x, sed=1), "seed"),
        (lambda guide, x: vsbc(model, lambda data: guide, x, num_simulation=10), "num_simulations"),
    ],
)
def test_where_only_the_guide_or_a_diagnostic_would_get_them(call: Any, near: str) -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    with pytest.raises(ArgumentError, match=rf"takes x, y\. Did you mean {near}=\?"):
        call(guide, x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda guide, x: predict(model, guide, x), r"predict\(model, guide, \.\.\., num_samples="),
        (lambda guide, x: log_predictive_density(model, guide, x, x), "num_samples=500"),
        (lambda guide, x: posterior_draws(guide), r"posterior_draws\(guide, \.\.\., num_samples="),
        (lambda guide, x: posterior_draws(guide, x, x), "num_samples=a tensor of shape"),
    ],
)
def test_a_number_of_draws_that_is_missing(call: Any, said: str) -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    with pytest.raises(ArgumentError, match=said):
        call(guide, x)


def test_a_number_of_draws_by_place_or_name() -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    first = posterior_draws(guide, 4, x, x, seed=0)["w"]
    assert torch.equal(first, posterior_draws(guide, x, x, num_samples=4, seed=0)["w"])


def test_others() -> None:
    with pytest.raises(ArgumentError, match="fit has objective, num_steps"):
        check_misspelt(fit, model, {"zzz": 1})
    with pytest.raises(ArgumentError, match="takes none"):
        check_misspelt(fit, lambda: None, {"zzz": 1})


@pytest.mark.parametrize("taken", [model, partial(model, x=1), lambda **any: None, max])
def test_what_a_model_takes_goes_to_it(taken: Any) -> None:
    check_misspelt(fit, taken, {"y": 1})


@pytest.mark.parametrize(
    ("function", "name", "said"),
    [
        (evaluate, "num_sample", "num_samples"),
        (evaluate, "num_draws", "num_samples"),
        (evaluate, "epochs", None),
        (log_predictive_density, "sede", "seed"),
        (predict, "batchsize", "batch_size"),
        (predict, "zzz", None),
        (refine, "num_stepz", "num_steps"),
        (to_arviz, "num_draws", "num_samples"),
    ],
)
def test_what_scores_and_predicts_names_them_too(function: Any, name: str, said: Any) -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    hint = f"Did you mean {said}=" if said else f"{function.__name__} has "
    with pytest.raises(
        ArgumentError, match=f"{name}= is neither an option of {function.__name__}.*{hint}"
    ):
        options = {} if function is refine else {"num_samples": 2}
        function(model, guide, x, x, **(options | {name: 1}))


def test_predictions_of_a_seed() -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    before = torch.random.get_rng_state()
    first, same, other = (
        predict(model, guide, x, num_samples=4, seed=seed)["y"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ArgumentError, match="seed"):
        predict(model, guide, x, num_samples=4, seed=-1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HyperNetworkGuide(model, hidden_dim=10), "HyperNetworkGuide .*hidden_dims=?"),
        (lambda: MMNNGuide(model, budgets=1.0), "MMNNGuide has no .*Did you mean budget=?"),
        (lambda: CMMNNGuide(model, init_form=None), "CMMNNGuide .*mean init_from=?"),
        (lambda: ConditionalHyperNetworkGuide(model, contxt=len), "Conditional.*mean context=?"),
        (lambda: MixtureDensityGuide(model, zzz=1), "MixtureDensityGuide .*It has .*context"),
        (lambda: LinearisedELBO(form="per_datum"), r"Did you mean likelihood=\?"),
        (lambda: LinearisedELBO(4, beta=0.5), r"Did you mean kl_weight=\?"),
        (lambda: LinearisedELBO(num_samples=5), r"Did you mean num_particles=\?"),
        (lambda: PosteriorPredictiveLoss(likelihood="expected"), r"write form= \(per_datum, exp"),
        *(
            (lambda kind=kind: kind(4, vectorise_particles=True), f"{kind.__name__} .*vectorize_p")
            for kind in OBJECTIVES
        ),
    ],
)
def test_classes_name_the_options_that_they_have(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


def test_classes_of_a_user_keep_their_options() -> None:
    class Own(HyperNetworkGuide):
        def __init__(self, model: Any, own: int = 1, **options: Any) -> None:
            self.taken = options.pop("more", own)
            super().__init__(model, **options)

    class Fixed(HyperNetworkGuide):
        def __init__(self, model: Any) -> None:
            super().__init__(model, init_from=None)

    assert Own(model, more=3, init_from=None).taken == 3
    Fixed(model)


def test_predictions_name_the_number_of_draws() -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    with pytest.raises(ArgumentError, match=r"num_sample= .*Did you mean num_samples=\?"):
        predict(model, guide, x, num_sample=5)
    with pytest.raises(ArgumentError, match="the number of draws is missing"):
        predict(model, guide, x)


@pytest.mark.parametrize("name", ["optim", "optimizer", "optimiser"])
def test_the_optimiser_of_fit_is_told(name: str) -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match="fit has Adam, with lr=; .* SVI"):
        fit(model, HyperNetworkGuide(model), x, x, **{name: 1})


def test_an_objective_among_the_arguments() -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match="argument 2 .* is a LinearisedELBO; write objective="):
        fit(model, HyperNetworkGuide(model), x, x, LinearisedELBO(8))


class OfForward(nn.Module):
    def forward(self, x: Any, y: Any = None) -> None:
        model(x, y)


class OfCall(nn.Module):
    def __call__(self, x: Any, scale: float = 1.0) -> None:
        model(x)


def test_modules_are_asked_what_they_run() -> None:
    """The call of any module takes everything."""
    with pytest.raises(ArgumentError, match="num_sample= is neither .* takes x, y. Did you mean"):
        check_misspelt(predict, OfForward(), {"num_sample": 3})
    check_misspelt(predict, OfForward(), {"y": None})
    check_misspelt(predict, OfCall(), {"scale": 2.0})
    with pytest.raises(ArgumentError, match="takes x, scale"):
        check_misspelt(predict, OfCall(), {"y": 2.0})


@pytest.mark.parametrize("name", ["name", "max_iarange_nesting"])
def test_options_of_bases_in_pyro_that_nobody_takes_are_refused(name):
    for make in (partial(HyperNetworkGuide, lambda: None), LinearisedELBO):
        with pytest.raises(ArgumentError, match=f"has no option {name}="):
            make(**{name: 1})
