"""What the experiments with posterior-predictive training share: data, models, guides, a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    MixtureDensityGuide,
    PosteriorPredictiveLoss,
    predict,
)
from pyro_implicit.training import Annealed, EarlyStopping

__all__ = [
    "EXTRA",
    "Data",
    "State",
    "Windowed",
    "best_scale",
    "draws_at",
    "loss",
    "make_guide",
    "make_model",
    "make_network",
    "negative_log_predictive",
    "train",
    "two_branches",
    "x_sin_x",
]

#: the four points that break the pattern
EXTRA = ((7.0, -7.0), (8.5, 7.0), (10.0, -7.0), (11.5, 7.0))


@dataclass(frozen=True)
class Data:
    """
    :param Tensor x: standardised inputs ``(N, 1)``.
    :param Tensor y: standardised targets ``(N,)``.
    :param Tensor x_test: a finer grid that goes beyond the data ``(K, 1)``.
    :param Tensor y_test: the noiseless curve there.
    :param Tensor regular: which of the grid lies among the regular points.
    :param Tensor validation: inputs and targets to stop by, ``(M, 2)``.
    :param Tensor extra: inputs of the points that break the pattern.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    regular: Tensor
    validation: Tensor
    extra: Tensor


def x_sin_x(low: float = -5.0, high: float = 6.0) -> Data:
    """
    32 points of x sin x and the four extra ones, standardised. Validation data: the curve between
    the points, and the extra points with the other sign, as another draw of the noise there.
    """
    extra = torch.tensor(EXTRA)
    x = torch.cat([torch.linspace(low, high, 32), extra[:, 0]])
    y = torch.cat([_curve(x[:32]), extra[:, 1]])
    mean, scale = (x.mean(), y.mean()), (x.std(), y.std())
    between = (x[:31] + x[1:32]) / 2
    validation = torch.cat(
        [
            torch.stack([between, _curve(between)], 1),
            torch.stack([extra[:, 0], -extra[:, 1]], 1),
        ]
    )
    grid = torch.linspace(low - 3, 14, 1024)

    def standard(values: Tensor, k: int) -> Tensor:
        return (values - mean[k]) / scale[k]

    return Data(
        standard(x, 0)[:, None],
        standard(y, 1),
        standard(grid, 0)[:, None],
        standard(_curve(grid), 1),
        (grid >= low) & (grid <= high),
        torch.stack([standard(validation[:, 0], 0), standard(validation[:, 1], 1)], 1),
        standard(extra[:, 0], 0)[:, None],
    )


def _curve(x: Tensor) -> Tensor:
    return x * x.sin()


def two_branches(
    num: int = 128, noise: float = 0.01, *, regular: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Two parallel curves over (0.3, 0.6), one of them alone on either side; half of the data on each.

    :param bool regular: whether inputs are equally spaced on each curve, or drawn.
    :returns: inputs ``(num, 1)``, targets, and for each point whether it is on the upper curve.
    """
    half = num // 2
    x = torch.cat([torch.linspace(0.005, 0.595, half), torch.linspace(0.305, 0.995, num - half)])
    upper = torch.arange(num) >= half
    if not regular:
        x = torch.where(upper, 0.3 + 0.7 * torch.rand(num), 0.6 * torch.rand(num))
    y = _curve(10 * x - 5) + upper + noise * torch.randn(num)
    return x[:, None], y, upper


def make_network(hidden: int) -> nn.Module:
    """The primary model: one hidden layer, or a straight line if ``hidden`` is 0."""
    if not hidden:
        return nn.Linear(1, 1)
    return nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def make_model(
    hidden: int, scale: Callable[[], float], num_data: int, *, local: bool, laplace: bool = False
) -> tuple[Callable[..., Any], BayesianModule]:
    """The primary model as a Pyro program, and its network."""
    net = BayesianModule(make_network(hidden), prior=dist.Normal(0.0, 1.0), local=local)
    noise = dist.Laplace if laplace else dist.Normal

    def model(x: Tensor, y: Tensor | None = None, label: Tensor | None = None) -> None:
        shared = None if local else net(x).squeeze(-1)
        with pyro.plate("data", max(num_data, len(x)), subsample_size=len(x)):
            f = net(x).squeeze(-1) if local else shared
            f = pyro.deterministic("f", f)
            pyro.sample("y", noise(f, scale()), obs=y)

    return model, net


def make_guide(kind: str, model: Any, net: BayesianModule, **options: Any) -> Any:
    """``conditional``, ``unconditioned`` or ``mdn``, as in table 1 of the paper."""
    start = {"init_loc_fn": net.init_to_module}
    if kind == "mdn":
        return MixtureDensityGuide(model, hidden_dims=(16,), init_scale=0.05, **start, **options)
    settings: dict[str, Any] = {"noise_dim": 4, "hidden_dims": (16,), "activation": "relu"}
    settings |= {"scale": 0.0, "init_scale": 0.1, **start, **options}
    if kind == "conditional":
        return ConditionalHyperNetworkGuide(model, **settings)
    return HyperNetworkGuide(model, **settings)


@dataclass
class State:
    """
    :param str name: ``"best"`` by the validation score, or ``"last"``.
    :param int step: the step that it is from.
    :param tensors: of the guide's ``state_dict``.
    """

    name: str
    step: int
    tensors: dict[str, Tensor]

    def put(self, guide: Any) -> None:
        """Gives the guide this state."""
        guide.load_state_dict({**guide.state_dict(), **self.tensors})

    @classmethod
    def of(cls, guide: Any, name: str, step: int) -> State:
        """A copy of the guide's state."""
        state = guide.state_dict().items()
        return cls(name, step, {k: v.clone() for k, v in state if isinstance(v, Tensor)})


class Windowed:
    """
    Steps that end when the mean loss of a window no longer falls.

    :param steps: at most these.
    :param int size: steps of a window.
    :param float gain: by which the mean of a window must be below that of each one before.
    :param int start: the step that the first window begins with.
    :ivar int num_taken: steps so far.
    """

    def __init__(self, steps: Iterable[int], size: int, gain: float, start: int = 0) -> None:
        self.num_taken = 0
        self._steps, self._size, self._gain, self._start = steps, size, gain, start
        self._losses: list[float] = []
        self._lowest = math.inf

    def add(self, loss: float) -> None:
        """The loss of the step that was given out last."""
        self.num_taken += 1
        if self.num_taken > self._start:
            self._losses.append(loss)

    def __iter__(self) -> Iterator[int]:
        for step in self._steps:
            yield step
            if len(self._losses) == self._size:
                mean = sum(self._losses) / self._size
                if mean > self._lowest - self._gain:
                    return
                self._lowest, self._losses = min(mean, self._lowest), []


def train(
    model: Any,
    guide: Any,
    objective: Any,
    args: tuple[Tensor, ...],
    steps: Iterable[int],
    *,
    num_steps: int,
    lr: float,
    scale: Annealed | None = None,
    score: Callable[[], float] | None = None,
    check_every: int = 50,
    on_loss: Callable[[float], None] | None = None,
) -> list[State]:
    """
    Adam whose rate falls to a tenth, an annealed likelihood, and early stopping by ``score``.

    :param int num_steps: after so many the rate is a tenth.
    :param on_loss: is told the loss of each step.
    :returns: the best state, if there is a score, and the last one.
    """
    rate = {"lr": lr, "lrd": 0.1 ** (1 / num_steps), "clip_norm": 10.0}
    svi = SVI(model, guide, pyro.optim.ClippedAdam(rate), objective)
    stopping, checked = EarlyStopping(patience=10**6), []
    for step in steps:
        value = svi.step(*args)
        if on_loss is not None:
            on_loss(value)
        if scale is not None:
            scale.step()
        if score is not None and step % check_every == 0:
            stopping.step(score(), guide)
            checked.append(step)
    states = [State.of(guide, "last", num_steps)]
    if stopping.best_step is not None:
        stopping.restore(guide)
        states.insert(0, State.of(guide, "best", checked[stopping.best_step]))
    return states


@torch.no_grad()
def draws_at(model: Any, guide: Any, *args: Tensor, num_samples: int, site: str = "f") -> Tensor:
    """
    Draws of a site at each input, shape ``(num_samples, N)``. A conditional guide, trained with a
    noise for each row, is drawn with one noise for all: each draw is then a curve.
    """
    shared = getattr(guide, "shared_noise", None)
    if shared is not None:
        guide.shared_noise = True
    with pyro.validation_enabled(False):
        found = predict(model, guide, *args, num_samples=num_samples, sites=[site], parallel=True)
    if shared is not None:
        guide.shared_noise = shared
    return found[site]


def negative_log_predictive(f: Tensor, y: Tensor, scale: float) -> float:
    """Minus the mean over data of the log of the mean over draws of a Gaussian density."""
    log_p = dist.Normal(f, scale).log_prob(y)
    return -(log_p.logsumexp(0) - math.log(len(f))).mean().item()


def best_scale(f: Tensor, y: Tensor, scales: Iterable[float]) -> tuple[float, float]:
    """The smallest of :func:`negative_log_predictive` over some scales of noise, and its scale."""
    return min((negative_log_predictive(f, y, scale), scale) for scale in scales)


def loss(form: str, num_particles: int, **options: Any) -> PosteriorPredictiveLoss:
    """Vectorised."""
    return PosteriorPredictiveLoss(
        num_particles, form=form, vectorize_particles=True, max_plate_nesting=1, **options
    )
