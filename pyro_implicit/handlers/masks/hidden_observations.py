"""What ``obs_mask`` hides of observations, where discrete latents are summed out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger

from pyro_implicit.handlers.looks.asked_values import AskedValues

__all__ = ["HIDDEN_SUFFIX", "SHOWN_SUFFIX", "HiddenObservations"]

#: Pyro makes two sites of ``pyro.sample(name, ..., obs_mask=)``, whose names end in these.
HIDDEN_SUFFIX = "_unobserved"
SHOWN_SUFFIX = "_observed"


class HiddenObservations(Messenger):
    r"""
    Integrates the values that ``obs_mask`` hides out of a model, where nothing depends on them.

    Pyro draws them from their prior. :math:`\int p(y \mid z)\,dy = 1` whatever the latents, so that
    their density has no place in a sum over :math:`z`; but for what else the model makes of
    :math:`y`, which :class:`~pyro_implicit.handlers.looks.asked_values.AskedValues` follows.

    It is to be around the model, within a trace and the context :attr:`asked`.

    :param trace: of one run of the model.
    :param given: names of sites whose values are given, which are left alone.
    """

    def __init__(self, trace: Trace, given: Collection[str]) -> None:
        super().__init__()
        #: follows the values, while it is entered
        self.asked = AskedValues(())
        #: names of the sites of hidden values, and whether any of these is in use
        self.names = {name: _is_in_use(trace, name) for name in _hidden(trace) if name not in given}

    def _pyro_post_sample(self, msg: Any) -> None:
        if self.names.get(msg["name"]):
            self.asked.follow([msg["value"]])

    def remove(self, trace: Trace) -> None:
        """
        Takes the sites out, unless another density or a branch of the program depends on them.

        :param trace: of the run that was followed, with log-densities of all sites; changed.
        """
        others = [
            node
            for name, node in trace.nodes.items()
            if node["type"] == "sample"
            and name not in self.names
            and not (node["infer"] or {}).get("_deterministic")
        ]
        if self.asked.place or any(self.asked.follows(node["log_prob"]) for node in others):
            return
        for name in self.names:
            trace.remove_node(name)


def _hidden(trace: Trace) -> list[str]:
    """Names of sites of hidden values that are drawn, not listed."""
    found = []
    for name, node in trace.nodes.items():
        if node["type"] == "sample" and name.endswith(HIDDEN_SUFFIX) and not node["is_observed"]:
            whole = name.removesuffix(HIDDEN_SUFFIX)
            shown, both = trace.nodes.get(whole + SHOWN_SUFFIX), trace.nodes.get(whole)
            is_pair = shown is not None and shown["is_observed"] and both is not None
            if is_pair and (node["infer"] or {}).get("_enumerate_dim") is None:
                found.append(name)
    return found


def _is_in_use(trace: Trace, name: str) -> bool:
    """Whether any value is hidden: the site's mask has one, or one around both lets none see."""
    shown = trace.nodes[name.removesuffix(HIDDEN_SUFFIX) + SHOWN_SUFFIX]["mask"]
    return not bool(torch.as_tensor(True if shown is None else shown).all())
