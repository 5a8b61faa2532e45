"""What a user would take in the place of a guide for the curve, as draws of its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.papers.livi._toy_fits import SETTINGS, Data, make_network, mode
from benchmarks.shared.swag import PathMoments

__all__ = ["PEERS", "Draws", "peer"]

SETTINGS |= {
    "num_modes": 5,
    "path_batch_size": 10,
    "path_begin": 0.2,
    "path_every": 20,
    "path_rank": 20,
    "path_momentum": 0.9,
}
Draws = dict[str, Tensor]


def peer(
    method: str, model: Any, start: Draws, train_data: Data, x: Tensor, steps: Any, seed: int
) -> Tensor:
    """
    :param str method: a key of :data:`PEERS`.
    :param start: the mode at which all begin but those with a mode of their own.
    :param steps: of the method's own training, where it has one.
    :param int seed: of modes from other starts.
    :returns: draws of the network's output at ``x``, shape ``(S, N)``.
    """
    return PEERS[method](model=model, start=start, rows=train_data, x=x, steps=steps, seed=seed)


def _map(start: Draws, x: Tensor, **_: Any) -> Tensor:
    return _outputs([start], x).expand(2, -1)  # two, which have a deviation


def _ensemble(model: Any, start: Draws, rows: Data, x: Tensor, seed: int, **_: Any) -> Tensor:
    """Modes from starts of their own, the first of which is that of the guides."""
    modes = [start]
    for member in range(1, SETTINGS["num_modes"]):
        pyro.clear_param_store()
        pyro.set_rng_seed(seed + 1000 * member)
        modes.append(mode(model, rows))
    return _outputs(modes, x)


def _laplace(start: Draws, rows: Data, x: Tensor, **_: Any) -> Tensor:
    """laplace-torch's of all weights, linearised, with the model's own prior and noise."""
    from laplace import Laplace

    found: Any = Laplace(
        _network(start),
        "regression",
        subset_of_weights="all",
        hessian_structure="full",
        sigma_noise=SETTINGS["noise"],
        prior_precision=1.0,
    )
    data = TensorDataset(rows[0], rows[1][:, None])
    found.fit(DataLoader(data, batch_size=len(data)))
    with torch.no_grad():
        mean, variance = found(x)
    return mean[:, 0] + variance[:, 0, 0].sqrt() * torch.randn(SETTINGS["num_draws"], len(x))


def _dropout(rate: float, start: Draws, rows: Data, x: Tensor, steps: Any, **_: Any) -> Tensor:
    """Hidden units left out after training as in it, which goes on from the mode."""
    net = _network(start)
    layers = [part for layer in net for part in _left_out(layer, rate)]
    dropped = nn.Sequential(*layers)
    adam = torch.optim.Adam(dropped.parameters(), SETTINGS["lr"])
    for _ in steps:
        adam.zero_grad()
        _energy(dropped, *rows).backward()
        adam.step()
    with torch.no_grad():
        return torch.stack([_each(dropped, x) for _ in range(SETTINGS["num_draws"])])


def _left_out(layer: nn.Module, rate: float) -> list[nn.Module]:
    return [layer, nn.Dropout(rate)] if isinstance(layer, nn.ELU) else [layer]


def _each(net: nn.Module, x: Tensor) -> Tensor:
    """One draw of the network for all inputs: what is left out is the same for each of them."""
    out = x
    for layer in net.children():
        if isinstance(layer, nn.Dropout):
            out = out * F.dropout(torch.ones(out.shape[-1]), layer.p)
        else:
            out = layer(out)
    return out[:, 0]


def _swag(rate: float, start: Draws, rows: Data, x: Tensor, steps: Any, **_: Any) -> Tensor:
    net = _network(start)
    moments = PathMoments(SETTINGS["path_rank"]).see_all(_path(net, rate, rows, steps))
    draws = []
    for _ in range(SETTINGS["num_draws"]):
        vector_to_parameters(moments.draw(), net.parameters())
        draws.append({name: value.detach().clone() for name, value in net.named_parameters()})
    return _outputs(draws, x)


def _path(net: nn.Module, rate: float, rows: Data, steps: Any) -> Iterator[Tensor]:
    """Places of stochastic gradient descent from the mode at a constant rate."""
    x, y = rows
    sgd = torch.optim.SGD(net.parameters(), rate, momentum=SETTINGS["path_momentum"])
    begin, waiting = SETTINGS["path_begin"] * len(steps), list[Tensor]()
    for step in steps:
        waiting = waiting or list(torch.randperm(len(x)).split(SETTINGS["path_batch_size"]))
        few = waiting.pop()
        sgd.zero_grad()
        (_energy(net, x[few], y[few], len(x)) / len(x)).backward()
        sgd.step()
        if step >= begin and step % SETTINGS["path_every"] == 0 or step == len(steps) - 1:
            yield parameters_to_vector(net.parameters()).detach().clone()


def _energy(net: nn.Module, x: Tensor, y: Tensor, num_rows: int | None = None) -> Tensor:
    """Minus the log-joint but for a constant, by some of the rows."""
    share = (num_rows or len(x)) / len(x)
    misfit = (net(x)[:, 0] - y).square().sum() / (2 * SETTINGS["noise"] ** 2)
    return share * misfit + parameters_to_vector(net.parameters()).square().sum() / 2


def _network(weights: Draws) -> nn.Sequential:
    net = make_network()
    net.load_state_dict(weights)
    return net


@torch.no_grad()
def _outputs(draws: list[Draws], x: Tensor) -> Tensor:
    net = make_network()
    stacked = {name: torch.stack([one[name] for one in draws]) for name in draws[0]}
    found: Tensor = vmap(lambda weights: functional_call(net, weights, (x,))[:, 0])(stacked)
    return found


#: from model, start, rows, x, steps and seed to draws of the output at x
PEERS: dict[str, Callable[..., Tensor]] = {
    "MAP": _map,
    "ensemble of 5": _ensemble,
    "laplace": _laplace,
    "MC dropout, 0.02": partial(_dropout, 0.02),
    "MC dropout, 0.1": partial(_dropout, 0.1),
    "SWAG, 0.0001": partial(_swag, 1e-4),
    "SWAG, 0.001": partial(_swag, 1e-3),
}
