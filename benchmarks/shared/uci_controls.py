"""Controls on UCI that ask nothing of a guide: dropout that stays on, and the path of SGD."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from torch import Tensor, nn
from tqdm.auto import trange

from benchmarks.shared.replay import cosine, train
from benchmarks.shared.swag import PathMoments
from benchmarks.shared.uci import HIDDEN_UNITS, Model, Split, build_model, small_weights
from benchmarks.shared.uci_fits import Settings

__all__ = ["CONTROLS", "dropout_draws", "kept_units", "path_draws"]

CONTROLS: dict[str, Any] = {
    "path_batch_size": 50,
    "path_begin": 0.2,
    "path_places": 40,
    "path_rank": 20,
    "path_momentum": 0.9,
}
_LAST = "2.weight"  # of the layer after the hidden units
Draws = dict[str, Tensor]


class DropoutTanh(nn.Module):
    """
    Hidden units, of which some are left out at random.

    :param float rate: how many.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.tanh(), self.rate, self.training)


def dropout_draws(
    split: Split, settings: Settings, num_draws: int, bar: str | None, batch_size: int
) -> Draws:
    """
    A mode of the network with dropout, and its weights with the units that each draw leaves out.

    :param Settings settings: steps, rate, and the dropout rate.
    :param int num_draws: S.
    :returns: {site: (S, *shape)}.
    """
    assert settings.dropout is not None
    features = split.x.shape[1]
    model = build_model(features, len(split.x), activation=DropoutTanh(settings.dropout))
    guide = AutoDelta(model, init_loc_fn=small_weights)
    train(
        model,
        guide,
        Trace_ELBO(),
        split.data,
        num_steps=settings.num_steps,
        rate=settings.rate,
        schedule=cosine,
        bar=bar,
        batch_size=batch_size,
    )
    mode = {name: value.detach() for name, value in guide.median().items()}
    draws = {name: value.expand(num_draws, *value.shape) for name, value in mode.items()}
    return draws | {_LAST: mode[_LAST] * kept_units(num_draws, HIDDEN_UNITS, settings.dropout)}


def kept_units(num_draws: int, units: int, rate: float) -> Tensor:
    """
    What the weights after hidden units are multiplied by where some of these are left out.

    :param int num_draws: S.
    :param int units: how many there are.
    :param float rate: how many are left out.
    :returns: shape ``(S, 1, units)``, 0 or what makes up for those.
    """
    return F.dropout(torch.ones(num_draws, 1, units), rate)


def path_draws(
    model: Model,
    split: Split,
    start: Draws,
    settings: Settings,
    num_draws: int,
    bar: str | None,
    positive: str = "sigma",
) -> Draws:
    """
    SWAG's: a Gaussian by the path of stochastic gradients from a mode, at a constant rate.

    :param start: the mode, {site: shape}.
    :param Settings settings: steps and rate.
    :param int num_draws: S.
    :param str positive: the site that moves by its logarithm.
    :returns: {site: (S, *shape)}.
    """
    path = _path(model, split, start, settings, bar, positive)
    moments = PathMoments(CONTROLS["path_rank"]).see_all(path)
    drawn = torch.stack([moments.draw() for _ in range(num_draws)])
    return _by_site(drawn, start, positive)


def _path(
    model: Model,
    split: Split,
    start: Draws,
    settings: Settings,
    bar: str | None,
    positive: str,
) -> Iterator[Tensor]:
    """Places of the path, all latents in one vector."""
    unbounded = start | {positive: start[positive].log()}
    flat = torch.cat([value.flatten() for value in unbounded.values()]).requires_grad_()
    sgd = torch.optim.SGD([flat], lr=settings.rate, momentum=CONTROLS["path_momentum"])
    begin = round(CONTROLS["path_begin"] * settings.num_steps)
    every = max((settings.num_steps - begin) // CONTROLS["path_places"], 1)
    rows: list[Tensor] = []
    for step in trange(settings.num_steps, desc=bar, disable=bar is None, leave=False):
        if not rows:
            rows = list(torch.randperm(len(split.x)).split(CONTROLS["path_batch_size"]))
        few = rows.pop()
        sgd.zero_grad()
        values = {name: value[0] for name, value in _by_site(flat[None], start, positive).items()}
        given: Any = poutine.condition(model, values)
        trace = poutine.trace(given).get_trace(split.x[few], split.y[few])
        (-trace.log_prob_sum() / len(split.x)).backward()
        sgd.step()
        if step >= begin and (step - begin) % every == 0:
            yield flat.detach().clone()


def _by_site(flat: Tensor, like: Draws, positive: str) -> Draws:
    """From vectors ``(S, m)``."""
    parts = flat.split([value.numel() for value in like.values()], -1)
    found = {n: p.reshape(-1, *v.shape) for (n, v), p in zip(like.items(), parts, strict=True)}
    return found | {positive: found[positive].exp()}
