"""Models whose likelihood has parameters that are made of the data it is to simulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._few import few_of
from pyro_implicit.diagnostics._data_places import Call, DataPlaces
from pyro_implicit.handlers.pointwise import run_model

__all__ = ["warning_of_own_data"]


def warning_of_own_data(
    model: Callable[..., Any], places: DataPlaces, values: Mapping[str, Tensor]
) -> str:
    """
    Tells of data whose distribution changes when the simulated ones are passed to the model.

    An autoregression on its argument (a mean of ``y[:-1]``) simulates each step from the step
    before in the caller's data, and a guide that gets the simulated series fits another model. The
    ranks of an exact posterior are far from uniform then.

    :param model: a Pyro model.
    :param DataPlaces places: its arguments, and where in them the data are.
    :param dict values: one draw of all latents and data.
    :returns: a text, or an empty one; also for models that draw numbers of their own.
    """
    names = [*places.views, *places.names]
    latents = {name: value for name, value in values.items() if name not in names}

    def densities(call: Call, fixed: Mapping[str, Tensor], drawn: list[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}

        def visit(site: Any) -> None:
            if site["name"] in names:
                found[site["name"]] = site["fn"].log_prob(values[site["name"]])

        run_model(model, *call, visit, values=fixed, unobserve=drawn)
        return found

    caller, filled = (places.args, places.kwargs), places.fill(values)
    simulated = densities(caller, values, names)
    again, passed = densities(caller, values, names), densities(filled, latents, [])
    if any(not torch.equal(one, again[name]) for name, one in simulated.items()):
        return ""
    others = [name for name, one in simulated.items() if not _is_near(one, passed.get(name))]
    if not others:
        return ""
    return (
        f"the distribution of {few_of(list(map(repr, others)))} is made of the data themselves, as "
        "the mean of an autoregression on its argument is (y[:-1]): what is simulated follows the "
        "data that were passed, and a guide or a fit that is given the simulated ones is of "
        "another model, so that also exact posteriors have ranks far from uniform. Write the "
        "series step by step, prev = pyro.sample(f'y_{t}', dist.Normal(a * prev, 1.0), obs=...), "
        "or pass what the model conditions on as an argument of its own (lagged=y[:-1].clone())"
    )


def _is_near(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)
