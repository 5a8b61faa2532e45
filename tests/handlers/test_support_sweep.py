"""Every constraint of torch and Pyro: served exactly, or refused by name with what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.distributions.constraints as torch_constraints
from pyro import poutine
from pyro.distributions import constraints as pyro_constraints
from pyro.infer.reparam import ProjectedNormalReparam
from torch import Tensor
from torch.distributions.constraints import Constraint

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.supports.served_supports import plain_support

NUMBERS = {
    "greater_than": (1.0,),
    "greater_than_eq": (torch.tensor(1.0),),
    "half_open_interval": (-1.0, 2.0),
    "integer_greater_than": (0,),
    "integer_interval": (0, 3),
    "integer_less_than": (0,),
    "interval": (torch.tensor(-1.0), 2.0),
    "less_than": (1.0,),
    "multinomial": (3,),
}
positive, real = torch_constraints.positive, torch_constraints.real
OTHERS: dict[str, Callable[[], Constraint]] = {
    "independent": lambda: torch_constraints.independent(positive, 1),
    "cat": lambda: torch_constraints.cat([real, positive], -1, [1, 2]),
    "stack": lambda: torch_constraints.stack([positive, real, positive], -1),
    "MixtureSameFamilyConstraint": lambda: torch_constraints.MixtureSameFamilyConstraint(positive),
    "dependent_property": lambda: torch_constraints.dependent,
    "Constraint": lambda: Constraint(),
}
OTHERS["_IndependentConstraint"], OTHERS["_Cat"], OTHERS["_Stack"] = (
    OTHERS["independent"],
    OTHERS["cat"],
    OTHERS["stack"],
)
OTHERS["_DependentProperty"] = OTHERS["dependent_property"]


def _found() -> dict[str, Constraint]:
    """By inspection, so that one of a later torch or Pyro is swept without being listed."""
    found = {}
    for module in (torch_constraints, pyro_constraints):
        for name, value in vars(module).items():
            key = f"{module.__name__.partition('.')[0]}.{name}"
            if isinstance(value, Constraint):
                found[key] = value
            elif inspect.isclass(value) and issubclass(value, Constraint):
                snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().lstrip("_")
                found[key] = OTHERS[name]() if name in OTHERS else value(*NUMBERS.get(snake, ()))
    found["independent of a mixture"] = torch_constraints.independent(
        torch_constraints.MixtureSameFamilyConstraint(positive), 1
    )
    found["cat of another length"] = torch_constraints.cat(
        [torch_constraints.simplex, real], -1, [2, 1]
    )
    return found


FOUND = _found()
#: coordinates that a density on a surface is taken in, as torch and Pyro take it
FREE: dict[str, Callable[[Tensor], Tensor]] = {
    "_Simplex": lambda y: y[:-1],
    "_CorrCholesky": lambda y: y[torch.tril_indices(3, 3, -1).unbind()],
    "_CorrMatrix": lambda y: y[torch.tril_indices(3, 3, -1).unbind()],
}


def _model(support: Constraint) -> Callable[[], Any]:
    matrix = type(support).__name__ in ("_CorrCholesky", "_CorrMatrix")
    try:
        matrix = matrix or support.event_dim == 2
    except NotImplementedError:
        pass
    shape = (3, 3) if matrix else (3,)
    return lambda: pyro.sample("here", dist.ImproperUniform(support, (), shape))


@pytest.mark.parametrize("name", FOUND)
def test_a_support_is_served_exactly_or_refused_by_name(name: str) -> None:
    support, model = FOUND[name], _model(FOUND[name])
    guide = HyperNetworkGuide(model)
    try:
        guide.setup()
    except SiteError as error:
        assert re.search(r"latent site 'here' (is discrete|has the support '\w+')", str(error))
        assert re.search(r"poutine.block|pyro\.sample|pyro\.deterministic", str(error))
        return
    (site,) = guide.sites
    u = torch.linspace(-1.1, 1.3, site.numel, dtype=torch.float64).reshape(site.unconstrained_shape)
    value, log_density = site.constrain(u)
    assert plain_support(support).check(value).all()
    torch.testing.assert_close(site.invert(value), u.reshape(-1))
    free = FREE.get(type(support).__name__, lambda y: y.reshape(-1))
    jacobian = torch.autograd.functional.jacobian(
        lambda flat: free(site.constrain(flat.reshape(u.shape))[0]), u.reshape(-1)
    )
    torch.testing.assert_close(log_density.sum(), -torch.linalg.slogdet(jacobian).logabsdet)


SERVED = (
    "pyro.corr_cholesky",
    "pyro.corr_matrix",
    "torch.simplex",
    "pyro.positive_ordered_vector",
    "torch.stack",
    "torch.cat",
    "independent of a mixture",
)
REFUSED = (
    "pyro.sphere",
    "torch.positive_definite",
    "torch.lower_cholesky",
    "torch.symmetric",
    "torch.dependent",
    "cat of another length",
)


@pytest.mark.parametrize("name", [*SERVED, *REFUSED])
def test_the_sweep_reaches_both_sides(name: str) -> None:
    assert _refused(name) == (name in REFUSED)


def _refused(name: str) -> bool:
    try:
        HyperNetworkGuide(_model(FOUND[name])).setup()
    except SiteError:
        return True
    return False


# ---- what the messages say to write


def _trains(model: Callable[[], Any]) -> HyperNetworkGuide:
    guide = HyperNetworkGuide(model).setup()
    assert LinearisedELBO().loss(model, guide) == pytest.approx(0, abs=1e3)
    return guide


def test_the_way_out_of_a_sphere() -> None:
    def model() -> None:
        pyro.sample("d", dist.ProjectedNormal(torch.tensor([1.0, 0.0, 2.0])))

    with pytest.raises(SiteError, match=r"'d' has the support 'sphere'.*ProjectedNormalReparam"):
        HyperNetworkGuide(model).setup()
    _trains(poutine.reparam(model, {"d": ProjectedNormalReparam()}))


@pytest.mark.parametrize("kind", ["positive_definite", "lower_cholesky"])
def test_the_way_out_of_a_covariance(kind: str) -> None:
    support = getattr(pyro_constraints, kind)
    with pytest.raises(SiteError) as error:
        HyperNetworkGuide(_model(support)).setup()
    code = str(error.value).splitlines()[0].partition("): ")[2].removesuffix(".")
    assert code.count("pyro.sample") == 2
    values: dict[str, Any] = {"pyro": pyro, "dist": dist, "torch": torch}

    def model() -> None:
        exec(code, values)  # what the message says

    _trains(model)
    assert values["here"].shape == (3, 3)
    assert support.check(values["here"]).all()


@pytest.mark.filterwarnings("ignore:Singular sample detected")
def test_a_wishart_is_named() -> None:
    def model() -> None:
        pyro.sample("s", dist.Wishart(torch.tensor(4.0), torch.eye(2)))

    with pytest.raises(SiteError, match=r"'s' has the support 'positive_definite'.*LKJCholesky\(2"):
        HyperNetworkGuide(model).setup()


class _Odd(Constraint):
    event_dim = 0


def test_a_constraint_of_ones_own() -> None:
    with pytest.raises(SiteError, match="support 'odd'.*biject_to.register"):
        HyperNetworkGuide(_model(_Odd())).setup()
