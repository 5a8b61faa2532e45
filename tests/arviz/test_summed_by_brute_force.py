"""Scores of models with summed-out latents and masks, against sums over all assignments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor

from pyro_implicit import log_predictive_density, to_arviz
from pyro_implicit.exceptions import SiteError

LISTED = {"enumerate": "parallel"}
GROUPS, CELLS = 3, 2
SHARE = torch.tensor(0.3, dtype=torch.float64)
FOLLOWING = ["latent", "both", "inside"]  # the latent, so that the site is within the sum
MASKS = ["none", "rows", *FOLLOWING]


@pytest.fixture(autouse=True, scope="module")
def _in_double() -> Iterator[None]:
    """Numbers of Python and discrete values in float64, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@dataclass(frozen=True)
class Site:
    """An observed site: its plates, its mask, and whether it is of vectors, or follows latents."""

    inner: bool
    how: str
    is_vector: bool
    follows: bool = True


@dataclass(frozen=True)
class Case:
    """Observed sites of groups, of which each has a choice ``z``, and each cell a choice ``v``."""

    sites: tuple[Site, ...]
    num_values: int
    has_inner: bool
    seed: int

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Values and flags of the sites: the first group is shown, the second is not."""
        torch.manual_seed(self.seed)
        found = []
        for site in self.sites:
            shape = (GROUPS, CELLS if site.inner else 1)
            shown = torch.rand(shape) < 0.5
            shown[0], shown[1] = True, False
            event = (2,) if site.is_vector else ()
            found.append((torch.randn(*shape, *event, dtype=torch.float64), shown))
        return found


def _flags(site: Site, shown: Tensor, choice: Tensor) -> Tensor:
    if site.how == "none":
        return torch.ones_like(shown)
    if site.how in ("rows", "obs_mask"):
        return shown
    return choice == 1 if site.how == "latent" else (choice == 1) & shown


def _loc(site: Site, share: Tensor, z: Tensor, choice: Tensor) -> Tensor:
    loc = share  # without the dimensions of latents
    if site.follows:
        loc = share + 1.5 * z.double() - 0.7 * choice.double()
    return torch.stack([loc, -loc], -1) if site.is_vector else loc


def _observe(name: str, site: Site, fn: Any, y: Tensor, flags: Tensor) -> None:
    if site.how == "obs_mask":
        pyro.sample(name, fn, obs=y, obs_mask=flags)
    elif site.how == "inside":
        pyro.sample(name, fn.mask(flags), obs=y)
    else:
        with poutine.mask(mask=True if site.how == "none" else flags):
            pyro.sample(name, fn, obs=y)


def _normal(site: Site, loc: Tensor) -> Any:
    fn = dist.Normal(loc, 0.8)
    return fn.to_event(1) if site.is_vector else fn


def _weights(num: int, share: Tensor) -> Tensor:
    return torch.stack([share, *[(1 - share) / (num - 1)] * (num - 1)])


def _model(case: Case, data: list[tuple[Tensor, Tensor]]) -> None:
    share = pyro.sample("share", dist.Beta(SHARE.new_tensor(2.0), SHARE.new_tensor(3.0)))
    cells = pyro.plate("cells", CELLS, dim=-1)
    with pyro.plate("groups", GROUPS, dim=-2):
        z = pyro.sample("z", dist.Categorical(_weights(case.num_values, share)), infer=LISTED)
        if case.has_inner:
            with cells:
                v = pyro.sample("v", dist.Bernoulli(0.2 + 0.3 * (z == 1).double()), infer=LISTED)
        for index, (site, (y, shown)) in enumerate(zip(case.sites, data, strict=True)):
            choice = v if site.inner and case.has_inner else z
            fn = _normal(site, _loc(site, share, z, choice))
            flags = _flags(site, shown, choice)
            if site.inner:
                with cells:
                    _observe(f"y{index}", site, fn, y, flags)
            else:
                _observe(f"y{index}", site, fn, y, flags)


def _by_brute_force(case: Case, data: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Of each group the log of the sum over all assignments, and whether it has any data."""
    terms, told = [], torch.zeros(GROUPS, dtype=torch.bool)
    log_weights = _weights(case.num_values, SHARE).log()
    for k in range(case.num_values):
        z = torch.full((GROUPS, 1), float(k), dtype=torch.float64)
        for code in product([0.0, 1.0], repeat=CELLS if case.has_inner else 0):
            v = torch.tensor(code, dtype=torch.float64).expand(GROUPS, -1)
            total = log_weights[k].repeat(GROUPS)
            if case.has_inner:
                p = 0.2 + 0.3 * float(k == 1)
                total = total + torch.where(v == 1, p, 1 - p).log().sum(-1)
            for site, (y, shown) in zip(case.sites, data, strict=True):
                choice = v if site.inner and case.has_inner else z
                flags = _flags(site, shown, choice).expand(shown.shape)
                log_p = _normal(site, _loc(site, SHARE, z, choice)).log_prob(y)
                total = total + (log_p * flags).sum(-1)
                told = told | flags.any(-1)
            terms.append(total)
    return torch.where(told, torch.logsumexp(torch.stack(terms), 0), 0.0), told


def _guide(*_: Any) -> None:
    pyro.sample("share", dist.Delta(SHARE))


def _exported(model: Any, *args: Any) -> np.ndarray[Any, Any]:
    groups = ["posterior", "log_likelihood"]
    found = to_arviz(model, _guide, *args, num_samples=1, groups=groups).log_likelihood
    (variable,) = found.data_vars.values()
    values: np.ndarray[Any, Any] = variable.values[0, 0].ravel()
    return values


def _scored(model: Any, *args: Any) -> Tensor:
    return log_predictive_density(model, _guide, *args, num_samples=1, seed=0)


def _sites(masks: list[str]) -> st.SearchStrategy[Site]:
    sites = st.builds(Site, st.booleans(), st.sampled_from(masks), st.booleans(), st.booleans())
    return sites.map(lambda site: site if site.how in FOLLOWING else replace(site, follows=True))


def _cases(last: list[str], others: list[str]) -> st.SearchStrategy[Case]:
    sites = st.tuples(st.lists(_sites(others), max_size=2), _sites(last))
    joined = sites.map(lambda both: (*both[0], both[1]))
    return st.builds(Case, joined, st.integers(2, 3), st.booleans(), st.integers(0, 99))


@pytest.mark.long
@given(case=_cases([*MASKS, "obs_mask"], MASKS))  # what follows hidden data is not exported
def test_log_likelihoods_are_sums_over_all_assignments(case: Case) -> None:
    data = case.data()
    expected, _ = _by_brute_force(case, data)
    np.testing.assert_allclose(_exported(_model, case, data), expected, rtol=1e-10)


@pytest.mark.long
@given(case=_cases([*MASKS, "obs_mask"], [*MASKS, "obs_mask"]))
def test_scores_are_sums_over_all_assignments(case: Case) -> None:
    data = case.data()
    expected, told = _by_brute_force(case, data)
    torch.testing.assert_close(_scored(_model, case, data), expected[told])


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    "how, follows", [*product([*MASKS, "obs_mask"], [True]), *product(FOLLOWING, [False])]
)
def test_each_mask_alone(how: str, inner: bool, follows: bool) -> None:
    """The smallest of these models, one after the other; of the third group one cell is shown."""
    case = Case((Site(inner, how, False, follows),), 2, False, 5)
    data = case.data()
    expected, told = _by_brute_force(case, data)
    np.testing.assert_allclose(_exported(_model, case, data), expected, rtol=1e-10)
    torch.testing.assert_close(_scored(_model, case, data), expected[told])


Y = torch.tensor([-1.2, 0.3, 1.4, 2.0, -0.7], dtype=torch.float64)
SHOWN = torch.tensor([True, False, True, True, False])


def _mixture(zero: Tensor, one: Tensor) -> Tensor:
    return torch.logaddexp(torch.log1p(-SHARE) + zero, SHARE.log() + one)


def _log_p(loc: float, y: Tensor, scale: float = 0.5) -> Tensor:
    log_p: Tensor = dist.Normal(SHARE.new_tensor(loc), SHARE.new_tensor(scale)).log_prob(y)
    return log_p


def test_two_masks_that_follow_the_latent_choose_between_densities() -> None:
    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(SHARE.new_tensor(2.0), SHARE.new_tensor(3.0)))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            for k in (0, 1):
                with poutine.mask(mask=z == k):
                    pyro.sample(f"y{k}", dist.Normal(2.0 * k, 0.5), obs=y)

    expected = _mixture(_log_p(0.0, Y), _log_p(2.0, Y))
    np.testing.assert_allclose(_exported(model, Y), expected, rtol=1e-12)
    torch.testing.assert_close(_scored(model, Y), expected)


def test_hidden_values_that_are_listed_are_summed_out() -> None:
    y = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)

    @pyro.infer.config_enumerate
    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(SHARE.new_tensor(2.0), SHARE.new_tensor(3.0)))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share))
            pyro.sample("y", dist.Bernoulli(0.2 + 0.5 * z), obs=y, obs_mask=SHOWN)

    zero, one = (dist.Bernoulli(SHARE.new_tensor(p)).log_prob(y) for p in (0.2, 0.7))
    expected = torch.where(SHOWN, _mixture(zero, one), 0.0)
    np.testing.assert_allclose(_exported(model, y), expected, rtol=1e-10)
    torch.testing.assert_close(_scored(model, y), expected[SHOWN])


def _followed(y: Tensor, shown: Tensor, how: str) -> None:
    """Something beside the mixture looks at its data, hidden ones among them; or does not."""
    share = pyro.sample("share", dist.Beta(SHARE.new_tensor(2.0), SHARE.new_tensor(3.0)))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
        whole = pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y, obs_mask=shown)
        if how == "beside":
            pyro.sample("x", dist.Normal(z, 1.0), obs=y)
        elif how == "site":
            pyro.sample("w", dist.Normal(whole, 1.0), obs=y)
        elif how == "mask":
            with poutine.mask(mask=whole > 0):
                pyro.sample("w", dist.Normal(2 * z, 1.0), obs=y)
        elif how == "factor":
            pyro.factor("w", -whole)
        elif how == "branch":
            if (whole > 0).any():
                pyro.sample("w", dist.Normal(2 * z, 1.0), obs=y)


@pytest.mark.parametrize("how", ["site", "mask", "factor", "branch"])
def test_hidden_values_that_others_depend_on_are_refused(how: str) -> None:
    with pytest.raises(SiteError, match=r"\['y_unobserved'\].* obs_mask hides is integrated out"):
        _scored(_followed, Y, SHOWN, how)
    # without hidden ones there is nothing to refuse
    assert _scored(_followed, Y, torch.ones_like(SHOWN), how).isfinite().all()


def test_a_factor_on_hidden_values_is_not_exported() -> None:
    with pytest.raises(SiteError, match=r"\['y_unobserved'\].* obs_mask hides is integrated out"):
        _exported(_followed, Y, SHOWN, "factor")


def test_hidden_values_are_no_random_numbers_of_the_score() -> None:
    zero, one = (torch.where(SHOWN, _log_p(loc, Y), 0.0) for loc in (0.0, 2.0))
    expected = _mixture(zero + _log_p(0.0, Y, 1.0), one + _log_p(1.0, Y, 1.0))
    for seed in (0, 1):
        found = log_predictive_density(
            _followed, _guide, Y, SHOWN, "beside", num_samples=2, seed=seed
        )
        torch.testing.assert_close(found, expected)


def test_the_score_refuses_a_latent_in_the_sum_that_the_guide_does_not_draw() -> None:
    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(SHARE.new_tensor(2.0), SHARE.new_tensor(3.0)))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)
            pyro.sample("u", dist.Normal(2 * z, 0.5))

    with pytest.raises(SiteError, match=r"of y depends on \['u'\].*add them to the guide$"):
        _scored(model, Y)


def test_a_factor_beside_masked_rows_counts_nothing() -> None:
    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(SHARE.new_tensor(2.0), SHARE.new_tensor(3.0)))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            pyro.factor("weight", 0.5 * z)
            pyro.deterministic("twice", 2 * z)
            with poutine.mask(mask=SHOWN):
                pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)

    expected = torch.where(SHOWN, _mixture(_log_p(0.0, Y), 0.5 + _log_p(2.0, Y)), 0.0)
    np.testing.assert_allclose(_exported(model, Y), expected, rtol=1e-12)
    torch.testing.assert_close(_scored(model, Y), expected[SHOWN])


@pytest.mark.parametrize("is_vector", [False, True])
def test_sums_of_a_model_in_single_precision_are_taken_in_double(is_vector: bool) -> None:
    pyro.set_rng_seed(1)
    y = (2.0 + torch.randn(20_000)).float()

    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(y.new_tensor(2.0), y.new_tensor(3.0)))
        z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
        if is_vector:
            loc = (2.0 * z)[..., None].expand(*z.shape, len(y))
            pyro.sample("y", dist.Normal(loc, 0.5).to_event(1), obs=y)
        else:
            with pyro.plate("data", len(y)):
                pyro.sample("y", dist.Normal(2.0 * z, 0.5), obs=y)

    def guide(y: Tensor) -> None:
        pyro.sample("share", dist.Delta(SHARE.float()))

    groups = ["posterior", "log_likelihood"]
    found = to_arviz(model, guide, y, num_samples=1, groups=groups).log_likelihood["y"].values
    # of densities that each are rounded to float32, as those of a model without a sum
    parts = [dist.Normal(loc, 0.5).log_prob(y).double().sum() for loc in (0.0, 2.0)]
    np.testing.assert_allclose(found.squeeze(), _mixture(*parts), rtol=1e-9, atol=2e-7)


@pytest.mark.filterwarnings("error")
def test_a_latent_that_nothing_follows_is_no_factor() -> None:
    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(2.0, 3.0))
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            pyro.sample("y", dist.Normal(share, 0.5), obs=y)

    torch.testing.assert_close(_scored(model, Y), _log_p(0.3, Y))
