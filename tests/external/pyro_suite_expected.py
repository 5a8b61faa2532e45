"""What ``pyro_suite.py`` expects: refusals that are right, and numbers that are our own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """An error that is right in tests whose name matches."""

    test: re.Pattern[str]
    error: str
    phrase: str
    reason: str

    def allows(self, test: str, error: BaseException) -> bool:
        """Whether it is about this error of this test."""
        kind = type(error).__name__
        return bool(self.test.search(test)) and kind == self.error and self.phrase in str(error)


class Own(NamedTuple):
    """A number in a test's calls of one function, and what it is for ours."""

    test: re.Pattern[str]
    function: str
    key: str
    theirs: Any
    ours: Any
    reason: str

    def of(self, module: Any) -> tuple[Any, str, Callable[..., Any]]:
        """
        Where the function is, its name there, and one with our number in the place of theirs.

        It is a keyword argument (None if it is not given), or an entry of a dictionary. Without a
        key the function is another one of the module.
        """
        *path, name = self.function.split(".")
        home = functools.reduce(getattr, path, module)
        if not self.key:
            return home, name, getattr(home, self.ours)
        function = getattr(home, name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            changed = [self._in(value) for value in args]
            if kwargs.get(self.key) == self.theirs:
                kwargs[self.key] = self.ours
            return function(*changed, **kwargs)

        return home, name, call

    def _in(self, value: Any) -> Any:
        if isinstance(value, dict) and value.get(self.key, self) == self.theirs:
            return value | {self.key: self.ours}
        return value


def _refusal(test: str, error: str, phrase: str, reason: str) -> Refusal:
    return Refusal(re.compile(test), error, phrase, reason)


def _own(test: str, function: str, key: str, theirs: Any, ours: Any, reason: str) -> Own:
    return Own(re.compile(test), function, key, theirs, ours, reason)


def _unwarned(pattern: str, reason: str) -> Own:
    """A test of a warning of Pyro's, run as one that the model is fine."""
    return _own(pattern, "assert_warning", "", None, "assert_ok", reason)


#: tests of objectives and guides that have nothing of ours
OTHERS = [
    re.compile(text)
    for text in (
        "test_rws",
        "test_mmd",
        "tail_adaptive",
        "test_energy_distance",
        "test_collapse",
        "EnergyDistance",
        "TraceTMC_ELBO",
        "ReweightedWakeSleep",
        "AutoGaussianFunsor",
    )
]

#: tests of plates whose Bernoulli sites may be any others
PLATES = re.compile(
    r"^test_(dim_allocation(?!.*TraceEnum)|i?plate_|nested_plate|nonnested_plate|three_indep"
    r"|variable_clash)"
)

#: tests that look at numbers after training
NUMBERS = re.compile(r"^test_(exact|quantiles|median|posterior_predictive|deterministic)")

_DRAWN = "a guide site without gradients of its draws: sum it out in the model, or use Trace_ELBO"
_NO_DENSITY = "a guide that may fold has no density"

#: tests of ``test_valid_models.py`` whose guides draw a Bernoulli or Categorical site
_DISCRETE = (
    r"^test_(dim_allocation_ok|enum_discrete_\w+|enum_in_model_ok|enum_in_model_plate_ok"
    r"|enumerate_parallel_plate_ok|i?plate_i?plate_ok|iplate_iplate_swap_ok|iplate_ok"
    r"|iplate_in_guide_not_model_error|iplate_in_model_not_guide_ok|plate_ok"
    r"|nested_plate_plate_ok|nested_plate_plate_subsample_param_ok|nonnested_plate_plate_ok"
    r"|plate_enum_discrete_batch_ok|plate_no_size_ok|plate_param_size_mismatch_error"
    r"|plate_reuse_ok|plate_stack_and_plate_ok|plate_stack_ok|plate_subsample_param_ok"
    r"|plate_subsample_primitive_ok|three_indep_plate_at_different_depths_ok)(\[|$)"
)

REFUSED = [
    _refusal(r"^test_empty_model_error$", "SiteError", "no latent site", "refused by Pyro, too"),
    _refusal(
        r"^test_(scores|sphere_reparam_ok)\[.*(Residual|Matrix)Guide",
        "DensityError",
        "its density cannot be evaluated",
        _NO_DENSITY,
    ),
    _refusal(
        r"^test_(shapes|deterministic|posterior_predictive_svi_auto_diag_normal_guide)"
        r"\[(Residual|Matrix)Guide.*WeighedPredictive",
        "DensityError",
        "its density cannot be evaluated",
        _NO_DENSITY,
    ),
    _refusal(
        r"^test_discrete_parallel\[", "SiteError", "(Categorical) is not reparameterised", _DRAWN
    ),
    _refusal(_DISCRETE, "SiteError", "is not reparameterised", _DRAWN),
    _refusal(_DISCRETE, "SiteError", "to be enumerated", "a guide's own sites are not enumerated"),
    _refusal(
        r"^test_(set|not)_has_rsample_ok\[", "SiteError", "(Normal) is not reparameterised", _DRAWN
    ),
    _refusal(
        r"^test_factor_in_guide_ok\[False",
        "SiteError",
        "(Unit) is not reparameterised",
        "a factor of the guide that says of itself that its gradients are missing",
    ),
    _refusal(
        r"^test_plate_shape_broadcasting$",
        "SiteError",
        "no plate declares their dimension -1 (size 2)",
        "data in no plate count several times; Pyro allows it right of the plates",
    ),
    _refusal(
        r"^test_enum_sequential_in_model_error$",
        "SiteError",
        "is to be enumerated",
        "refused by Pyro, too, in other words",
    ),
    _refusal(
        r"^test_enum_in_model_multi_scale_error$",
        "SiteError",
        "have different scales",
        "refused by Pyro, too, in other words",
    ),
    _refusal(
        r"^test_enumerate_parallel_plate_ok\[",
        "ArgumentError",
        "strict_enumeration_warning=",
        "a word where True or False belongs",
    ),
    _refusal(
        r"^(NormalNormal|PoissonGamma|BernoulliBeta)Tests::test_(elbo|renyi)_nonreparameterized",
        "SiteError",
        "is not reparameterised",
        _DRAWN,
    ),
    _refusal(
        r"^test_exponential_gamma\[nonreparam-", "SiteError", "is not reparameterised", _DRAWN
    ),
    _refusal(
        r"^test_exponential_gamma\[rsvi-",
        "SiteError",
        "reparameterised in part only",
        "the score of what rejection leaves over would be missing from the gradient",
    ),
    _refusal(
        r"^test_model_guide_(shape|dim)_mismatch_error",
        "ShapeError",
        "and the value that it is given has",
        "refused by Pyro, too, in other words",
    ),
    _refusal(
        r"^test_shapes\[AutoRegressiveMessenger",
        "SiteError",
        "is not reparameterised",
        "it draws an LKJCholesky site by a shift of the prior, which has no gradient",
    ),
    _refusal(r"^test_sequential_plating_sum$", "SiteError", "is not reparameterised", _DRAWN),
    _refusal(
        r"^SafetyTests::test_extra_samples$",
        "SiteError",
        "which the model does not sample",
        "a guide's latent without a prior is refused where Pyro warns",
    ),
]

_NO_WARNING = "no warning that nothing is enumerated: the objective is the same with and without"
_RATE = "a tenth of the test's learning rate, which is for the two numbers a latent of a Gaussian"
_SPREAD = (
    "a tolerance for a loss that spreads by 0.1 at 100 draws, as its entropy is not at the draw"
)
_NEAR = "a tolerance for a loss of three latents that spreads by 0.006 at 100 draws there"
_FOLDS = "a tolerance for a loss that is no bound, as the generator may fold"

OWN = [
    _own(
        r"^test_exact_(batch|tree)\[(Default|Matrix)Guide", "ClippedAdam", "lr", 0.05, 0.005, _RATE
    ),
    _own(r"^test_exact(_batch|_tree)?\[ResidualGuide", "assert_close", "atol", 0.01, 0.4, _SPREAD),
    _own(r"^test_exact(_batch|_tree)?\[MatrixGuide", "assert_close", "atol", 0.01, 0.6, _FOLDS),
    _own(r"^test_exact_batch\[DefaultGuide", "assert_close", "atol", 0.01, 0.03, _NEAR),
    _own(
        r"^test_init_loc_fn\[",
        "assert_equal",
        "prec",
        None,
        0.1,
        "a tolerance for medians of 1000 draws",
    ),
    _own(
        r"^test_median\[.*auto_guide",
        "assert_equal",
        "prec",
        0.1,
        0.2,
        "a tolerance for medians at ten times a generator's rate",
    ),
    _own(r"^test_deterministic\[(Default|Residual)Guide", "optim.Adam", "lr", 0.1, 0.01, _RATE),
    _own(
        r"^test_posterior_predictive_svi_auto_diag_normal_guide\[DefaultGuide",
        "optim.Adam",
        "lr",
        0.1,
        0.01,
        _RATE,
    ),
    _unwarned(
        r"^test_(non)?empty_model_empty_guide_ok\[True-TraceEnum_ELBO",
        _NO_WARNING,
    ),
    _unwarned(
        r"^test_plate_enum_discrete_no_discrete_vars_warning\[True",
        _NO_WARNING,
    ),
    _unwarned(
        r"^test_mean_field_warn$",
        "no warning of the order of sites: no divergence is taken in closed form",
    ),
]
