"""Which prior belongs to which parameter tensor of a module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyro.poutine as poutine
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_implicit.bayesian.prior_shapes import fit_to_parameter, map_tensors
from pyro_implicit.exceptions import ArgumentError

__all__ = ["ParameterPriors", "Prior", "check_rule"]

PriorFunction: TypeAlias = Callable[[str, Tensor], TorchDistributionMixin | None]
Rule: TypeAlias = TorchDistributionMixin | PriorFunction
Prior: TypeAlias = Rule | Mapping[str, Rule | None]


class ParameterPriors:
    """
    The priors of the stochastic parameters among ``parameters``, by name.

    A given distribution is expanded to its parameter's shape once for each dtype and device that
    the parameter takes; a function is asked anew at every draw.

    :param prior: a distribution, a function ``(name, tensor) -> distribution or None``, or a
        mapping from names or regular expressions to either (or ``None``).
    :param dict parameters: the trainable parameters by name.
    :param frozen: names of the parameters that do not require gradients, for the error messages.
    :raises ArgumentError: for a prior of another kind, a pattern without a parameter, or a prior
        that selects no parameter at all.
    :raises ShapeError: for a distribution that does not fit its parameter.
    """

    def __init__(
        self, prior: Prior, parameters: Mapping[str, Tensor], frozen: Iterable[str] = ()
    ) -> None:
        frozen = tuple(frozen)
        rules = _match(prior, parameters, frozen)
        self._rules = {
            name: rule for name, rule in rules.items() if _selects(rule, name, parameters[name])
        }
        if not self._rules:
            raise ArgumentError(
                "the prior selects no parameter: nothing would be random. "
                f"Trainable parameters: {_listing(parameters)}; frozen ones: {_listing(frozen)}. "
                "For maximum likelihood call the module itself in the model, after "
                "pyro.module('net', module)."
            )
        self._fitted: dict[str, tuple[torch.dtype, torch.device, TorchDistributionMixin]] = {}
        for name, rule in self._rules.items():
            if isinstance(rule, TorchDistributionMixin):
                _refuse_learnable(name, rule)
                self._constant(name, rule, parameters[name])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stochastic parameters."""
        return tuple(self._rules)

    def fitted(self, values: Mapping[str, Tensor]) -> dict[str, TorchDistributionMixin]:
        """
        Gives each stochastic parameter its prior, of the parameter's shape.

        :param dict values: the wrapped module's value of each: shape, dtype and device count.
        :returns: the priors by name.
        """
        shared = _SharedSites()
        priors = {}
        for name, rule in self._rules.items():
            if isinstance(rule, TorchDistributionMixin):
                priors[name] = self._constant(name, rule, values[name])
            else:
                with shared:
                    prior = rule(name, values[name])
                priors[name] = fit_to_parameter(name, _checked(prior, name), values[name])
        return priors

    def _constant(
        self, name: str, prior: TorchDistributionMixin, value: Tensor
    ) -> TorchDistributionMixin:
        """A distribution that was given, expanded; kept until dtype or device change."""
        dtype, device, fitted = self._fitted.get(name, (None, None, None))
        if fitted is None or dtype != value.dtype or device != value.device:
            with torch.inference_mode(False):  # else what is kept could never enter autograd
                fitted = fit_to_parameter(name, prior, value, constant=True)
            self._fitted[name] = (value.dtype, value.device, fitted)
        return fitted


class _SharedSites(Messenger):
    """Lets a function use one hyperparameter for many tensors: a site met again keeps its value."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self._values:
            msg["value"] = self._values[msg["name"]]
            msg["done"] = True
            msg["stop"] = True  # no other handler hears of it a second time

    def _pyro_post_sample(self, msg: Any) -> None:
        self._values[msg["name"]] = msg["value"]


def _match(
    prior: Prior, parameters: Mapping[str, Tensor], frozen: tuple[str, ...]
) -> dict[str, Rule]:
    """The rule of each parameter: an exact name wins, then the first pattern that matches."""
    if not isinstance(prior, Mapping):
        check_rule("prior", prior)
        return dict.fromkeys(parameters, prior)
    rules: dict[str, Rule | None] = {}
    for key in sorted(prior, key=lambda key: key not in parameters):
        if prior[key] is not None:
            check_rule(f"prior[{key!r}]", prior[key])
        found = [key] if key in parameters else [n for n in parameters if _fullmatch(key, n)]
        if not found:
            raise ArgumentError(
                f"prior[{key!r}] matches no trainable parameter. Trainable parameters: "
                f"{_listing(parameters)}; frozen ones (requires_grad=False), which stay as they "
                f"are: {_listing(frozen)}."
            )
        for name in found:
            rules.setdefault(name, prior[key])
    return {name: rule for name in parameters if (rule := rules.get(name)) is not None}


def _fullmatch(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except (re.error, TypeError) as error:
        raise ArgumentError(
            f"prior[{pattern!r}]: a key is a parameter's name, or a regular expression for the "
            f"whole name; this is neither ({error})."
        ) from error


def check_rule(where: str, rule: object) -> None:
    """
    Checks that something gives parameters a prior.

    :param str where: what it is, for the message.
    :param rule: a distribution of Pyro, or a function.
    :raises ArgumentError: for anything else.
    """
    if isinstance(rule, TorchDistributionMixin):
        _refuse_discrete(where, rule)
        return
    if isinstance(rule, nn.Module):
        raise ArgumentError(
            f"{where} is a module, {type(rule).__name__}; expected a distribution or a function. A "
            "GuidePrior is laid around the model, which calls the network: prior(model)."
        )
    if callable(rule) and not isinstance(rule, type):
        _check_arguments(where, rule)
        return
    module = "torch.distributions" if isinstance(rule, Distribution) else "no distribution"
    raise ArgumentError(
        f"{where} is {rule!r} ({module}); expected an instance of a distribution in "
        "pyro.distributions, a function (name, tensor) -> distribution or None, or a dict from "
        "names or regular expressions to either or None."
    )


def _refuse_discrete(where: str, prior: TorchDistributionMixin) -> None:
    try:
        is_discrete = prior.support.is_discrete
    except Exception:  # of a distribution that does not say, each in its own way
        return
    if is_discrete:
        raise ArgumentError(
            f"{where} is {prior!r}, which draws whole numbers; expected a continuous distribution: "
            "a network's parameters are learned by their gradients."
        )


def _check_arguments(where: str, rule: Callable[..., Any]) -> None:
    try:
        arguments = inspect.signature(rule)
    except ValueError:  # of what is no Python
        return
    try:
        arguments.bind("", None)
    except TypeError as error:
        raise ArgumentError(
            f"{where} is a function with the arguments {arguments}; expected one of a parameter's "
            "name and its tensor, such as lambda name, tensor: dist.Normal(0.0, 1.0)."
        ) from error


def _checked(prior: object, name: str) -> TorchDistributionMixin:
    if isinstance(prior, TorchDistributionMixin):
        _refuse_discrete(f"the prior of parameter '{name}'", prior)
        return prior
    raise ArgumentError(
        f"the prior function returned {prior!r} for parameter '{name}'; expected a distribution of "
        "pyro.distributions. (None, for a parameter that stays deterministic, must be what it "
        "returns whenever it is called, also outside of the model; or say so in a dict.)"
    )


def _selects(rule: Rule, name: str, value: Tensor) -> bool:
    """
    Whether a rule makes the parameter random; a function is asked once, unseen by Pyro.

    One that can only work within the model (it reads a hyperparameter drawn there) counts as a yes.
    """
    if isinstance(rule, TorchDistributionMixin):
        return True
    try:
        with poutine.block(), torch.random.fork_rng(devices=[]), torch.no_grad():
            return rule(name, value) is not None
    except Exception:
        return True


def _refuse_learnable(name: str, prior: TorchDistributionMixin) -> None:
    def check(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            raise ArgumentError(
                f"the prior of parameter '{name}' contains a tensor that requires gradients. Write "
                "it as a function, which is called anew at each step: "
                "lambda name, tensor: dist.Normal(0.0, pyro.param('scale', torch.tensor(1.0)))."
            )
        return tensor

    map_tensors(prior, check)


def _listing(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
