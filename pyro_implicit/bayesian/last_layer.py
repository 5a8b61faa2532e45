"""A prior for the last layer of a network alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from pyro_implicit._checks import check_instance
from pyro_implicit.bayesian.priors import check_rule
from pyro_implicit.exceptions import ArgumentError

__all__ = ["last_layer"]


def last_layer(module: nn.Module, prior: Any) -> dict[str, Any]:
    r"""
    Gives the last layer with trainable parameters a prior, and leaves the rest deterministic.

    The last one is that which was registered last: for a network whose ``forward`` goes another way
    write its name, ``prior={r"head\..*": ...}``. What is before it is trained along with the guide
    unless its parameters do not require gradients.

    :param torch.nn.Module module: the network.
    :param prior: a distribution, or a function ``(name, tensor)``.
    :returns: the ``prior`` of ``BayesianModule(module, prior=...)``, by parameter.
    :raises ArgumentError: if no parameter is trainable, or ``prior`` is of another kind.
    """
    check_instance("module", module, nn.Module, "a network, torch.nn.Module")
    check_rule("prior", prior)
    names = {one: name for name, one in module.named_parameters() if one.requires_grad}
    if not names:
        raise ArgumentError(
            "module has no trainable parameter, and so no last layer to be random; call "
            "requires_grad_(True) on it."
        )
    layers = (
        [one for one in m.parameters(recurse=False) if one in names] for m in module.modules()
    )
    *_, last = filter(None, layers)  # a tied parameter belongs to each layer that has it
    return {names[one]: prior for one in last}
