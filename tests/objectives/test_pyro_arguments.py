"""The arguments that every objective of Pyro takes: taken, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pyro.infer import ELBO, Trace_ELBO

import pyro_implicit.objectives as objectives
from pyro_implicit.exceptions import ArgumentError

KINDS = [
    kind
    for kind in vars(objectives).values()
    if isinstance(kind, type) and issubclass(kind, ELBO) and not kind.__abstractmethods__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_objective(kind: Any) -> None:
    objective = kind(
        num_particles=2,
        strict_enumeration_warning=False,
        ignore_jit_warnings=True,
        retain_graph=True,
        jit_options=None,
        tail_adaptive_beta=Trace_ELBO().tail_adaptive_beta,
    )
    assert not objective.strict_enumeration_warning and objective.ignore_jit_warnings
    with pytest.raises(
        ArgumentError, match=f"tail_adaptive_beta=-0.5.*{kind.__name__} has no tail"
    ):
        kind(num_particles=2, tail_adaptive_beta=-0.5)
    with pytest.raises(ArgumentError, match=f"jit_options=.*{kind.__name__} is not traced"):
        kind(num_particles=2, jit_options={"check_trace": True})
    for name in ("strict_enumeration_warning", "ignore_jit_warnings"):
        with pytest.raises(ArgumentError, match=f"{name}=1; expected True or False"):
            kind(num_particles=2, **{name: 1})
