"""What is written beside the numbers, so that a file tells how it was made."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pyro
import torch
from pyro.infer import ELBO

__all__ = ["run_attrs"]


def run_attrs(
    guide: Callable[..., Any],
    objective: ELBO | None,
    notes: dict[str, str],
    seed: int | None = None,
) -> dict[str, str | int | float]:
    """
    Describes a run in plain values that netCDF can store.

    :param callable guide: the guide.
    :param ELBO objective: the objective it was fitted with, if known.
    :param dict notes: more entries.
    :param int seed: that all was drawn from; None: torch's own.
    :returns: the attributes.
    """
    attrs: dict[str, str | int | float] = {
        "inference_library": "pyro_implicit",
        "inference_library_version": _version(),
        "pyro_version": str(pyro.__version__),
        "torch_version": str(torch.__version__),
        "guide": getattr(guide, "__name__", type(guide).__name__),
        # up to 64 bits unsigned: not every netCDF reader
        "seed": str(torch.initial_seed() if seed is None else seed),
    }
    return {**attrs, **_objective_attrs(objective, guide), **notes}


def _objective_attrs(objective: ELBO | None, guide: Any) -> dict[str, str | int | float]:
    """Name, weights and all settings of the objective, and whether it bounds the evidence."""
    if objective is None:
        return {"objective": "not given"}
    settings = getattr(objective, "settings", None)
    if not isinstance(settings, dict):
        settings = {"num_particles": objective.num_particles}
    judge = getattr(objective, "is_bound_for", None)
    if "is_bound" in settings and judge is not None:
        settings = settings | {"is_bound": judge(guide)}  # with this guide
    attrs: dict[str, str | int | float] = {
        "objective": type(objective).__name__,
        "objective_settings": json.dumps(settings, default=str, sort_keys=True),
    }
    for name in ("kl_weight", "prior_weight"):
        if name in settings:
            attrs[name] = float(settings[name])
    if "is_bound" in settings:  # netCDF has no flags
        attrs["is_bound"] = "true" if settings["is_bound"] else "false"
    return attrs


def _version() -> str:
    """Version of this package as installed; a bare checkout has none."""
    try:
        return metadata.version("pyro-implicit")
    except metadata.PackageNotFoundError:
        return "not installed"
