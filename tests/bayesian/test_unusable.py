"""Networks whose parameters cannot be drawn are refused where they are wrapped."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
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
    "spectral_norm": (lambda: old(nn.utils.spectral_norm), "parametrizations"),
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
