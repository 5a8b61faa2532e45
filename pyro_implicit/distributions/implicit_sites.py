"""Sites that are drawn from implicit distributions, and how an objective finds their noise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_implicit._checks import (
    check_callable,
    check_flag,
    check_instance,
    check_names,
    check_text,
)
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.noise_alone import refuse_batch_statistics
from pyro_implicit.ops.logdet import is_zero

__all__ = ["KeptLinearisations", "draw_site", "keep_linearisation", "sample_implicit"]


def sample_implicit(
    name: str,
    fn: ImplicitDistribution,
    *,
    latents: tuple[str, ...] = (),
    auxiliary: bool = False,
    pack: Callable[[dict[str, Tensor], int], Tensor] | None = None,
    shared_over: pyro.plate | None = None,
) -> Tensor:
    """
    Draws an implicit site: the noise at the auxiliary site ``f"{name}_noise"``, then the latent.

    Plates expand both. Objectives of this package need sites made so.

    :param str name: name of the latent site.
    :param ImplicitDistribution fn: its distribution, with no noise fixed.
    :param latents: names of the model's sites made from this one; by default ``(name,)``.
    :param bool auxiliary: whether ``name`` itself is no site of the model.
    :param pack: a function that maps ``n`` values of each of ``latents`` (and ``n``) to the
        coordinates of this site, shape ``(n, m)``; with it objectives can draw from the prior.
        Needed only if ``name`` is not the one latent itself.
    :param shared_over: a plate that the latent is in and its noise is not: its rows share one
        noise. They are then dependent, so that objectives with an entropy refuse the site.
    :returns: the draw, shape ``(*batch_shape, m)``.
    :raises ArgumentError: if ``fn`` has its noise fixed, or for arguments of other types.
    """
    if not isinstance(fn, ImplicitDistribution) or fn.noise is not None:
        raise ArgumentError(
            f"site {name!r}: sample_implicit expects an ImplicitDistribution without fixed noise, "
            f"found {fn!r}. Write sample_implicit({name!r}, ImplicitDistribution(generator))."
        )
    check_text("name", name, "a name for the site")
    latents = check_names("latents", latents)
    check_flag("auxiliary", auxiliary)
    if pack is not None:
        check_callable("pack", pack, "a function from values and their number to coordinates")
    if shared_over is not None:
        check_instance("shared_over", shared_over, pyro.plate, "a plate, or None")
    return draw_site(name, fn, latents, auxiliary, pack, shared_over)


def draw_site(
    name: str,
    fn: ImplicitDistribution,
    latents: tuple[str, ...] = (),
    auxiliary: bool = False,
    pack: Callable[[dict[str, Tensor], int], Tensor] | None = None,
    shared_over: pyro.plate | None = None,
) -> Tensor:
    """:func:`sample_implicit` for arguments that need no check, such as those of our guides."""
    noise_name = f"{name}_noise"
    noise_infer: Any = {"is_auxiliary": True, "is_implicit_noise": True}
    noise = pyro.sample(noise_name, fn.base_dist, infer=noise_infer)
    infer: Any = {"implicit_noise": noise_name, "implicit_latents": latents or (name,)}
    infer["implicit_pack"] = pack
    infer["implicit_shared"] = shared_over is not None
    if auxiliary:
        infer["is_auxiliary"] = True
    given = fn.given(noise)
    given._shares_noise = shared_over is not None
    with nullcontext() if shared_over is None else shared_over:
        return pyro.sample(name, given, infer=infer)


def keep_linearisation(fn: ImplicitDistribution, every: bool = False) -> None:
    """
    Runs the generator once for the draw at a fixed noise and for its derivative, which is kept.

    Without effect under autocast, where draws are made in another precision than derivatives, and
    for generators with forward hooks, which a derivative does not call.

    :param ImplicitDistribution fn: a distribution.
    :param bool every: for every generator, or only where the pass tells the determinant as well.
    :raises LayerError: if the generator normalises by the draws that are made together.
    """
    if not (every or (fn.generator.draws_with_log_det and is_zero(fn.scale))):
        return
    if fn.noise is None or torch.is_autocast_enabled(fn.noise.device.type):
        return
    refuse_batch_statistics(fn.generator)
    if not any(m._forward_hooks or m._forward_pre_hooks for m in fn.generator.modules()):
        fn._linearisation = fn.linearisation()


class KeptLinearisations(Messenger):
    """
    Draws implicit sites by their linearisations, see :func:`keep_linearisation`.

    An objective that asks for one then does not run the generator again.

    :param bool every: for every generator, or only where the pass tells the determinant as well.
    """

    def __init__(self, every: bool = True) -> None:
        super().__init__()
        self._every = every

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if not isinstance(fn, ImplicitDistribution) or msg["done"] or msg["value"] is not None:
            return
        keep_linearisation(fn, self._every)
