"""Posterior functions of an implicit process as what ArviZ works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_instance, check_tensor, check_text
from pyro_implicit._seeded import seeded
from pyro_implicit.arviz.attrs import run_attrs
from pyro_implicit.arviz.collect import to_numpy
from pyro_implicit.arviz.compatibility import make_inference_data
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.processes.implicit_process import ImplicitProcess

__all__ = ["process_to_arviz"]


def process_to_arviz(
    process: ImplicitProcess,
    value: Tensor,
    inputs: Tensor | None = None,
    *,
    num_samples: int = 1000,
    coords: Sequence[Any] | None = None,
    function_name: str = "f",
    value_name: str = "y",
    seed: int | None = None,
) -> Any:
    r"""
    Functions and observations at some inputs, before and after the data, for ArviZ.

    **Groups.** ``posterior`` and ``posterior_predictive``: draws of the function and of new
    observations from :meth:`~pyro_implicit.ImplicitProcess.condition`, a Gaussian. ``prior`` and
    ``prior_predictive``: draws of the process itself, which need not look Gaussian.
    ``observed_data``: ``value``. ``constant_data``: both sets of inputs.

    The functions have the dimension ``input``, after one dimension ``f_dim_{i}`` for each batch
    dimension (output) of the process, and ``value`` the dimension ``row``. With one feature the
    labels are the inputs themselves, so that ``data["posterior"]["f"].sel(input=0.5,
    method="nearest")`` is a function's value there. Draws are stored as one chain.

    A model that trains coefficients of frozen functions needs none of this: write
    ``f = pyro.deterministic("f", process.weighted(a))`` in it and call
    :func:`~pyro_implicit.to_arviz`.

    Example::

        process = ImplicitProcess(NeuralSampler(1), x, 200, noise_scale=0.1, seed=0)
        data = process_to_arviz(process, y, torch.linspace(-3, 3, 100)[:, None])
        data["posterior"]["f"].quantile([0.05, 0.95], dim=("chain", "draw"))

    :param ImplicitProcess process: at the inputs of the data, with noise or ``psi``.
    :param torch.Tensor value: ``y``, shape ``(*batch, N)``.
    :param torch.Tensor inputs: where to draw, ``(K, ...)``; by default where the data are.
    :param int num_samples: draws, of each group.
    :param coords: ``K`` labels of the inputs.
    :param str function_name: of the function.
    :param str value_name: of observations.
    :param int seed: of all draws; None: the global random numbers are drawn from.
    :returns: ``arviz.InferenceData`` with ArviZ 0.x, ``xarray.DataTree`` with ArviZ >= 1; draws
        have shape ``(1, num_samples, *batch, K)``.
    :raises ArgumentError: for a bad ``num_samples``, equal names, a wrong number of labels, or a
        process without a posterior (see :meth:`~pyro_implicit.ImplicitProcess.condition`), or with
        a noise that the new inputs have none of.
    :raises ShapeError: if ``value`` is not of the shape of the process.
    """
    num_samples = check_count("num_samples", num_samples)
    check_instance("process", process, ImplicitProcess, "an ImplicitProcess")
    check_tensor("value", value, "the observations, a tensor (*batch, N)")
    if inputs is not None:
        check_tensor("inputs", inputs, "new inputs, a tensor (K, ...)", dim=1)
    check_text("function_name", function_name)
    check_text("value_name", value_name)
    if function_name == value_name:
        raise ArgumentError(f"function_name and value_name are both {value_name!r}.")
    _check_shapes(process, value, inputs)
    own = process.inputs
    new = own if inputs is None else inputs
    labels = _given_labels(coords, new)
    with torch.no_grad(), seeded(seed):
        draws = _draws(process, value, new, num_samples, function_name, value_name)
    batch = [f"{function_name}_dim_{i}" for i in range(len(process.batch_shape))]
    features = [f"feature_{i}" for i in range(own.dim() - 1)]
    dims = {
        group: {name: [*batch, "input"] for name in variables} for group, variables in draws.items()
    }
    data = {
        "observed_data": {value_name: to_numpy(value)},
        "constant_data": {"inputs": to_numpy(own), "new_inputs": to_numpy(new)},
    }
    dims["observed_data"] = {value_name: [*batch, "row"]}
    dims["constant_data"] = {"inputs": ["row", *features], "new_inputs": ["input", *features]}
    return make_inference_data(
        {**draws, **data}, {"input": labels, "row": _labels(own)}, dims, _attrs(process)
    )


def _check_shapes(process: ImplicitProcess, value: Tensor, inputs: Tensor | None) -> None:
    shape, own = process.batch_shape + process.event_shape, process.inputs
    if value.shape != shape:
        raise ShapeError(f"value of shape {tuple(value.shape)}; expected {tuple(shape)}.")
    if inputs is not None and inputs.shape[1:] != own.shape[1:]:
        raise ShapeError(
            f"inputs of shape {tuple(inputs.shape)}; expected the process's own sizes after the "
            f"first: (K, *{tuple(own.shape[1:])})."
        )


def _given_labels(coords: Any, inputs: Tensor) -> Any:
    """A label for each input, the user's if there are some."""
    if isinstance(coords, Tensor) and coords.dim():
        coords = coords.tolist()
    if coords is not None:
        check_instance("coords", coords, (Sequence, np.ndarray), "labels of the inputs, in a list")
    labels = _labels(inputs) if coords is None else list(coords)
    if len(labels) != len(inputs):
        raise ArgumentError(f"{len(labels)} coords; expected one for each of {len(inputs)} inputs.")
    return labels


def _draws(
    process: ImplicitProcess, value: Tensor, new: Tensor, count: int, function: str, observed: str
) -> dict[str, dict[str, np.ndarray]]:
    """Group to variable to an array ``(1, count, *batch, K)``."""
    if not process.has_noise_at(new):
        raise ArgumentError(
            f"noise_scale has one value for each of {len(process.inputs)} rows, and there are "
            f"{len(new)} new inputs; expected a noise that is the same for all, or no inputs."
        )
    f = process.condition(value, new).sample((count,)).to(process.functions.dtype)
    prior = ImplicitProcess(process.prior, new).expand(process.batch_shape).rsample((count,))
    noise = torch.as_tensor(process.noise_scale).to(f)
    found = {
        "posterior": {function: f},
        "posterior_predictive": {observed: f + noise * torch.randn_like(f)},
        "prior": {function: prior},
        "prior_predictive": {observed: prior + noise * torch.randn_like(prior)},
    }
    return {g: {n: to_numpy(v)[None] for n, v in vs.items()} for g, vs in found.items()}


def _labels(inputs: Tensor) -> np.ndarray:
    """The inputs, if they are numbers and all different, else 0, 1, ..."""
    if inputs[0].numel() == 1:
        flat = to_numpy(inputs).reshape(-1)
        if len(np.unique(flat)) == len(flat):
            return flat
    return np.arange(len(inputs))


def _attrs(process: ImplicitProcess) -> dict[str, str | int | float]:
    attrs = run_attrs(process, None, {"num_functions": str(process.num_functions)})
    attrs["guide"] = f"posterior of {type(process).__name__}"
    return attrs | {"objective": "condition"}
