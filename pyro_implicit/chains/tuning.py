"""Whether a warm-up was long enough: what chains that did not get there show."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.chains.kernel import Statistics
from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_draws", "warn_of_steps"]

_MAX_SHARE_OF_REFUSED_DRAWS = 0.5
_MIN_ACCEPTANCE = 0.4
_MAX_ENERGY_ERROR = 0.1  # squared, per latent and step: twenty times the largest default
_MAX_ENERGY_ERROR_IN_TARGETS = 10.0  # and so many times what was asked for


def check_draws(kept: int, num_warmup: int, num_steps: int, thin: int) -> None:
    """
    Refuses chains that have gone beyond their warm-up and kept no draw.

    :param int kept: draws of each chain that are kept.
    :param int num_warmup: gradients per chain for tuning.
    :param int num_steps: gradients per chain so far.
    :param int thin: steps from one draw to the next.
    :raises ArgumentError: if there is no draw.
    """
    if kept == 0:
        raise ArgumentError(
            f"{num_steps} gradients per chain left no draw: the warm-up takes {num_warmup} of "
            f"them, and a draw is kept after {thin} further step{'s' if thin > 1 else ''} of the "
            "kernel, each of up to max_leapfrog gradients in HMC. Write a larger num_steps, "
            "thousands as a rule, or num_steps=0 for the starts alone."
        )


def warn_of_steps(stats: Statistics, settings: dict[str, Any], num_latents: int) -> None:
    """
    Warns of a step size that does not suit the posterior.

    :param dict stats: statistics by name, shape ``(C, T)``.
    :param dict settings: of the kernel, with the length of the warm-up.
    :param int num_latents: number of unconstrained latents.
    """
    asked = settings.get("energy_error") or 0.0
    found = _signs(stats, num_latents, max(_MAX_ENERGY_ERROR, _MAX_ENERGY_ERROR_IN_TARGETS * asked))
    if not found:
        return
    size = f"{float(stats['step_size'].double().mean()):.3g}"
    if settings.get("step_size") is not None:
        advice = "Give a smaller one, or none: it is then tuned in the warm-up."
    else:
        advice = (
            f"A warm-up of {settings['num_warmup']} gradients per chain was too short to tune it, "
            "or the posterior is too narrow in places. Give more num_steps (half of them are for "
            "the warm-up), begin at a fitted guide, or write scales non-centred."
        )
    warn(
        f"the step size {size} of the chains does not suit the posterior: {found}. Their draws are "
        f"not to be relied on. {advice}"
    )


def _signs(stats: Statistics, num_latents: int, most: float) -> str:
    refused = stats["diverging"]
    signs = []
    if float(refused.double().mean()) > _MAX_SHARE_OF_REFUSED_DRAWS:
        signs.append(f"{int(refused.sum())} of {refused.numel()} draws follow a refused step")
    accepted: Tensor | None = stats.get("acceptance_rate")
    if accepted is not None and float(accepted.double().mean()) < _MIN_ACCEPTANCE:
        signs.append(f"proposals are accepted with probability {float(accepted.mean()):.2g}")
    error = float(stats["energy_error"].double().square().mean()) / num_latents
    if accepted is None and error > most:
        signs.append(f"the squared energy error per latent is {error:.2g}")
    return ", ".join(signs)
