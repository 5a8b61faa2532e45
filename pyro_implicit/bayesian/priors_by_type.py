"""Priors for the parameters of some kinds of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pyro_implicit._checks import check_instance, shown
from pyro_implicit.bayesian.priors import check_rule
from pyro_implicit.exceptions import ArgumentError

__all__ = ["priors_by_type"]

_EXPECTED_PRIORS = (
    "a dict from classes of layers to priors, such as {nn.Linear: dist.Normal(0.0, 1.0)}"
)


def priors_by_type(module: nn.Module, priors: Mapping[type[nn.Module], Any]) -> dict[str, Any]:
    """
    Gives parameters a prior by the kind of the layer that they belong to.

    A layer takes the first entry whose class it is an instance of; those of no entry, and of an
    entry None, stay deterministic. ``{nn.Linear: prior}`` leaves the normalisation of a network as
    it is, ``{nn.BatchNorm2d: None, nn.Module: prior}`` does so for all but one kind. What several
    layers share goes by the first of them that has an entry.

    :param torch.nn.Module module: the network.
    :param priors: by class of layer, a distribution, a function ``(name, tensor)`` or None.
    :returns: the ``prior`` of ``BayesianModule(module, prior=...)``, by parameter.
    :raises ArgumentError: if a class or a prior is none, or no trainable parameter gets a prior.
    """
    check_instance("module", module, nn.Module, "a network, torch.nn.Module")
    check_instance("priors", priors, Mapping, _EXPECTED_PRIORS)
    for kind, prior in priors.items():
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ArgumentError(f"priors has the key {shown(kind)}; expected {_EXPECTED_PRIORS}.")
        if prior is not None:
            check_rule(f"priors[{kind.__name__}]", prior)
    names = {one: name for name, one in module.named_parameters() if one.requires_grad}
    rules: dict[Any, Any] = {}
    for layer in module.modules():
        of_layer = [priors[kind] for kind in priors if isinstance(layer, kind)]
        if of_layer:
            rules = dict.fromkeys(layer.parameters(recurse=False), of_layer[0]) | rules
    found = {n: rules[one] for one, n in names.items() if rules.get(one) is not None}
    if not found:
        kinds = sorted({type(layer).__name__ for layer in module.modules()})
        raise ArgumentError(
            f"priors selects no trainable parameter: the network has layers of {kinds}."
        )
    return found
