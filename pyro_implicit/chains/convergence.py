"""Whether chains agree with each other, by ArviZ."""

# Shape legend: C chains, T draws of each.
from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.arviz.compatibility import import_arviz
from pyro_implicit.exceptions import StateError

__all__ = ["MAX_R_HAT", "agreement", "effective_sizes", "r_hats", "warn_of"]

MAX_R_HAT = 1.1  # chains with a larger one are said to disagree
_MIN_DRAWS_PER_CHAIN = 4  # of which ArviZ computes an r-hat


def r_hats(draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """
    The rank-normalised split r-hat of each entry.

    :param dict draws: by name, shape ``(C, T, *shape)``.
    :returns: by name, shape ``(*shape,)``, in float64.
    :raises StateError: for fewer than 4 draws, or a single chain.
    """
    if any(len(values) < 2 for values in draws.values()):
        raise StateError(
            "there is one chain, and an r-hat compares several: refine(model, 4, ...); parts of "
            "chains.split() are one chain each, compare them before."
        )
    return _summary("rhat", draws)


def effective_sizes(draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """
    The bulk effective sample size of each entry.

    :param dict draws: by name, shape ``(C, T, *shape)``.
    :returns: by name, shape ``(*shape,)``, in float64.
    :raises StateError: for fewer than 4 draws.
    """
    return _summary("ess", draws)


def agreement(draws: Mapping[str, Tensor]) -> str:
    """
    Says in a line how far chains agree.

    :param dict draws: of latents by name, shape ``(C, T, *shape)``.
    :returns: the largest r-hat and the smallest effective size; nothing of a single chain, or of
        too few draws.
    """
    if any(len(one) < 2 or one.shape[1] < _MIN_DRAWS_PER_CHAIN for one in draws.values()):
        return ""
    found = {name: _without_nan(one) for name, one in r_hats(draws).items() if one.numel()}
    worst = max(found, key=lambda name: float(found[name].max()))
    over = torch.cat([one.reshape(-1) for one in found.values()]) > MAX_R_HAT
    sizes = torch.cat([one.reshape(-1) for one in effective_sizes(draws).values()])
    share = f" and above {MAX_R_HAT} for {float(over.double().mean()):.0%} of the entries"
    return (
        f"r-hat of latents up to {float(found[worst].max()):.3g} ({worst!r})"
        f"{share if bool(over.any()) else ''}, effective sample size at least "
        f"{float(sizes.nan_to_num(math.inf).min()):.0f}"
    )


def _without_nan(values: Tensor) -> Tensor:
    """Those of entries that are constant count as 0; of chains that never move it is infinite."""
    return values.nan_to_num(0.0, posinf=math.inf)


def _summary(function: str, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
    import xarray

    found: dict[str, Tensor] = {}
    for name, values in draws.items():
        count = values.shape[1]
        if count < _MIN_DRAWS_PER_CHAIN:
            raise StateError(
                f"each chain has {count} draws; {function} needs {_MIN_DRAWS_PER_CHAIN}. Let "
                "them go on: chains.run(1000)."
            )
        flat = values.detach().double().cpu().reshape(*values.shape[:2], -1).numpy()
        dims = ("chain", "draw", "entry")
        data = xarray.Dataset({"x": (dims, np.asarray(flat))})
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of entries that are constant
            summary: Any = getattr(import_arviz(), function)(data)
        entries = torch.from_numpy(np.array(summary["x"].values, dtype=float))
        found[name] = entries.reshape(values.shape[2:])
    return found


def warn_of(what: str, found: Mapping[str, Tensor], remark: str, limit: float = MAX_R_HAT) -> bool:
    """
    Warns where chains disagree.

    :param str what: what was compared.
    :param dict found: r-hats by name.
    :param str remark: what it means and what to do.
    :param float limit: the r-hat from which on they do.
    :returns: whether they do.
    """
    over = {n: v for n, v in found.items() if bool((v[~v.isnan()] > limit).any())}
    if over:
        worst = max(over, key=lambda name: float(_without_nan(over[name]).max()))
        values = over[worst]
        share = float((values > MAX_R_HAT).double().mean())
        warn(
            f"the r-hat of {what} is up to {float(_without_nan(values).max()):.3g} (site "
            f"{worst!r}; above {MAX_R_HAT} for {share:.0%} of its entries): the chains have not "
            f"mixed. {remark}"
        )
    return bool(over)
