"""Networks whose parameters cannot be drawn are refused where they are wrapped."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn

from pyro_implicit import BayesianModule
from pyro_implicit.exceptions import ArgumentError

PRIOR = dist.Normal(0.0, 1.0)


def old(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of what is deprecated
        return norm(nn.Linear(2, 2))


def script() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(2, 2))


def compiled() -> Any:
    validates = torch.distributions.Distribution._validate_args
    try:
        return torch.compile(nn.Linear(2, 2))  # which turns the checks of distributions off
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)


NETWORKS: dict[str, tuple[Callable[[], Any], str]] = {
    "script": (script, "the network is a ScriptModule"),
    "compiled": (compiled, r"compiled.*net\._orig_mod"),
    "parallel": (lambda: nn.DataParallel(nn.Linear(2, 2)), "DataParallel.*net.module"),
    "inner": (
        lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 2))),
        "the part '0' of the network is a DataParallel",
    ),
    "weight_norm": (lambda: old(nn.utils.weight_norm), "old torch.nn.utils.weight_norm"),
    "spectral_norm": (lambda: old(nn.utils.spectral_norm), "matrix_norm"),
    "new spectral_norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))),
        r"'0.parametrizations.weight.original' is latent.*matrix_norm\(w, 2\)",
    ),
    "max_norm": (lambda: nn.Embedding(3, 2, max_norm=1.0), "embedding with max_norm"),
    "sparse": (
        lambda: nn.Sequential(nn.EmbeddingBag(3, 2, sparse=True)),
        "the part '0' of the network is an embedding with sparse=True",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_refused_and_what_to_wrap_is_said(name: str) -> None:
    make, told = NETWORKS[name]
    with pytest.raises(ArgumentError, match=told):
        BayesianModule(make(), PRIOR)


def test_new_parametrizations_and_embeddings_without_a_prior_are_not() -> None:
    new = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert BayesianModule(new, PRIOR)(torch.ones(1, 2)).shape == (1, 2)
    net = nn.Sequential(nn.Embedding(3, 2, max_norm=1.0), nn.Linear(2, 1))
    BayesianModule(net, {r"1\..*": PRIOR})
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)), nn.Linear(2, 1))
    BayesianModule(net, {r"1\..*": PRIOR})


class Spectral(nn.Module):
    """What the error says to write."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w / torch.linalg.matrix_norm(w, 2)


@pytest.mark.parametrize("mode", [True, False])
def test_a_spectral_norm_that_keeps_nothing_is_of_each_draw(mode: bool) -> None:
    layer = nn.Linear(3, 2, bias=False)
    nn.utils.parametrize.register_parametrization(layer, "weight", Spectral())
    net = BayesianModule(layer, PRIOR)
    net.train(mode)
    for _ in range(2):
        trace = poutine.trace(net).get_trace(torch.eye(3))
        w = trace.nodes["parametrizations.weight.original"]["value"]
        expected = (w / torch.linalg.svdvals(w)[0]).mT
        torch.testing.assert_close(trace.nodes["_RETURN"]["value"], expected)
