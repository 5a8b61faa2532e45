"""``is_bound``: true of nothing but what is proven, for every objective and in every record."""

from __future__ import annotations

import inspect
import json
import math
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoNormal,
    AutoStructured,
)
from torch import Tensor

import pyro_implicit
from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    HyperNetworkGuide,
    ImplicitELBO,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit.arviz.attrs import run_attrs

TABLE: list[tuple[type[ImplicitELBO], dict[str, Any], bool]] = [
    # a linear generator alone makes it one, and nobody can tell
    (LinearisedELBO, {}, False),
    (LinearisedELBO, {"kl_weight": 2.0}, False),
    # the Gauss rule is above the linearised entropy; below it is not below the entropy
    (LanczosELBO, {"rule": "gauss"}, False),
    (LanczosELBO, {"rule": "radau"}, False),
    (LanczosELBO, {"rule": "average"}, False),
    (SingularValueELBO, {}, False),
    (KernelDensityRatioELBO, {}, False),
    (KernelDensityRatioELBO, {"contrast": "prior"}, False),
    (AdversarialELBO, {}, False),
    (AdversarialELBO, {"contrast": "prior"}, False),
    (SemiImplicitELBO, {}, True),
    (SemiImplicitELBO, {"proposal": "gauss-newton"}, True),
    (SemiImplicitELBO, {"kl_weight": 1.5}, True),
    (SemiImplicitELBO, {"bound": "upper"}, False),
    (SemiImplicitELBO, {"kl_weight": 0.5}, False),
    (SemiImplicitELBO, {"prior_weight": 0.5}, False),
    (SemiImplicitELBO, {"likelihood": "per_datum"}, False),
    (AlphaEnergy, {"alpha": 0.0}, False),
    (AlphaEnergy, {"alpha": 0.5}, False),
    (PosteriorPredictiveLoss, {}, False),
    (PosteriorPredictiveLoss, {"form": "expected", "prior_weight": 1.0}, False),
]


@pytest.mark.parametrize(("kind", "options", "expected"), TABLE)
def test_property_settings_and_attributes_say_the_same(
    kind: type[ImplicitELBO], options: dict[str, Any], expected: bool
) -> None:
    objective = kind(2, **options)
    assert objective.is_bound is expected
    assert objective.settings["is_bound"] is expected
    attrs = run_attrs(lambda: None, objective, {})
    assert attrs["is_bound"] == ("true" if expected else "false")
    assert json.loads(str(attrs["objective_settings"]))["is_bound"] is expected


@pytest.mark.parametrize(("kind", "options", "expected"), TABLE)
def test_a_guide_that_cannot_fold_makes_a_bound_of_the_evidence_bound_alone(
    kind: type[ImplicitELBO], options: dict[str, Any], expected: bool
) -> None:
    """Weighted terms, other divergences than the ELBO's and other entropies stay what they are."""

    def model() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = kind(2, **options)
    linearised = issubclass(kind, LinearisedELBO) and options.get("alpha", 0.0) == 0.0
    if isinstance(objective, ImplicitELBO):
        assert objective.is_bound_for(guide) is (expected or linearised)
    attrs = run_attrs(guide, objective, {})
    assert json.loads(str(attrs["objective_settings"]))["is_bound"] is (expected or linearised)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((HyperNetworkGuide, HyperNetworkGuide), True),
        ((HyperNetworkGuide, AutoNormal), True),
        ((partial(HyperNetworkGuide, hidden_dims=(3,)), AutoNormal), False),
        ((HyperNetworkGuide, AutoStructured), True),
        ((HyperNetworkGuide, partial(AutoStructured, conditionals="delta")), False),
        ((HyperNetworkGuide, AutoDelta), False),
        ((HyperNetworkGuide, AutoLaplaceApproximation), False),
        ((), False),
    ],
)
def test_each_part_of_a_list_must_have_a_density(kinds: Any, expected: bool) -> None:
    def model() -> None:
        for name in ("a", "b"):
            pyro.sample(name, dist.Normal(torch.zeros(2), 1.0).to_event(1))

    guide = AutoGuideList(model)
    for name, kind in zip("ab", kinds, strict=False):
        guide.append(kind(poutine.block(model, expose=[name])))
    if kinds:
        guide()
    assert LinearisedELBO().is_bound_for(guide) is expected
    if expected:  # the same number as by the densities that Pyro asks for
        ours, pyros = (
            objective(500, vectorize_particles=True, max_plate_nesting=0).loss(model, guide)
            for objective in (LinearisedELBO, Trace_ELBO)
        )
        assert abs(ours - pyros) < 1.0


def test_every_objective_is_in_the_table() -> None:
    public = {
        value
        for value in vars(pyro_implicit).values()
        if inspect.isclass(value) and issubclass(value, ImplicitELBO)
    }
    assert public - {kind for kind, *_ in TABLE} <= {ImplicitELBO}


def test_an_objective_of_ones_own_claims_nothing_unless_it_says_so() -> None:
    class Own(ImplicitELBO):
        def estimate(self, site: Any) -> Tensor:
            return site.value.sum(-1)

    class Proven(Own):
        bounds_entropy = True

    assert not Own().is_bound
    assert Proven().is_bound and not Proven(kl_weight=0.5).is_bound


class Fold(torch.nn.Module):
    """Covers the line of its draws twice."""

    def forward(self, z: Tensor) -> Tensor:
        return (z.square() + 1e-2).sqrt()


def test_what_claims_to_be_a_bound_is_one_where_a_generator_folds() -> None:
    """The posterior is nearly the guide's own law, half of a normal."""

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("right", torch.where(w > -0.2, math.log(2), -8.0))

    above = 1 - dist.Normal(0.0, 1.0).cdf(torch.tensor(-0.2)).item()
    log_evidence = math.log(2 * above + math.exp(-8) * (1 - above))
    guide = HyperNetworkGuide(
        model,
        generator=lambda m: Fold(),
        noise_dim=1,
        scale=0.05,
        init_loc_fn=lambda site: torch.zeros(()),
    ).setup()
    draws = {"num_particles": 2000, "vectorize_particles": True}
    assert -LinearisedELBO(**draws).loss(model, guide) > log_evidence + 0.2
    assert -SemiImplicitELBO(**draws, num_inner=300).loss(model, guide) < log_evidence
