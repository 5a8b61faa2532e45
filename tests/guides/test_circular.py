"""Laws of angles call the whole line their support and are improper on it: refused by name."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch.distributions import biject_to

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.supports.served_supports import check_support, is_real

EYE = torch.eye(2)
FLAT = torch.zeros(2)
NORMAL = dist.Normal(FLAT, 1.0).to_event(1)
TORUS = dist.VonMises(FLAT, 1.0).to_event(1)
#: of the classes whose parameters cannot be made up from their constraints
EXAMPLES: dict[str, Any] = {
    "AVFMultivariateNormal": lambda: dist.AVFMultivariateNormal(FLAT, EYE, torch.rand(2, 1, 2)),
    "GammaGaussianHMM": lambda: dist.GammaGaussianHMM(
        dist.Gamma(2.0, 2.0),
        dist.MultivariateNormal(FLAT, EYE),
        EYE,
        dist.MultivariateNormal(FLAT, EYE),
        EYE,
        dist.MultivariateNormal(FLAT, EYE),
        duration=2,
    ),
    "GaussianHMM": lambda: dist.GaussianHMM(NORMAL, EYE, NORMAL, EYE, NORMAL, duration=2),
    "MixtureOfDiagNormals": lambda: dist.MixtureOfDiagNormals(EYE, EYE + 1.0, FLAT),
    "MixtureOfDiagNormalsSharedCovariance": lambda: dist.MixtureOfDiagNormalsSharedCovariance(
        EYE, FLAT + 1.0, FLAT
    ),
    "MultivariateNormal": lambda: dist.MultivariateNormal(FLAT, EYE),
    "MultivariateStudentT": lambda: dist.MultivariateStudentT(torch.tensor(2.0), FLAT, EYE),
    "NanMaskedMultivariateNormal": lambda: dist.NanMaskedMultivariateNormal(FLAT, EYE),
    "OMTMultivariateNormal": lambda: dist.OMTMultivariateNormal(FLAT, EYE),
    "SineSkewed": lambda: dist.SineSkewed(TORUS, torch.tensor([0.1, 0.2])),
}
#: points and factors, which have no density; and one that tells no shape of its values
NO_DENSITY = {"Empirical", "GroupedNormalNormal", "Unit"}


def _classes() -> dict[str, type]:
    """By inspection, so that one of a later torch or Pyro is looked at without being listed."""
    found = {}
    for module in (torch.distributions, dist):
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and issubclass(kind, torch.distributions.Distribution):
                support = getattr(kind, "support", None)
                if isinstance(support, constraints.Constraint) and is_real(support):
                    found[name] = kind
    return {name: kind for name, kind in found.items() if name not in NO_DENSITY}


def _example(name: str, kind: type) -> Any:
    if name in EXAMPLES:
        return EXAMPLES[name]()
    wanted = inspect.signature(kind).parameters
    sizes = {"cov_factor": (2, 1), "correlation": ()}
    return kind(
        **{
            argument: biject_to(constraint)(
                torch.zeros(sizes.get(argument, (2,) * constraint.event_dim))
            )
            for argument, constraint in kind.arg_constraints.items()  # type: ignore[attr-defined]
            if argument in wanted
        }
    )


@pytest.mark.parametrize("name", sorted(_classes()))
def test_what_calls_the_line_its_support_decays_or_is_refused(name: str) -> None:
    fn = _example(name, _classes()[name])
    far = 1e18 * torch.ones(fn.event_shape)
    # a unimodal density f on the line has |x| f(x) < 1
    decays = all((fn.log_prob(x) + math.log(1e18) < 0.0).all() for x in (far, -far))
    if decays:
        check_support("z", fn)
    else:
        with pytest.raises(SiteError, match=rf"'z' has a {name} distribution.*improper.*z_xy"):
            check_support("z", fn)


def test_the_three_laws_are_among_them() -> None:
    assert {"VonMises", "SineBivariateVonMises", "SineSkewed"} <= _classes().keys()


VON_MISES = dist.VonMises(torch.zeros(3), 2.0)
WRAPPED = {
    "expanded": lambda: dist.VonMises(0.0, 2.0).expand((3,)).to_event(1),
    "ExpandedDistribution": lambda: dist.torch_distribution.ExpandedDistribution(
        dist.VonMises(0.0, 2.0), (3,)
    ).to_event(1),
    "masked": lambda: VON_MISES.mask(torch.tensor([True, False, True])).to_event(1),
    "twice an event": lambda: dist.VonMises(torch.zeros(2, 3), 2.0).to_event(1).to_event(1),
    "mixture": lambda: dist.MixtureSameFamily(dist.Categorical(torch.ones(3)), VON_MISES),
    "masked mixture": lambda: dist.MaskedMixture(
        torch.tensor(True), dist.Normal(0.0, 1.0), dist.VonMises(0.0, 2.0)
    ),
    "shifted": lambda: dist.TransformedDistribution(
        dist.VonMises(0.0, 2.0), [dist.transforms.AffineTransform(1.0, 2.0)]
    ),
    "torch's": lambda: torch.distributions.VonMises(0.0, 2.0),
    "of a torus": lambda: TORUS,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_laws_are_refused(name: str) -> None:
    with pytest.raises(SiteError, match="'phi' has a VonMises distribution"):
        check_support("phi", WRAPPED[name]())


@pytest.mark.parametrize(
    "fn", [dist.ProjectedNormal(torch.ones(2)), dist.VonMises3D(torch.tensor([1.0, 0.0, 0.0]))]
)
def test_laws_of_directions_are_refused_by_their_support(fn: Any) -> None:
    with pytest.raises(SiteError, match="support 'sphere'.*divide it by its norm"):
        check_support("z", fn)


def test_a_law_of_one_turn_is_served() -> None:
    class OneTurn(dist.VonMises):
        support = constraints.interval(-math.pi, math.pi)

    check_support("phi", OneTurn(0.0, 2.0))


def test_guides_refuse_them_as_latents_only() -> None:
    def model(x: torch.Tensor) -> None:
        phi = pyro.sample("phi", dist.VonMises(0.0, 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.VonMises(phi, 5.0), obs=x[:, 0])

    def local(x: torch.Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("phi", dist.VonMises(0.0, 2.0))

    x = torch.zeros(4, 1)
    for guide in (HyperNetworkGuide(model), ConditionalHyperNetworkGuide(local)):
        with pytest.raises(SiteError, match="'phi' has a VonMises distribution"):
            guide(x)


@pytest.mark.parametrize(
    "law", [dist.VonMises(1.0, 2.0), dist.SineBivariateVonMises(1.0, -1.0, 2.0, 2.0, 1.0)]
)
def test_what_the_message_says_is_the_same_law(law: Any) -> None:
    with pytest.raises(SiteError) as refused:
        check_support("phi", law)
    found = re.search(r"angle: (xy = .*\)\)); (phi = .*\)); and", str(refused.value))
    factor = re.search(r"(pyro\.factor\(.*\)) with prior", str(refused.value))
    assert found is not None and factor is not None
    code = "\n".join([found[1], found[2], factor[1]])

    def model() -> None:
        exec(code, {"math": math, "pyro": pyro, "dist": dist, "torch": torch, "prior": law})

    pyro.set_rng_seed(0)
    with pyro.plate("draws", 200_000, dim=-1):
        trace = poutine.trace(model).get_trace()
    phi = trace.nodes["phi"]["value"]
    log_weights = trace.nodes["phi_prior"]["fn"].log_factor
    weights = log_weights.softmax(0)
    assert float(log_weights.exp().mean()) == pytest.approx(1.0, abs=0.03)  # evidence as it was
    turn = torch.linspace(-math.pi, math.pi, 401)[1:]
    grid = torch.cartesian_prod(turn, turn) if law.event_shape else turn
    exact = law.log_prob(grid).softmax(0)
    for statistic in (torch.cos, torch.sin):
        found_mean = torch.einsum("n,n...->...", weights, statistic(phi))
        mean = torch.einsum("n,n...->...", exact, statistic(grid))
        torch.testing.assert_close(found_mean, mean, atol=0.02, rtol=0.0)
    guide = HyperNetworkGuide(model, hidden_dims=(8,))
    assert math.isfinite(LinearisedELBO(2).loss(model, guide))


def test_what_obs_mask_hides_of_counts_has_another_way() -> None:
    with pytest.raises(
        SiteError, match=r"'y_unobserved' is what obs_mask hides.*sample\('y', \.\."
    ):
        check_support("y_unobserved", dist.Poisson(2.0))
